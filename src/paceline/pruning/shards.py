"""Pruning under every strategy of Paceline: each worker prunes its own shard, by losses that come with its gradients.

A worker's epochs are its own passes through its shard. In whole epochs it draws exactly the mini-batches that
``Shuffled`` would give it; in pruned ones the same order without what is left out. An incomplete last batch is dropped.
A gradient may be used after its worker has begun the next epoch; its losses then count towards that one.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from paceline.core.errors import ConfigError
from paceline.pruning.memory import STANDS_OUT, UNSEEN, Memory
from paceline.pruning.record import PruningRecord, new_record
from paceline.pruning.selection import Mask
from paceline.randomness import stream
from paceline.sampling.batches import Losses, ShardBatches
from paceline.sampling.partition import Indices


class PrunedShards:
    """The mini-batches of one run (``Watchful``), and how many samples were skipped."""

    def __init__(self, memory: Callable[[int], Memory], shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        size = 1 + max(int(shard.max()) for shard in shards)
        self._shards = shards
        self._batch_size = batch_size
        self._seed = seed
        self._memories = [memory(len(shard)) for shard in shards]
        self._place = np.zeros(size, dtype=np.int64)  # of each sample in its shard
        for shard in shards:
            self._place[shard] = np.arange(len(shard))
        self._epochs = [0] * len(shards)
        self._skipped = [0] * len(shards)
        self._batches = ShardBatches([self._sequence(worker) for worker in range(len(shards))], batch_size)
        self.record: PruningRecord = new_record(size, stream(seed, "pruning", len(shards)))
        self._followed = np.zeros(size, dtype=np.bool_)
        self._followed[self.record.followed] = True

    @property
    def skipped(self) -> int:
        """Samples left out so far: of an epoch that is under way, in proportion to the batches drawn."""
        return sum(self._skipped)

    def draw(self, worker: int) -> Indices:
        return self._batches.draw(worker)

    def put_back(self, worker: int, indices: Indices) -> None:
        self._batches.put_back(worker, indices)

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        """Take note of losses; those of a batch in which one is not finite tell nothing and are left out."""
        mean = float(np.mean(losses, dtype=np.float64)) if len(losses) else float("nan")
        if not np.isfinite(mean):
            return
        memory, places = self._memories[worker], self._place[indices]
        marks = np.full(len(self._shards[worker]), UNSEEN, dtype=np.uint8)
        marks[places] = memory.judge(places, losses, mean)
        memory.close(marks)
        self.record.times_stood_out[indices] += marks[places] == STANDS_OUT
        if (followed := self._followed[indices]).any():
            epoch = self._epochs[worker]
            self.record.trends += [
                (int(sample), epoch, float(loss))
                for sample, loss in zip(indices[followed], losses[followed], strict=True)
            ]

    def _sequence(self, worker: int) -> Iterator[Indices]:
        """All mini-batches of a worker. The same stream as ``Shuffled``, used in the same way."""
        shard, size, generator = self._shards[worker], self._batch_size, stream(self._seed, "batches", worker)
        while True:
            order = generator.permutation(shard)
            kept = self._enter(worker)
            if kept is not None:
                order = order[kept[self._place[order]]]
            batches, whole = len(order) // size, len(shard) // size
            if not batches:
                raise ConfigError(
                    f"pruning leaves worker {worker} {len(order)} of {len(shard)} samples, fewer than one batch of "
                    f"{size}: use fewer workers, a smaller batch, or a smaller fraction"
                )
            before = self._skipped[worker]
            for number in range(batches):
                self._skipped[worker] = before + (whole - batches) * size * (number + 1) // batches
                yield order[number * size : (number + 1) * size]

    def _enter(self, worker: int) -> Mask | None:
        self._epochs[worker] += 1
        epoch, shard = self._epochs[worker], self._shards[worker]
        kept = self._memories[worker].enter(epoch, stream(self._seed, "pruning", worker, epoch))
        count = len(shard) if kept is None else int(kept.sum())
        self.record.passes.append((worker, epoch, len(shard), count))
        if kept is not None:
            self.record.times_pruned[shard[~kept]] += 1
        return kept
