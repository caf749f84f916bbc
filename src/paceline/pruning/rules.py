"""The pruning rules: frozen hyperparameters. What a rule stores about the samples is in ``memory``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.core.errors import ConfigError
from paceline.data.batches import Batches
from paceline.data.partition import Indices
from paceline.pruning.memory import Blind, Counting, Memory, Scores, Ties
from paceline.pruning.schedule import Plan, Schedule, check_epochs, check_fraction, plan_of, pruned_number
from paceline.pruning.shards import PrunedShards


class Rule(Protocol):
    """A pruning rule, as the samplers use it."""

    def plan(self, samples: int, epochs: int) -> Plan:
        """How many samples each epoch trains on."""
        ...

    def memory(self, samples: int) -> Memory:
        """A new memory for a number of samples."""
        ...

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        """Mini-batches for ``paceline.train(sampling=...)``: each worker prunes its own shard."""
        return PrunedShards(self.memory, shards, batch_size, seed)


@dataclass(frozen=True)
class FineRule(Rule):
    r"""In pruned epochs, leave out the ``fraction`` of the samples that stood out most often in this window.

    Sample $i$ of batch $B$ stands out if $\ell_i \ge (1 + \text{tolerance}) \frac{1}{|B|} \sum_{k \in B} \ell_k$,
    by the losses of the training step itself. A pruned sample has no loss, so its count does not change. Many counts
    are equal; ties are broken at random (``ties="random"``) or by index. ``prune="low"`` leaves out the samples that
    stood out least often: the opposite of the paper, for comparison.

    *Data Fine-Pruning*, Algorithms 1 and 2.
    """

    schedule: Schedule
    fraction: float
    tolerance: float = 0.0
    ties: Ties = "random"
    prune: Literal["high", "low"] = "high"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        if not -1 <= self.tolerance < float("inf"):
            raise ConfigError(f"tolerance={self.tolerance} is not possible: -1, by which all stand out, or more")
        if self.ties not in ("random", "index"):
            raise ConfigError(f'ties={self.ties!r} is unknown: choose "random" or "index"')
        if self.prune not in ("high", "low"):
            raise ConfigError(f'prune={self.prune!r} is unknown: choose "high" or "low"')

    def plan(self, samples: int, epochs: int) -> Plan:
        return plan_of(self.schedule, self.fraction, samples, epochs)

    def memory(self, samples: int) -> Memory:
        kept = samples - pruned_number(self.fraction, samples)
        return Counting(self.schedule, samples, kept, self.tolerance, self.ties, highest=self.prune == "low")


@dataclass(frozen=True)
class RandomRule(Rule):
    """The control: in the same epochs, leave out as many samples, chosen at random every time."""

    schedule: Schedule
    fraction: float

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def plan(self, samples: int, epochs: int) -> Plan:
        return plan_of(self.schedule, self.fraction, samples, epochs)

    def memory(self, samples: int) -> Memory:
        return Blind(self.schedule, samples, samples - pruned_number(self.fraction, samples))


@dataclass(frozen=True)
class SoftRule(Rule):
    r"""Skip well-learnt samples with probability ``fraction`` ($r$); those that are kept have the weight $1/(1-r)$.

    Sample $i$ is well learnt if its last loss is smaller than the mean of the last losses of all samples. With the
    weights, the expected sum of gradients over an epoch is that of all samples:

    $$\mathbb{E} \sum_{i\ \text{kept}} w_i \nabla \ell_i = \sum_i \nabla \ell_i .$$

    A sample without a loss is never skipped, so the first epoch has all samples. So have those after ``until``.

    Similar to Qin et al., *InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning*, ICLR 2024.
    """

    fraction: float
    until: int | None = None

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        if self.until is not None and self.until < 0:
            raise ConfigError(f"until={self.until} is not an epoch: 0 (which prunes none) or more")

    def plan(self, samples: int, epochs: int) -> Plan:
        """The epochs that may be pruned. How many samples they skip depends on the losses."""
        check_epochs(epochs)
        last = epochs if self.until is None else min(self.until, epochs)
        return Plan(samples, (samples,) * epochs, tuple(range(2, last + 1)) if self.fraction else (), exact=False)

    def memory(self, samples: int) -> Memory:
        return Scores(samples, self.fraction, self.until)

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        raise ConfigError(
            "train() cannot use SoftPruning, because it needs one weight per sample: "
            "use FinePruning or RandomPruning, or SoftPruning in a training loop of your own"
        )
