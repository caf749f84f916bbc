"""``ReassignShards``: while a worker is gone, the others draw from its shard."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.codec import whole
from paceline.core.stateful import State, check_stateful
from paceline.data.batches import Batches, Losses, ObservesLosses, Sampling, Shuffled
from paceline.data.partition import Indices


@dataclass(frozen=True)
class ReassignShards:
    """The shard of a worker that left is assigned to the worker with the fewest shards.

    A worker with several shards draws from them in turn. When a worker, or its replacement, joins again, it gets its
    shard back. Without this class nobody draws from the shard meanwhile. ``sampling`` decides what is drawn from a
    shard, whichever worker draws it.
    """

    sampling: Sampling = Shuffled()

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ReassigningBatches(self.sampling.open(shards, batch_size, seed), shards)


class ReassigningBatches:
    """Mini-batches from shards that may be assigned to another worker."""

    def __init__(self, batches: Batches, shards: Sequence[Indices]) -> None:
        self.inner = batches
        self._observer = batches if isinstance(batches, ObservesLosses) else None
        self._home = np.zeros(max((int(shard.max()) for shard in shards if len(shard)), default=0) + 1, dtype=np.int64)
        for worker, shard in enumerate(shards):
            self._home[shard] = worker
        self._shards: dict[int, deque[int]] = {worker: deque([worker]) for worker in range(len(shards))}
        self._waiting: list[int] = []  # shards without a worker

    def left(self, worker: int) -> None:
        """Assign the shards of this worker to others."""
        self._waiting += self._shards.pop(worker, ())
        self._assign_waiting()

    def joined(self, worker: int) -> None:
        """Give this worker its own shard back."""
        for held in (*self._shards.values(), self._waiting):
            if worker in held:
                held.remove(worker)
        self._shards[worker] = deque([worker])
        self._assign_waiting()

    def _assign_waiting(self) -> None:
        while self._shards and self._waiting:
            fewest = min(sorted(self._shards), key=lambda worker: len(self._shards[worker]))
            self._shards[fewest].append(self._waiting.pop(0))

    def draw(self, worker: int) -> Indices:
        shards = self._shards.get(worker)
        if not shards:
            return self.inner.draw(worker)
        shards.rotate(-1)
        return self.inner.draw(shards[-1])

    def put_back(self, worker: int, indices: Indices) -> None:
        homes = self._home[indices]
        for home in np.unique(homes).tolist():
            self.inner.put_back(home, indices[homes == home])

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        if self._observer is not None:
            homes = self._home[indices]
            for home in np.unique(homes).tolist():
                self._observer.observe(home, indices[homes == home], losses[homes == home])

    def state(self) -> State:
        inner = check_stateful({"sampling": self.inner})["sampling"]
        assigned = [[worker, list(shards)] for worker, shards in self._shards.items()]
        return {"inner": inner.state(), "hands": assigned, "waiting": self._waiting}

    def restore(self, state: State) -> None:
        check_stateful({"sampling": self.inner})["sampling"].restore(state["inner"])
        self._shards = {whole(worker): deque(map(whole, shards)) for worker, shards in state["hands"]}
        self._waiting = [whole(shard) for shard in state["waiting"]]
