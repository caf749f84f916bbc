"""Samplers for ``DataLoader`` that leave samples out: ``FinePruning``, ``RandomPruning``, ``SoftPruning``."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, islice, repeat
from operator import length_hint
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from paceline.core.errors import ConfigError
from paceline.core.fields import table_of
from paceline.data.batches import Batches
from paceline.data.partition import Indices
from paceline.data.samples import MapDataset
from paceline.pruning.memory import STANDS_OUT, UNSEEN, Mask, Ties, only_kept, refill
from paceline.pruning.observations import (
    Batch,
    Observed,
    Places,
    Values,
    buffered,
    check_batches,
    minimum,
    processes,
    whole_numbers,
)
from paceline.pruning.rules import FineRule, RandomRule, Rule, SoftRule
from paceline.pruning.schedule import Attenuate, Plan, Schedule, check_whole
from paceline.randomness import stream


class RemainingIndices(compress):  # type: ignore[type-arg]  # compress takes no argument when it runs
    """Iterator over indices, without a list of them.

    It has a state for loaders that save the state of iterators (``StatefulDataLoader`` of torchdata): they do so when
    an index is sent to a worker process, long before its loss is observed. It is a subclass of ``compress`` because an
    iterator in Python would take more time than the rest of the sampler.
    """

    _all_true: "repeat[bool]"

    def __new__(cls, indices: NDArray[np.int32]) -> "RemainingIndices":
        all_true = repeat(True, len(indices))
        self = super().__new__(cls, memoryview(np.ascontiguousarray(indices).data), all_true)
        self._all_true = all_true
        return self

    def state_dict(self) -> dict[str, int]:
        return {"left": length_hint(self._all_true)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a state: skip the indices that were returned before it."""
        beyond = length_hint(self._all_true) - state["left"]
        next(islice(self, beyond, beyond), None)


MOST_SAMPLES = 2**31 - 1  # indices have four bytes
MOST_PENDING = 64  # batches that are buffered at most
CHECKED_AT_ONCE = (
    8  # first batches that are checked immediately, so that mistakes show; then more and more are buffered
)
State = dict[str, Any]


