"""How long workers take, as far as it was seen: for rules that go by measured speeds."""

from collections import deque
from collections.abc import Mapping, Set
from statistics import median
from typing import Any

from paceline.core.codec import real, whole
from paceline.core.messages import Ticket


class Speeds:
    """What each worker took for its last ``window`` pieces of work, from the hand-out to the arrival.

    A piece of which only some units came counts as if the others had taken as long each; one without any, or
    that took no time, is not counted. ``news`` are the pieces since somebody looked.
    """

    __slots__ = ("_began", "_last", "news", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.news = 0
        self._began: dict[int, float] = {}
        self._last: dict[int, deque[float]] = {}

    def begin(self, worker: int, at: float) -> None:
        self._began[worker] = at

    def end(self, ticket: Ticket, at: float, done: int) -> None:
        began = self._began.pop(ticket.worker)
        if done and at > began:
            if (last := self._last.get(ticket.worker)) is None:
                last = self._last[ticket.worker] = deque(maxlen=self.window)
            last.append((at - began) * ticket.work.units / done)
            self.news += 1

    def cut(self, worker: int) -> None:
        """What it ran was stopped."""
        del self._began[worker]

    def seconds(self) -> Mapping[int, float]:
        """The median of the last ``window`` pieces, of each worker that did so many."""
        return {worker: median(last) for worker, last in self._last.items() if len(last) == self.window}

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
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Speeds":
        speeds = cls(whole(state["window"]))
        speeds.news = whole(state["news"])
        speeds._began.update((whole(worker), real(at)) for worker, at in state["began"])
        for worker, last in state["last"]:
            speeds._last[whole(worker)] = deque(map(real, last), maxlen=speeds.window)
        return speeds
