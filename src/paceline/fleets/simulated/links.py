r"""Links that are shared by what passes at once, and the messages that pass them.

A link of bandwidth $C$ gives each of the $n$ messages that pass it $C/n$: processor sharing (Kleinrock, 1967). With

$$V(t) = \int_0^t \frac{ds}{n(s)}, \qquad V_{\text{end}} = V_{\text{begin}} + d,$$

a message that takes $d$ ticks alone has passed when $V$ has grown by $d$ since it began, whatever came and went
meanwhile. So one heap of ends in $V$ is enough, and a message costs $\log n$.

A message passes two links at once, its sender's and its receiver's, and has arrived when both have carried all of it.
Where one of them is the narrower one all the time, this is what max-min fair sharing gives; else it is at most that.

Time is in whole ticks, $V$ in parts of a tick as whole numbers, so that nothing depends on rounding by floats.
"""

from heapq import heapify, heappop, heappush

from paceline.core.codec import whole
from paceline.core.stateful import State

PARTS = 1 << 32  # of a tick, in which V is counted


class Link:
    """One direction of a link. ``carried`` counts the messages that have passed."""

    __slots__ = ("_ends", "_grown", "_since", "carried")

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []  # (V at its end, number of the message)
        self._grown = 0  # V, counted from when the link was last empty
        self._since = 0  # the tick of that V
        self.carried = 0

    def begin(self, message: int, ticks: int, now: int) -> None:
        """A message begins to pass, which alone would take so many ticks."""
        self._advance(now)
        if not self._ends:
            self._grown = 0
        heappush(self._ends, (self._grown + ticks * PARTS, message))

    def next_end(self) -> int | None:
        """The tick at which the next message has passed, if none begins before; None if nothing passes."""
        if not self._ends:
            return None
        left = self._ends[0][0] - self._grown
        return self._since - (-left * len(self._ends) // PARTS)

    def take(self, now: int) -> list[int]:
        """The messages that have passed by now, in the order of their numbers."""
        self._advance(now)
        passed = []
        while self._ends and self._ends[0][0] <= self._grown:
            passed.append(heappop(self._ends)[1])
        self.carried += len(passed)
        return sorted(passed)

    def _advance(self, now: int) -> None:
        if self._ends:
            self._grown += (now - self._since) * PARTS // len(self._ends)
        self._since = now

    def state(self) -> State:
        return {"ends": sorted(map(list, self._ends)), "numbers": [self._grown, self._since, self.carried]}

    def restore(self, state: State) -> None:
        self._ends = [(whole(end), whole(message)) for end, message in state["ends"]]
        heapify(self._ends)
        self._grown, self._since, self.carried = map(whole, state["numbers"])