class PruningSampler(Sampler[int]):
    """Sampler of the indices that an epoch keeps, in random order.

    An epoch with all samples has the same order as ``DistributedSampler(seed=seed, drop_last=True)``; a pruned epoch
    has that order without the samples that are left out. ``set_epoch`` counts from 0, as in torch; plans count from 1.
    """

    def __init__(self, rule: Rule, samples: int, seed: int, rank: int, ranks: int) -> None:
        for name, value in (("samples", samples), ("seed", seed), ("rank", rank), ("ranks", ranks)):
            check_whole(name, value)
        if not 1 <= samples <= MOST_SAMPLES:
            raise ConfigError(f"samples={samples} is not possible: 1 to {MOST_SAMPLES:,}")
        if seed < 0:
            raise ConfigError(f"seed={seed} is not possible: 0 or more")
        if not 0 <= rank < ranks:
            raise ConfigError(f"rank={rank} of ranks={ranks} is not possible: 0 to {ranks - 1}")
        self.rule = rule
        self.samples = samples
        self.seed = seed
        self.rank = rank
        self.ranks = ranks
        self._memory = rule.memory(samples)
        self._marks = np.full(samples, UNSEEN, dtype=np.uint8)
        self._pending: list[Batch] = []
        self._pending_samples = 0
        self._observed = 0  # samples of this epoch that were checked
        self._checks = 0
        self._share = 0  # samples of this epoch for this process
        self._resuming = False  # in the middle of an epoch, after load_state_dict
        self._epoch = 1
        self._kept: Mask | None = None
        self._order: NDArray[np.int32]
        self._enter(1)

    def plan(self, epochs: int) -> Plan:
        """Which of the first epochs are pruned, and how many samples that saves. Known before training."""
        return self.rule.plan(self.samples, epochs)

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        """Mini-batches for ``paceline.train(sampling=...)``: each worker prunes its shard, with the seed of the run."""
        if (highest := max(int(shard.max()) for shard in shards)) >= self.samples:
            raise ConfigError(
                f"the dataset has a sample {highest}, but {type(self).__name__} was made for {self.samples} samples"
            )
        return self.rule.open(shards, batch_size, seed)

    # Epochs

    @property
    def epoch(self) -> int:
        """The epoch to continue with (from 0): the current one, or the next if all samples were observed."""
        return self._epoch if self._is_over() else self._epoch - 1

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch (from 0). With ``torch.distributed`` every process must call this: it combines their marks."""
        number = epoch + 1
        if number == self._epoch:
            return
        if number < self._epoch:
            raise ConfigError(
                f"epoch {epoch} is before the current epoch {self._epoch - 1}, and its counts are gone: "
                "continue with later epochs, load a state, or make a new sampler"
            )
        self._process_pending()
        self._kept, self._order = None, self._order[:0].copy()  # frees their memory
        self._merge()
        self._memory.count(slice(None), self._marks == STANDS_OUT)
        self._marks.fill(UNSEEN)
        self._observed, self._resuming = 0, False
        for each in range(self._epoch + 1, number + 1):
            self._enter(each)

    def _enter(self, number: int) -> None:
        self._epoch = number
        self._kept = self._memory.enter(number, stream(self.seed, "pruning", 0, number))
        self._shuffle()

    def _shuffle(self) -> None:
        generator = torch.Generator().manual_seed(self.seed + self._epoch - 1)
        order: NDArray[np.int32] = torch.randperm(self.samples, generator=generator, dtype=torch.int32).numpy()
        self._order = order if self._kept is None else only_kept(order, self._kept)
        self._share = len(self._order) // max(self.ranks, processes())

    def _mine(self) -> NDArray[np.int32]:
        """The samples of this process. All have the same number; up to ``ranks - 1`` samples are dropped."""
        each = len(self._order) // self.ranks
        return self._order[self.rank : each * self.ranks : self.ranks]

    def __len__(self) -> int:
        """The number of samples of this epoch, for this process."""
        return len(self._order) // self.ranks

    def __iter__(self) -> Iterator[int]:
        """The indices of this epoch; after ``load_state_dict``, those that were not observed yet."""
        self._process_pending()
        if self._observed and (self._is_over() or not self._resuming):
            raise ConfigError(
                f"epoch {self._epoch - 1} was iterated before: call set_epoch({self._epoch}) before the next one, "
                "or load a state to resume in the middle"
            )
        mine = self._mine()
        return RemainingIndices(mine[self._marks[mine] == UNSEEN] if self._observed else mine)

    def _is_over(self) -> bool:
        return self._observed >= self._share > 0

    @property
    def kept(self) -> Mask:
        """A mask of the samples that this epoch keeps, for all processes."""
        return np.ones(self.samples, dtype=np.bool_) if self._kept is None else self._kept.copy()

    # Losses

    def observe(self, indices: Places, losses: Values) -> None:
        """Report the per-sample losses of a batch, from the training step itself and before weights are applied.

        The first batches are checked at once, later ones are buffered and checked some dozens at a time. Until then
        the tensors must not be changed; errors are raised when they are checked.
        """
        batch = buffered(indices, losses)
        self._pending.append(batch)
        self._pending_samples += batch.size
        limit = 1 if self._checks < CHECKED_AT_ONCE else min(1 << (self._checks - CHECKED_AT_ONCE), MOST_PENDING)
        if len(self._pending) >= limit or self._observed + self._pending_samples >= self._share:
            self._process_pending()

    def _process_pending(self) -> None:
        """Check the buffered batches, and mark the samples that stand out."""
        if not self._pending_samples:
            return
        pending, self._pending, self._pending_samples = self._pending, [], 0
        self._checks += 1
        seen = check_batches(pending, self.samples)
        new = self._first_time(seen.places)
        if not new.all():
            seen = Observed(seen.places[new], seen.losses[new], seen.means[new])
        self._marks[seen.places] = self._memory.observe(seen.places, seen.losses, seen.means)
        self._observed += len(seen.places)

    def _first_time(self, places: Indices) -> Mask:
        """A mask of samples that are observed for the first time in this epoch.

        Loaders of several processes may repeat samples to fill the last batch; otherwise repetition is an error.
        """
        before = self._marks.take(places)
        labels = (np.arange(len(places)) * 0x9E3779B1 >> 16).astype(np.uint8)
        self._marks[places] = labels  # a sample that occurs twice loses one of its labels
        new: Mask = (before == UNSEEN) & (self._marks.take(places) == labels)
        self._marks[places] = before
        if processes() == 1 and not new.all():
            raise ConfigError(
                f"sample {places[~new][0]} was observed before in epoch {self._epoch - 1}: observe each batch once, "
                f"and call set_epoch({self._epoch}) before the next epoch"
            )
        return new

    def weights(self, indices: Places) -> Tensor:
        """Weights to multiply the losses of these samples with, before the mean: 1, except for ``SoftPruning``."""
        device = indices.device if isinstance(indices, Tensor) else None
        return torch.from_numpy(self._memory.weights(whole_numbers(indices))).to(device)

    @property
    def counts(self) -> NDArray[Any]:
        """How often each sample stood out in this window so far, in this process (only ``FinePruning``)."""
        self._process_pending()
        counts = self._memory.state().get("counts")
        if counts is None:
            raise ConfigError(f"{type(self).__name__} has no counts: only FinePruning has")
        total: NDArray[Any] = counts + (self._marks == STANDS_OUT)
        return total

    def _merge(self) -> None:
        if processes() > 1:
            self._memory.merge(self._marks, minimum)
            minimum(self._marks)

    # States

    def state_dict(self) -> State:
        """The state for an exact resume, also in the middle of an epoch; batches inside a loader are not in it.

        Each process has a state of its own, because they are combined only by ``set_epoch``.
        """
        self._process_pending()
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._memory.state().items()}
        kept = None if self._kept is None else torch.from_numpy(np.packbits(self._kept))
        return {
            "rule": type(self.rule).__name__,
            "samples": self.samples,
            "seed": self.seed,
            "rank": (self.rank, self.ranks),
            "epoch": self._epoch - 1,
            "marks": torch.from_numpy(self._marks.copy()),
            "kept": kept,
            "memory": arrays,
        }

    def load_state_dict(self, state: State) -> None:
        """Load a state, to resume where it was taken."""
        mine = {"rule": type(self.rule).__name__, "samples": self.samples, "seed": self.seed}
        for name, value in mine.items():
            if state.get(name) != value:
                raise ConfigError(f"the state has {name}={state.get(name)}, but this sampler has {name}={value}")
        if (taken := tuple(state["rank"])) != (self.rank, self.ranks) and (state["marks"] != UNSEEN).any():
            raise ConfigError(
                f"the state was taken in the middle of an epoch by rank {taken[0]} of {taken[1]}, but this is rank "
                f"{self.rank} of {self.ranks}: each rank must load its own, or take the state right after set_epoch"
            )
        refill({**self._memory.state(), "marks": self._marks}, {**state["memory"], "marks": state["marks"]})
        self._pending, self._pending_samples, self._resuming = [], 0, True
        self._observed = int(np.count_nonzero(self._marks != UNSEEN))
        self._epoch = state["epoch"] + 1
        kept = state["kept"]
        self._kept = None if kept is None else np.unpackbits(kept.numpy(), count=self.samples).view(np.bool_)
        self._shuffle()

    def __getstate__(self) -> dict[str, Any]:
        self._process_pending()
        return {**self.__dict__, "_resuming": True}

    def __repr__(self) -> str:
        settings = {"samples": self.samples, **table_of(self.rule), "seed": self.seed}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


class FinePruning(PruningSampler):
    """Leave out, in some epochs of each window, the samples whose loss is most often above that of their batch.

        sampler = FinePruning(samples=len(dataset), window=60, start=30, block=5, count=3, fraction=0.3)
        loader = DataLoader(WithIndices(dataset), batch_size=128, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for indices, (inputs, targets) in loader:
                losses = cross_entropy(model(inputs), targets, reduction="none")
                sampler.observe(indices, losses)
                ...

    samples      number of samples in the dataset
    window       epochs after which counts are reset; or ``windows``, the lengths of the periods of the learning rate
    start        position in a window from which epochs are pruned; each window divides it by ``attenuation``
    block, count ``count`` epochs of every ``block`` are pruned
    fraction     share of the samples that a pruned epoch leaves out
    attenuate    "window", or "epoch": the algorithm as printed in the paper
    tolerance    a sample stands out if its loss is at least this fraction above the mean of its batch
    ties         which of equal samples are left out: "random", by ``seed``, or by "index"
    until        last epoch (from 1) that may be pruned
    prune        "high": leave out those that stand out most, or "low": those that stand out least
    rank, ranks  rank of this process, and number of processes; omit them if the loader shards (Accelerate)

    The rule is ``FineRule``, the plan is ``Schedule``. Li et al., *Data Fine-Pruning*, 2019.

    **Try it beside its controls.** The saving is as planned. LeNet on all of CIFAR-10 ended 1.1 points above regular
    training, 1.2 above training for as much shorter, and 0.9 above ``RandomPruning``; with 4,000 samples it cannot be
    told from any of them (docs/results/fine-pruning.md).
    """

    def __init__(
        self, *, samples: int, window: int | None = None, windows: Sequence[int] = (), start: int, block: int,
        count: int, fraction: float, attenuation: float = 1, attenuate: Attenuate = "window",
        until: int | None = None, tolerance: float = 0.0, ties: Ties = "random",
        prune: Literal["high", "low"] = "high", seed: int = 0, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        schedule = Schedule(start, block, count, window, tuple(windows), attenuation, attenuate, until)
        super().__init__(FineRule(schedule, fraction, tolerance, ties, prune), samples, seed, rank, ranks)


class RandomPruning(PruningSampler):
    """The control for ``FinePruning``: in the same epochs, leave out as many samples, chosen at random."""

    def __init__(
        self, *, samples: int, window: int | None = None, windows: Sequence[int] = (), start: int, block: int,
        count: int, fraction: float, attenuation: float = 1, attenuate: Attenuate = "window",
        until: int | None = None, seed: int = 0, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        schedule = Schedule(start, block, count, window, tuple(windows), attenuation, attenuate, until)
        super().__init__(RandomRule(schedule, fraction), samples, seed, rank, ranks)


class SoftPruning(PruningSampler):
    """Skip samples with a small last loss with probability ``fraction``; such samples that are kept weigh more.

        losses = cross_entropy(model(inputs), targets, reduction="none")
        sampler.observe(indices, losses)
        (losses * sampler.weights(indices)).mean().backward()

    The rule is ``SoftRule``. How many samples an epoch has is known when it starts; the plan has an upper bound.
    """

    def __init__(
        self, *, samples: int, fraction: float, until: int | None = None, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(SoftRule(fraction=fraction, until=until), samples, seed, rank, ranks)


class WithIndices(Dataset[tuple[int, Any]]):
    """A map-style dataset whose items are ``(index, item)``, so that a batch is ``(indices, batch)``.

        loader = DataLoader(WithIndices(dataset), batch_size=128, sampler=sampler)
        for indices, (inputs, targets) in loader: ...

    A dataset that changes its length is refused: its indices would refer to other samples.
    """

    def __init__(self, dataset: MapDataset) -> None:
        self.dataset = dataset
        self._length = len(dataset)

    def __len__(self) -> int:
        self._check_length()
        return self._length

    def __getitem__(self, index: int) -> tuple[int, Any]:
        self._check_length()
        return index, self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Any]]:
        """A whole batch at once, if the loader asks for it."""
        self._check_length()
        together = getattr(self.dataset, "__getitems__", None)
        items = together(indices) if together is not None else [self.dataset[index] for index in indices]
        return list(zip(indices, items, strict=True))

    def _check_length(self) -> None:
        if (length := len(self.dataset)) != self._length:
            raise ConfigError(
                f"the dataset has {length:,} samples, but had {self._length:,} before: "
                "make a new WithIndices and a new sampler"
            )
