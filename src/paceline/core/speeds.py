"""How long workers take, as far as it was seen: for rules that go by measured speeds."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from statistics import median
from types import MappingProxyType
from typing import Any

from paceline.core.codec import real, whole
from paceline.core.messages import Ticket


class Speeds(Mapping[int, float]):
    """Worker -> the median of what its last ``window`` pieces of work took for a mini-batch, of those who did so many.

    A piece lasts from the hand-out to the arrival; local steps take a mini-batch each. Reading one worker's costs the
    same in every fleet.

    A piece of which only some units came counts as if the others had taken as long each; one without any, or
    that took no time, is not counted, nor is one of another size than the worker has now (``sizes``). ``news`` are the
    pieces since somebody looked. ``last`` are these pieces, and ``former`` has what mini-batches of another size took.
    """

    __slots__ = ("_began", "_last", "_sizes", "former", "last", "news", "window")

    def __init__(self, window: int, sizes: Mapping[int, int]) -> None:
        self.window = window
        self._sizes = sizes
        self.news = 0
        self._began: dict[int, float] = {}
        self._last: dict[int, deque[float]] = {}
        self.last: Mapping[int, Sequence[float]] = MappingProxyType(self._last)
        self.former: dict[int, tuple[int, float]] = {}

    def begin(self, worker: int, at: float) -> None:
        self._began[worker] = at

    def end(self, ticket: Ticket, at: float, done: int) -> None:
        began = self._began.pop(ticket.worker)
        if done and at > began and ticket.work.samples == self._sizes.get(ticket.worker, 0):
            if (last := self._last.get(ticket.worker)) is None:
                last = self._last[ticket.worker] = deque(maxlen=self.window)
            last.append((at - began) * ticket.work.units / done / ticket.work.mini_batches)
            self.news += 1

    def cut(self, worker: int) -> None:
        """What it ran was stopped."""
        del self._began[worker]

    def resize(self, worker: int, before: int, now: int) -> None:
        """What it took so far is of another size. Of two of them the one is kept that differs more from the new one."""
        last = self._last.pop(worker, ())
        if len(last) == self.window and before and now:
            former = self.former.get(worker)
            if former is None or _apart(before, now) >= _apart(former[0], now):
                self.former[worker] = before, median(last)

    def __getitem__(self, worker: int) -> float:
        last = self._last[worker]
        if len(last) < self.window:
            raise KeyError(worker)
        return median(last)

    def __iter__(self) -> Iterator[int]:
        return (worker for worker, last in self._last.items() if len(last) == self.window)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def timed(self) -> Set[int]:
        """The workers that are at work."""
        return self._began.keys()

    def state(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "news": self.news,
            "began": [[worker, at] for worker, at in self._began.items()],
            "last": [[worker, list(last)] for worker, last in self._last.items()],
            **({"former": [[w, size, seconds] for w, (size, seconds) in self.former.items()]} if self.former else {}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], sizes: Mapping[int, int]) -> "Speeds":
        speeds = cls(whole(state["window"]), sizes)
        speeds.news = whole(state["news"])
        speeds._began.update((whole(worker), real(at)) for worker, at in state["began"])
        for worker, last in state["last"]:
            speeds._last[whole(worker)] = deque(map(real, last), maxlen=speeds.window)
        speeds.former.update((whole(w), (whole(size), real(seconds))) for w, size, seconds in state.get("former", ()))
        return speeds


def _apart(one: int, other: int) -> float:
    return max(one, other) / min(one, other)
