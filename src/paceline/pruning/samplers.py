"""The samplers for a training loop of one's own: fine-pruning, its control, and its rival."""

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
    look_at,
    minimum,
    processes,
    put_aside,
    whole_numbers,
)
from paceline.pruning.rules import FineRule, RandomRule, Rule, SoftRule
from paceline.pruning.schedule import Attenuate, Plan, Schedule, check_whole
from paceline.randomness import stream


class Rest(compress):  # type: ignore[type-arg]  # compress takes no argument when it runs
    """Goes through indices, without making a list of them.

    It has a state for loaders that keep those of iterators (torchdata's ``StatefulDataLoader``): they take it when an
    index is handed to a worker process, long before its loss is observed. A subclass of ``compress``, because an
    iterator written in Python would cost more time than all the rest.
    """

    _all_true: "repeat[bool]"

    def __new__(cls, indices: NDArray[np.int32]) -> "Rest":
        all_true = repeat(True, len(indices))
        self = super().__new__(cls, memoryview(np.ascontiguousarray(indices).data), all_true)
        self._all_true = all_true
        return self

    def state_dict(self) -> dict[str, int]:
        return {"left": length_hint(self._all_true)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where the state was taken: leave out what was handed out then."""
        beyond = length_hint(self._all_true) - state["left"]
        next(islice(self, beyond, beyond), None)


MOST_SAMPLES = 2**31 - 1  # indices are kept in four bytes
MOST_WAITING = 64  # batches that are not looked at yet
LOOKS = 8  # at single batches, where mistakes show; then at more and more together
State = dict[str, Any]


class PruningSampler(Sampler[int]):
    """Indices of the samples that an epoch keeps, in random order.

    An epoch that keeps all has the order of ``DistributedSampler(seed=seed, drop_last=True)``, index by index; a pruned
    one has the same without what is left out. ``set_epoch`` counts from 0, as everywhere in torch; plans count from 1.
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
        self._waiting: list[Batch] = []
        self._waiting_samples = 0
        self._observed = 0  # samples of this epoch that were looked at
        self._looks = 0
        self._share = 0  # samples of this epoch and process
        self._resuming = False  # in the middle of this epoch, from a state
        self._epoch = 1
        self._kept: Mask | None = None
        self._order: NDArray[np.int32]
        self._enter(1)

    def plan(self, epochs: int) -> Plan:
        """Which of the first epochs are pruned, and what that saves. It depends on nothing that happens."""
        return self.rule.plan(self.samples, epochs)

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        """For ``paceline.train(sampling=)``: each worker prunes its own shard, by the seed of the run."""
        if (highest := max(int(shard.max()) for shard in shards)) >= self.samples:
            raise ConfigError(f"the data set has a sample {highest}, and {type(self).__name__} only {self.samples}")
        return self.rule.open(shards, batch_size, seed)

    # Epochs

    @property
    def epoch(self) -> int:
        """The epoch to go on with (from 0): the current one, or the next if all of it was observed."""
        return self._epoch if self._is_over() else self._epoch - 1

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0. Under ``torch.distributed`` every process must; marks are merged here."""
        number = epoch + 1
        if number == self._epoch:
            return
        if number < self._epoch:
            raise ConfigError(
                f"epoch {epoch} lies before epoch {self._epoch - 1}, and what was known then is gone: "
                "go on, load a state, or make a new sampler"
            )
        self._look()
        self._kept, self._order = None, self._order[:0].copy()  # lets go of their memory
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
        """The part of this process; as many for each, so fewer than ``ranks`` samples of an epoch go to nobody."""
        each = len(self._order) // self.ranks
        return self._order[self.rank : each * self.ranks : self.ranks]

    def __len__(self) -> int:
        """Samples of this epoch, for this process."""
        return len(self._order) // self.ranks

    def __iter__(self) -> Iterator[int]:
        """The samples of this epoch; after a state was loaded, those that were not observed."""
        self._look()
        if self._observed and (self._is_over() or not self._resuming):
            raise ConfigError(
                f"epoch {self._epoch - 1} was gone through before: call set_epoch({self._epoch}) before the next one, "
                "or load a state to go on in the middle"
            )
        mine = self._mine()
        return Rest(mine[self._marks[mine] == UNSEEN] if self._observed else mine)

    def _is_over(self) -> bool:
        return self._observed >= self._share > 0

    @property
    def kept(self) -> Mask:
        """Which samples this epoch keeps, for all processes."""
        return np.ones(self.samples, dtype=np.bool_) if self._kept is None else self._kept.copy()

    # Losses

    def observe(self, indices: Places, losses: Values) -> None:
        """Take note of the per-sample losses of a batch: those of the training pass, before any weighing.

        The first batches are looked at once, the others some dozens at a time: until then the tensors must not be
        changed, and what is wrong with them is told then.
        """
        batch = put_aside(indices, losses)
        self._waiting.append(batch)
        self._waiting_samples += batch.size
        patience = 1 if self._looks < LOOKS else min(1 << (self._looks - LOOKS), MOST_WAITING)
        if len(self._waiting) >= patience or self._observed + self._waiting_samples >= self._share:
            self._look()

    def _look(self) -> None:
        """Look at the batches that were put aside."""
        if not self._waiting_samples:
            return
        waiting, self._waiting, self._waiting_samples = self._waiting, [], 0
        self._looks += 1
        seen = look_at(waiting, self.samples)
        new = self._first_time(seen.places)
        if not new.all():
            seen = Observed(seen.places[new], seen.losses[new], seen.means[new])
        self._marks[seen.places] = self._memory.judge(seen.places, seen.losses, seen.means)
        self._observed += len(seen.places)

    def _first_time(self, places: Indices) -> Mask:
        """Loaders of several processes fill their last batches up with samples that they had; others must not."""
        before = self._marks.take(places)
        labels = (np.arange(len(places)) * 0x9E3779B1 >> 16).astype(np.uint8)
        self._marks[places] = labels  # of a sample that is there twice, one label is lost
        new: Mask = (before == UNSEEN) & (self._marks.take(places) == labels)
        self._marks[places] = before
        if processes() == 1 and not new.all():
            raise ConfigError(
                f"sample {places[~new][0]} was observed before in epoch {self._epoch - 1}: observe each batch once, "
                f"and call set_epoch({self._epoch}) before the next epoch"
            )
        return new

    def weights(self, indices: Places) -> Tensor:
        """What to multiply the losses of these samples with before their mean is taken: ones, but for soft pruning."""
        device = indices.device if isinstance(indices, Tensor) else None
        return torch.from_numpy(self._memory.weights(whole_numbers(indices))).to(device)

    @property
    def counts(self) -> NDArray[Any]:
        """How often each sample stood out in this window, up to now and in this process (``FinePruning`` alone)."""
        self._look()
        counts = self._memory.state().get("counts")
        if counts is None:
            raise ConfigError(f"{type(self).__name__} counts nothing: FinePruning does")
        total: NDArray[Any] = counts + (self._marks == STANDS_OUT)
        return total

    def _merge(self) -> None:
        if processes() > 1:
            self._memory.merge(self._marks, minimum)
            minimum(self._marks)

    # States

    def state_dict(self) -> State:
        """All that an exact resume needs, also in the middle of an epoch; without what is on its way in a loader.

        Of several processes each has its own, for they are put together at ``set_epoch`` only.
        """
        self._look()
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
        """Go on where the state was taken."""
        mine = {"rule": type(self.rule).__name__, "samples": self.samples, "seed": self.seed}
        for name, value in mine.items():
            if state.get(name) != value:
                raise ConfigError(f"the state is of {name}={state.get(name)}, and this sampler has {name}={value}")
        if (taken := tuple(state["rank"])) != (self.rank, self.ranks) and (state["marks"] != UNSEEN).any():
            raise ConfigError(
                f"the state was taken in the middle of an epoch by rank {taken[0]} of {taken[1]}, and this is rank "
                f"{self.rank} of {self.ranks}: let each load its own, or take the state right after set_epoch"
            )
        refill({**self._memory.state(), "marks": self._marks}, {**state["memory"], "marks": state["marks"]})
        self._waiting, self._waiting_samples, self._resuming = [], 0, True
        self._observed = int(np.count_nonzero(self._marks != UNSEEN))
        self._epoch = state["epoch"] + 1
        kept = state["kept"]
        self._kept = None if kept is None else np.unpackbits(kept.numpy(), count=self.samples).view(np.bool_)
        self._shuffle()

    def __getstate__(self) -> dict[str, Any]:
        self._look()
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

    samples      how many the data set has
    window       epochs after which counting begins anew; or ``windows``, the periods of the learning rate, one by one
    start        the position in a window from which epochs are pruned; each window divides it by ``attenuation``
    block, count pruned are ``count`` epochs of every ``block``
    fraction     of the samples that a pruned epoch leaves out
    attenuate    "window", or "epoch": the algorithm as it is printed
    tolerance    a sample stands out if its loss is this share above the mean of its batch, or more
    ties         who of equals is left out: "random", by ``seed``, or by "index"
    until        the last epoch (from 1) that may be pruned
    prune        "high": those that stand out most, or "low": those that stand out least
    rank, ranks  this process, and how many share the samples; leave them where the loader shards (Accelerate)

    The rule is ``FineRule``, the plan ``Schedule``. Li et al., *Data Fine-Pruning*, 2019.
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
    """The control for ``FinePruning``: in the same epochs, leave out as many samples, but drawn by lot."""

    def __init__(
        self, *, samples: int, window: int | None = None, windows: Sequence[int] = (), start: int, block: int,
        count: int, fraction: float, attenuation: float = 1, attenuate: Attenuate = "window",
        until: int | None = None, seed: int = 0, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        schedule = Schedule(start, block, count, window, tuple(windows), attenuation, attenuate, until)
        super().__init__(RandomRule(schedule, fraction), samples, seed, rank, ranks)


class SoftPruning(PruningSampler):
    """Skip samples whose last loss is below the mean with probability ``fraction``; weigh the others of them more.

        losses = cross_entropy(model(inputs), targets, reduction="none")
        sampler.observe(indices, losses)
        (losses * sampler.weights(indices)).mean().backward()

    The rule is ``SoftRule``. How many samples an epoch has is known when it begins, not before: the plan says at most.
    """

    def __init__(
        self, *, samples: int, fraction: float, until: int | None = None, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(SoftRule(fraction=fraction, until=until), samples, seed, rank, ranks)


class WithIndices(Dataset[tuple[int, Any]]):
    """Items of a map-style data set as ``(index, item)``; whatever the items are, a batch is ``(indices, batch)``.

        loader = DataLoader(WithIndices(dataset), batch_size=128, sampler=sampler)
        for indices, (inputs, targets) in loader: ...

    A data set that changes its length is refused: indices would no longer mean the same samples.
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
        """A whole batch at once, as torch's loaders ask for it, and as the data set itself may offer it."""
        self._check_length()
        together = getattr(self.dataset, "__getitems__", None)
        items = together(indices) if together is not None else [self.dataset[index] for index in indices]
        return list(zip(indices, items, strict=True))

    def _check_length(self) -> None:
        if (length := len(self.dataset)) != self._length:
            raise ConfigError(
                f"the data set has {length:,} samples, and had {self._length:,}: what was observed no longer fits; "
                "make a new WithIndices and a new sampler"
            )
