"""Workers that draw the same mini-batches: replicas of each other, of which one answer is enough."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.messages import Groups
from paceline.core.stateful import State, check_stateful
from paceline.data.batches import Batches, ObservesLosses
from paceline.data.partition import Indices


@runtime_checkable
class ObservesUse(Batches, Protocol):
    """Batches that depend on which mini-batches an update has used."""

    def used(self, worker: int) -> None:
        """Report that an update has used the last mini-batch of a worker."""
        ...


class ReplicaBatches:
    """Lets the workers of a group draw one mini-batch until an update has used it.

    The mini-batches are those of ``batches``, in which each group is one worker: the first group is worker 0. A
    mini-batch that all who drew it put back is drawn again; one that was used is not, whatever the others do with it.
    """

    def __init__(self, batches: Batches, groups: Groups) -> None:
        if isinstance(batches, ObservesLosses):
            raise ConfigError(
                f"replicas cannot draw from {type(batches).__name__}, which chooses samples by their losses: use "
                "sampling=Shuffled() or Resampled()"
            )
        self._batches = batches
        self._group_of = {worker: number for number, group in enumerate(groups) for worker in group}
        self._present: dict[int, Indices] = {}  # group -> the mini-batch that it is at
        self._drawn: dict[int, set[int]] = {}  # group -> who computes it

    def draw(self, worker: int) -> Indices:
        group = self._group_of[worker]
        if group not in self._present:
            self._present[group] = self._batches.draw(group)
        self._drawn.setdefault(group, set()).add(worker)
        return self._present[group]

    def put_back(self, worker: int, indices: Indices) -> None:
        group = self._group_of[worker]
        own = self._drawn.get(group, set())
        if worker in own:
            own.remove(worker)
            if not own:
                self._batches.put_back(group, self._present.pop(group))

    def used(self, worker: int) -> None:
        group = self._group_of[worker]
        self._present.pop(group, None)
        self._drawn.pop(group, None)

    def state(self) -> State:
        inner = check_stateful({"sampling": self._batches})["sampling"]
        present = [[group, indices, sorted(self._drawn.get(group, ()))] for group, indices in self._present.items()]
        return {"batches": inner.state(), "present": present}

    def restore(self, state: State) -> None:
        check_stateful({"sampling": self._batches})["sampling"].restore(state["batches"])
        for group, indices, drawn in state["present"]:
            self._present[whole(group)] = np.asarray(indices, dtype=np.int64)
            self._drawn[group] = {whole(worker) for worker in drawn}
            if any(self._group_of.get(worker) != group for worker in drawn):
                raise ValueError(f"somebody computes the mini-batch of group {group} that is not in it")


def shared_shards(shards: Sequence[Indices], groups: Groups) -> Sequence[Indices]:
    """The shard of each worker, where each group has one."""
    of_worker: Mapping[int, Indices] = {
        worker: shard for shard, group in zip(shards, groups, strict=True) for worker in group
    }
    return [of_worker[worker] for worker in sorted(of_worker)]
