"""Pruning under every strategy of Paceline: each worker prunes its own shard, by losses that come with its gradients.

A worker's epochs are its own passes through its shard. In whole epochs it draws exactly the mini-batches that
``Shuffled`` would give it; in pruned ones the same order without what is left out. An incomplete last batch is dropped.
A gradient may be used after its worker has begun the next epoch; its losses then count towards that one.
"""

from collections.abc import Callable, Sequence

import numpy as np

from paceline.core.stateful import State
from paceline.data.batches import Batches, Losses, ShardBatches
from paceline.data.partition import Indices
from paceline.data.reassign import ReassigningBatches
from paceline.pruning.memory import Memory
from paceline.pruning.passes import Passes
from paceline.pruning.record import PruningRecord, new_record
from paceline.randomness import stream


class PrunedShards:
    """The mini-batches of one run (``ObservesLosses``), and how many samples were skipped."""

    def __init__(self, memory: Callable[[int], Memory], shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        size = 1 + max(int(shard.max()) for shard in shards)
        self.record: PruningRecord = new_record(size, stream(seed, "pruning", len(shards)))
        self._followed = np.zeros(size, dtype=np.bool_)
        self._followed[self.record.followed] = True
        self._place = np.zeros(size, dtype=np.int64)  # of each sample in its shard
        for shard in shards:
            self._place[shard] = np.arange(len(shard))
        self._passes = [
            Passes(worker, shard, memory(len(shard)), self.record, batch_size=batch_size, seed=seed)
            for worker, shard in enumerate(shards)
        ]
        self._batches = ShardBatches(self._passes, batch_size)

    @property
    def skipped(self) -> int:
        """Samples left out so far: of an epoch that is under way, in proportion to the batches drawn."""
        return sum(passes.skipped for passes in self._passes)

    def draw(self, worker: int) -> Indices:
        return self._batches.draw(worker)

    def put_back(self, worker: int, indices: Indices) -> None:
        self._batches.put_back(worker, indices)

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        """Take note of losses; those of a batch in which one is not finite tell nothing and are left out."""
        mean = float(np.mean(losses, dtype=np.float64)) if len(losses) else float("nan")
        if not np.isfinite(mean):
            return
        passes, places = self._passes[worker], self._place[indices]
        standing_out = passes.memory.judge(places, losses, mean)
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
    """Those behind the mini-batches of a run, if it prunes."""
    while isinstance(batches, ReassigningBatches):
        batches = batches.inner
    return batches if isinstance(batches, PrunedShards) else None
