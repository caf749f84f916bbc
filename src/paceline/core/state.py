"""The ledger as the coordinator keeps it: the indices of the whole, and of each of its parts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.core.codec import whole
from paceline.core.errors import IllegalDecision
from paceline.core.indices import LedgerIndices
from paceline.core.messages import Groups
from paceline.core.speeds import Speeds


class LedgerState(LedgerIndices):
    """A ``Ledger`` that can be written: strategies see the former only. The verbs check nothing; the rules did.

    is_split    whether it has parts
    touched     the numbers of the parts that something happened to since the strategy was asked
    part_of     worker -> the number of its part; a worker that is not named belongs to the last one
    moving      worker -> the part that it joins when what it runs has ended
    speeds      what the parts that it is split into measure of the workers, if anything
    """

    __slots__ = ("_parts", "groups", "is_split", "moving", "part_of", "speeds", "touched")

    def __init__(self, sizes: dict[int, int] | None = None, *, part: bool = False) -> None:
        super().__init__(sizes, part=part)
        self.groups: Groups = ()
        self.is_split = False
        self.touched: dict[int, None] = {}
        self.moving: dict[int, int] = {}
        self.speeds: Speeds | None = None
        self.part_of: dict[int, int] = {}
        self._parts: tuple[LedgerState, ...] = ()

    def resize(self, sizes: Mapping[int, int]) -> None:
        """Give workers other sizes. What was measured of those whose size changes is forgotten, in all parts."""
        before = dict(self._sizes)
        self._sizes.clear()
        self._sizes.update(sizes)
        for ledger in self.walk():
            own = ledger.timing if ledger is self else None  # a part's are those of the ledger that it is a part of
            for speeds in (each for each in (ledger.speeds, own) if each is not None):
                for worker in {**before, **sizes}:
                    if before.get(worker) != sizes.get(worker):
                        speeds.resize(worker, before.get(worker, 0), sizes.get(worker, 0))

    def ring(self, at: float) -> None:
        """Let the alarms up to a time ring, in all parts."""
        self.now = at
        for alarm in [alarm for alarm in self._alarms if alarm <= at]:
            del self._alarms[alarm]
        for number, part in enumerate(self._parts):
            self.touched[number] = None
            part.ring(at)

    def mark_asked(self) -> None:
        """Note that the strategy was asked about every touched part."""
        parts = self._parts
        for number in self.touched:
            if parts[number].touched:
                parts[number].mark_asked()
        self.touched.clear()
        if self.speeds is not None and self.speeds.news >= len(self._workers):
            self.speeds.news = 0

    # Parts: a part of a ledger is a ledger.

    def split(self, groups: Groups, *, window: int = 0) -> Sequence[tuple[int, "LedgerState"]]:
        if groups is not self.groups and groups != self.groups:
            self._make_parts(groups, window)
        parts = self._parts
        return [(number, parts[number]) for number in self.touched]

    @property
    def seconds(self) -> Mapping[int, float]:
        speeds = self.speeds
        return dict(speeds) if speeds is not None and speeds.news >= len(self._workers) else {}

    @property
    def former_seconds(self) -> Mapping[int, tuple[int, float]]:
        return {} if self.speeds is None else self.speeds.former

    @property
    def last_seconds(self) -> Mapping[int, Sequence[float]]:
        return {} if self.speeds is None else self.speeds.last

    def parts(self) -> tuple["LedgerState", ...]:
        return self._parts

    def part_number(self, worker: int) -> int:
        """The part that a worker belongs to, whether it is here or not."""
        return self.part_of.get(worker, len(self._parts) - 1)

    def path(self, worker: int) -> tuple["LedgerState", ...]:
        """This ledger and every part, from the outermost to the innermost, that the worker belongs to."""
        ledger = self
        path = [ledger]
        while ledger._parts:
            ledger = ledger._parts[ledger.part_number(worker)]
            path.append(ledger)
        return tuple(path)

    def walk(self) -> Iterator["LedgerState"]:
        """This ledger and all its parts, however deep."""
        yield self
        for part in self._parts:
            yield from part.walk()

    def _new_parts(self, count: int) -> tuple["LedgerState", ...]:
        parts = tuple(LedgerState(self._sizes, part=True) for _ in range(count))
        for part in parts:
            part.timing = self.speeds
        return parts

    def _make_parts(self, groups: Groups, window: int) -> None:
        if self._parts:
            raise IllegalDecision(f"cannot split by {groups}: this ledger is already split by {self.groups}")
        if self._running or self._fresh or self._late or self._kept:
            raise IllegalDecision(f"cannot split into {len(groups)} groups: split once, before any work is given out")
        self.groups = groups
        self.speeds = Speeds(window, self._sizes) if window else None
        self._parts = self._new_parts(len(groups))
        self.is_split = bool(self._parts)
        self.part_of = {worker: number for number, group in enumerate(groups) for worker in group}
        for number in sorted({self.part_number(worker) for worker in self._workers}):
            self.touched[number] = None
        for worker in self._workers:
            part = self._parts[self.part_number(worker)]
            part.now = self.now
            part.join(worker)
            if worker in self._leaving:
                part.announce(worker, self._leaving[worker])

    # From one split to another, ticket by ticket: no ticket ever changes its part. What a worker runs or has handed in
    # stays in the part that gave it out, and is used there. The worker itself leaves that part when it has nothing
    # running, and joins its new one at the same instant: to the rules inside, one worker left and one joined.

    def regroup(self, groups: Groups) -> None:
        """Make the groups the parts of this split ledger. Who runs something moves when that has ended."""
        was = {worker: self.part_number(worker) for worker in self._workers}
        self.groups = groups
        self._parts += self._new_parts(len(groups) - len(self._parts))
        self.part_of = {worker: number for number, group in enumerate(groups) for worker in group}
        self.moving.clear()
        for worker, part in was.items():
            now = self.part_number(worker)
            if now == part:
                continue
            self.part_of[worker] = part
            self.moving[worker] = now
            if worker not in self._running:
                self.move(worker)

    def move(self, worker: int) -> bool:
        """Let a worker that runs nothing join the part that it is to move to, if there is one. Returns whether."""
        number = self.moving.pop(worker, None)
        if number is None:
            return False
        here = worker in self._workers
        if here:
            for part in self._touch_inside(worker):
                part.leave(worker)
        self.part_of[worker] = number
        if here:
            for part in self._touch_inside(worker):
                part.join(worker)
                if worker in self._leaving:
                    part.announce(worker, self._leaving[worker])
        return True

    def _touch_inside(self, worker: int) -> tuple["LedgerState", ...]:
        """The parts that a worker belongs to, the innermost last, all of which are to be asked."""
        self.touched[self.part_number(worker)] = None
        path = self._parts[self.part_number(worker)].path(worker)
        for part in path:
            part.now = self.now
        for part in path[:-1]:
            part.touched[part.part_number(worker)] = None
            if (number := part.moving.pop(worker, None)) is not None:
                part.part_of[worker] = number  # when it comes back
        return path

    # Between two events the whole ledger can be saved as plain values, and restored.

    def state(self, *, own_timing: bool = True) -> dict[str, Any]:
        return {
            **super().state(own_timing=own_timing),
            "_groups": [list(group) for group in self.groups],
            "moving": [[worker, self.part_number(worker), part] for worker, part in self.moving.items()],
            "pace": None if self.speeds is None else self.speeds.state(),
            "parts": [part.state(own_timing=self.speeds is None) for part in self._parts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.groups = tuple(tuple(whole(worker) for worker in group) for group in state["_groups"])
        self.part_of = {worker: number for number, group in enumerate(self.groups) for worker in group}
        for worker, now, then in state.get("moving", ()):
            self.part_of[whole(worker)], self.moving[worker] = whole(now), whole(then)
        self.speeds = Speeds.from_state(state["pace"], self._sizes) if state.get("pace") else None
        self._parts = self._new_parts(len(self.groups))
        self.is_split = bool(self._parts)
        for part, each in zip(self._parts, state["parts"], strict=True):
            part.restore(each)
