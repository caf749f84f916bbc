"""Pruning in ``paceline.train``: each shard has a memory of its own."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.stateful import State
from paceline.data.batches import Batches, Losses, ShardBatches
from paceline.data.partition import Indices
from paceline.data.reassign import ReassigningBatches
from paceline.pruning.memory import Blind, Mask, Memory, refill
from paceline.pruning.record import PruningRecord, new_record
from paceline.randomness import restore_stream, stream, stream_state


class Passes:
    """Infinite iterator over the mini-batches of one shard, with the random stream and order of ``Shuffled``.

    Its state is the epoch, the samples that the epoch keeps, their order, and the position in it.
    """

    def __init__(
        self, worker: int, shard: Indices, memory: Memory, record: PruningRecord, *, batch_size: int, seed: int
    ) -> None:
        self.memory = memory
        self.epoch = 0
        self._worker = worker
        self._shard = shard
        self._record = record
        self.batch_size = batch_size
        self._seed = seed
        self._generator = stream(seed, "batches", worker)
        self._before = stream_state(self._generator)  # state of the generator before it drew the order
        self._kept: Mask | None = None
        self._order: Indices = shard[:0]
        self._place = 0
        self._skipped = 0  # in epochs that are over

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        end = self._place + self.batch_size
        if end > len(self._order):
            self._begin()
            end = self.batch_size
        self._place = end
        return self._order[end - self.batch_size : end]

    @property
    def skipped(self) -> int:
        """Samples left out so far; of the current epoch, in proportion to the batches drawn."""
        size = self.batch_size
        there, drawn = len(self._order) // size, self._place // size
        left_out = len(self._shard) // size - there
        return self._skipped + (left_out * size * drawn // there if drawn else 0)

    def _begin(self) -> None:
        self._skipped, self._place = self.skipped, 0
        self.epoch += 1
        self._kept = self.memory.enter(self.epoch, stream(self._seed, "pruning", self._worker, self.epoch))
        self._shuffle()
        if len(self._order) < self.batch_size:
            raise ConfigError(
                f"pruning leaves worker {self._worker} {len(self._order)} of {len(self._shard)} samples, fewer than "
                f"one batch of {self.batch_size}: use fewer workers, a smaller batch, or a smaller fraction"
            )
        self._record.passes.append((self._worker, self.epoch, len(self._shard), len(self._order)))
        if self._kept is not None:
            self._record.times_pruned[self._shard[~self._kept]] += 1

    def _shuffle(self) -> None:
        self._before = stream_state(self._generator)
        places = self._generator.permutation(len(self._shard))
        self._order = self._shard[places if self._kept is None else places[self._kept[places]]]

    def state(self) -> State:
        kept = None if self._kept is None else np.packbits(self._kept)
        where = {"epoch": self.epoch, "place": self._place, "skipped": self._skipped, "before": self._before}
        return {**where, "kept": kept, "memory": self.memory.state()}

    def restore(self, state: State) -> None:
        self.epoch, self._place, self._skipped = (whole(state[name]) for name in ("epoch", "place", "skipped"))
        refill(self.memory.state(), state["memory"])
        restore_stream(self._generator, state["before"])
        if state["kept"] is not None:
            bits = np.zeros(-(-len(self._shard) // 8), dtype=np.uint8)
            refill({"kept": bits}, state)
            self._kept = np.unpackbits(bits, count=len(self._shard)).view(np.bool_)
        if self.epoch:
            self._shuffle()
        if self._place > len(self._order):
            raise ValueError(f"place {self._place} is beyond the {len(self._order)} samples of the epoch")


class PrunedShards:
    """The mini-batches of a run that prunes (``ObservesLosses``), and the record of what was left out."""

    def __init__(self, memory: Callable[[int], Memory], shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        size = 1 + max(int(shard.max()) for shard in shards)
        self.record: PruningRecord = new_record(size, stream(seed, "pruning", len(shards)))
        self._followed = np.zeros(size, dtype=np.bool_)
        self._followed[self.record.followed] = True
        self._place = np.zeros(size, dtype=np.int64)  # position of each sample in its shard
        for shard in shards:
            self._place[shard] = np.arange(len(shard))
        self._passes = [
            Passes(worker, shard, memory(len(shard)), self.record, batch_size=batch_size, seed=seed)
            for worker, shard in enumerate(shards)
        ]
        self._batches = ShardBatches(self._passes, batch_size)

    @property
    def skipped(self) -> int:
        """Samples left out so far; of current epochs, in proportion to the batches drawn."""
        return sum(passes.skipped for passes in self._passes)

    @property
    def by_losses(self) -> bool:
        """Are samples chosen by their losses, or blindly?"""
        return not all(isinstance(passes.memory, Blind) for passes in self._passes)

    def draw(self, worker: int) -> Indices:
        return self._batches.draw(worker)

    def begin_with(self, sizes: Sequence[int]) -> None:
        self._batches.begin_with(sizes)

    def put_back(self, worker: int, indices: Indices) -> None:
        self._batches.put_back(worker, indices)

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        """Observe the losses of a batch; ignore it if one of them is not finite."""
        mean = float(np.mean(losses, dtype=np.float64)) if len(losses) else float("nan")
        if not np.isfinite(mean):
            return
        passes, places = self._passes[worker], self._place[indices]
        standing_out = passes.memory.observe(places, losses, mean)
        passes.memory.count(places, standing_out)
        self.record.times_stood_out[indices] += standing_out
        if (followed := self._followed[indices]).any():
            self.record.trends += [
                (int(sample), passes.epoch, float(loss))
                for sample, loss in zip(indices[followed], losses[followed].astype(np.float32), strict=True)
            ]

    def state(self) -> State:
        return {"batches": self._batches.state(), "record": self.record.arrays()}

    def restore(self, state: State) -> None:
        self._batches.restore(state["batches"])
        self.record.restore(state["record"])


def pruned_shards(batches: Batches) -> PrunedShards | None:
    """The ``PrunedShards`` inside the mini-batches of a run, or None if it does not prune."""
    while isinstance(batches, ReassigningBatches):
        batches = batches.inner
    return batches if isinstance(batches, PrunedShards) else None
