"""What becomes of a worker's shard when the worker is lost: it waits for a replacement, or others take it over."""

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
    """Those who are here take turns through their own shards and those of workers that left.

    Each such shard goes to whoever then has the fewest, and back to its worker when that one (or its replacement) joins
    again. Without this, a shard waits. What is drawn from a shard follows the same ``sampling`` whoever draws it.
    """

    sampling: Sampling = Shuffled()

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ReassigningBatches(self.sampling.open(shards, batch_size, seed), shards)


class ReassigningBatches:
    """Mini-batches of shards that may change hands."""

    def __init__(self, batches: Batches, shards: Sequence[Indices]) -> None:
        self.inner = batches
        self._watchful = batches if isinstance(batches, ObservesLosses) else None
        self._home = np.zeros(max((int(shard.max()) for shard in shards if len(shard)), default=0) + 1, dtype=np.int64)
        for worker, shard in enumerate(shards):
            self._home[shard] = worker
        self._hands: dict[int, deque[int]] = {worker: deque([worker]) for worker in range(len(shards))}
        self._waiting: list[int] = []  # shards that nobody is here for

    def left(self, worker: int) -> None:
        """Hand its shards on."""
        self._waiting += self._hands.pop(worker, ())
        self._hand_out()

    def joined(self, worker: int) -> None:
        """Give its shard back."""
        for held in (*self._hands.values(), self._waiting):
            if worker in held:
                held.remove(worker)
        self._hands[worker] = deque([worker])
        self._hand_out()

    def _hand_out(self) -> None:
        while self._hands and self._waiting:
            fewest = min(sorted(self._hands), key=lambda worker: len(self._hands[worker]))
            self._hands[fewest].append(self._waiting.pop(0))

    def draw(self, worker: int) -> Indices:
        shards = self._hands.get(worker)
        if not shards:
            return self.inner.draw(worker)
        shards.rotate(-1)
        return self.inner.draw(shards[-1])

    def put_back(self, worker: int, indices: Indices) -> None:
        homes = self._home[indices]
        for home in np.unique(homes).tolist():
            self.inner.put_back(home, indices[homes == home])

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        if self._watchful is not None:
            homes = self._home[indices]
            for home in np.unique(homes).tolist():
                self._watchful.observe(home, indices[homes == home], losses[homes == home])

    def state(self) -> State:
        inner = check_stateful({"sampling": self.inner})["sampling"]
        hands = [[worker, list(shards)] for worker, shards in self._hands.items()]
        return {"inner": inner.state(), "hands": hands, "waiting": self._waiting}

    def restore(self, state: State) -> None:
        check_stateful({"sampling": self.inner})["sampling"].restore(state["inner"])
        self._hands = {whole(worker): deque(map(whole, shards)) for worker, shards in state["hands"]}
        self._waiting = [whole(shard) for shard in state["waiting"]]
