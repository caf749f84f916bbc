"""EC-DNN and E-DNN: aggregate the models' outputs, not their parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Work, distilled_steps, local_steps
from paceline.strategies.aggregation import EnsembleModels
from paceline.strategies.handing_in import check_rule, check_steps, handing_in
from paceline.strategies.inner import Inner, check_with_inner
from paceline.strategies.synchronous import Synchronous

WEIGHTS = ("simple", "regression", "margin")


@dataclass(frozen=True)
class EnsembleCompression(Strategy):
    r"""Make an ensemble of the workers' models every so many steps; distil it back into each of them (EC-DNN).

    $$\bar y = \sum_{k=1}^K \alpha_k f(w_k^t; x), \qquad t = \tau, 2\tau, \dots,$$

    where $f$ are softmax outputs and each of the $K$ workers made ``every`` ($\tau$) steps of its own. The coefficients
    are $1/K$ (``simple``, EC-DNN-S), those of least squares on the labels (``regression``, -R, Eq. 7), or each sample's
    margins (``margin``, -M, Eq. 8). Every worker relabels a random fraction ``relabel`` ($\mu$) of its samples with the
    outputs of the ensemble; the next ``compression_steps`` ($p$; unless given a tenth of $\tau$, and at least one where
    there is something to distil) of its own steps minimise $L(f, y) + \beta L(f, \bar y)$ with ``distillation``
    ($\beta$, Eq. 10), and the others $L(f, y) - \alpha \lVert f - \bar z\rVert_2$ with ``diversity`` ($\alpha$, Eq. 9),
    where $\bar z$ is the mean output of the compressed models. Every worker continues from its own model, and begins
    with its own random weights unless ``same_start``.

    $\bar z$ needs a second exchange, after the compression: with diversity and compression a round of $\tau$ steps so
    has two updates. The paper's cost model counts one exchange; the clock here counts both. Relabelling takes as long
    however short $\tau$ is, so choose a large one: 1,000 steps gave the error of 64 in a seventh of the time (LeNet on
    CIFAR-10, one seed).

    With ``pooled``, the regression is fitted on the samples of all workers, not on each one's own, for the pseudo
    labels too (for the final model it always is); with ``non_negative`` by non-negative least squares. With ``steps``,
    the run ends after so many local steps of each worker; the last piece may be shorter.

    Sun & Liu, *EC-DNN: A new method for parallel training of deep neural networks*, Algorithms 1 and 2.
    """

    every: int
    weights: Literal["simple", "regression", "margin"] = "simple"
    compression_steps: int | None = None
    distillation: float = 0.4
    diversity: float = 0.6
    relabel: float = 0.7
    waits: Inner = Synchronous()  # type: ignore[assignment]
    steps: int | None = None
    pooled: bool = False
    non_negative: bool = False
    squared: bool = False
    same_start: bool = False

    def __post_init__(self) -> None:
        check_with_inner(self, "waits")
        check_steps("EnsembleCompression", self.every, self.steps)
        check_rule(self.waits, "EnsembleCompression", needs_rounds=EnsembleModels.needs_rounds)
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights={self.weights!r} are unknown: choose one of {', '.join(WEIGHTS)}")
        if not 0 <= self.compressed <= self.every:
            raise ConfigError(
                f"a compression of {self.compressed} steps does not fit into {self.every} steps between two ensembles: "
                f"choose 0 to {self.every}"
            )
        if not 0 <= self.relabel <= 1:
            raise ConfigError(f"relabel={self.relabel} is not a fraction of the samples: choose 0 to 1")
        if self.weights == "regression" and not self.relabel:
            raise ConfigError("a regression needs samples to be fitted on: choose relabel above 0, or weights='simple'")
        for name in ("distillation", "diversity"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)} is not a weight of a loss: at least 0")

    @property
    def compressed(self) -> int:
        """$p$, the steps of a round that distil the ensemble."""
        if self.compression_steps is not None:
            return self.compression_steps
        return max(round(self.every / 10), 1 if self.distillation > 0 and self.relabel > 0 else 0)

    @property
    def exchanges_twice(self) -> bool:
        return self.diversity > 0 and 0 < self.compressed < self.every

    @property
    def rounds(self) -> int | None:
        """How many updates a run has, if that is limited."""
        if self.steps is None:
            return None
        rounds = -(-self.steps // self.every)
        if not self.exchanges_twice:
            return rounds
        last = self.steps - (rounds - 1) * self.every  # steps of the last round, which may end in its compression
        return 1 if rounds == 1 else 2 * rounds - 1 - (last <= self.compressed)

    @property
    def aggregation(self) -> EnsembleModels:
        """What becomes of the models that are handed in."""
        return EnsembleModels(
            weights=self.weights, compressed=self.compressed, distillation=self.distillation, diversity=self.diversity,
            relabel=self.relabel, exchanges_twice=self.exchanges_twice, rounds=self.rounds, pooled=self.pooled,
            non_negative=self.non_negative, squared=self.squared, same_start=self.same_start,
        )  # fmt: skip

    def check(self, workers: int, batch_size: int | None) -> None:
        check_fits(self.waits, workers, batch_size)
        if self.weights == "regression" and workers == 1:
            raise ConfigError("a regression over one model only scales it: use more workers, or weights='simple'")

    def work(self, round_: int) -> Work:
        """The first piece of a run is all local; afterwards compression comes first."""
        if round_ == 0 or not self.exchanges_twice:
            begun, piece = round_ * self.every, self.every
        else:
            begun, piece = (round_ + 1) // 2 * self.every, self.compressed
            if round_ % 2 == 0:
                begun, piece = begun + self.compressed, self.every - self.compressed
        left = piece if self.steps is None else max(1, min(piece, self.steps - begun))
        distils = round_ > 0 and self.compressed and (round_ % 2 == 1 or not self.exchanges_twice)
        return distilled_steps(left) if distils else local_steps(left)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return handing_in(lambda part, worker: self.work(part.round), ledger, self.waits.decide(ledger))


def FinalEnsemble(steps: int, *, same_start: bool = False) -> EnsembleCompression:  # noqa: N802 - a named choice
    """Train the models independently for so many steps; make an ensemble of them once, at the end (E-DNN)."""
    return EnsembleCompression(
        every=steps, steps=steps, compression_steps=0, distillation=0.0, diversity=0.0, relabel=0.0,
        same_start=same_start,
    )  # fmt: skip
