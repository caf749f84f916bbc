"""What a recorded run sent between machines, and what its workers' time costs: counted from the trace alone.

The first line of a trace says how many workers a machine has (``workers_a_machine``), the size of a message
(``wire_bytes``), and the price of a second of each worker (``prices``), where these are known. A version of the model
goes to a machine once, when somebody there first needs it; an update takes one sum from each machine that has a part in
it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paceline.core.messages import Joined, Left, Ticket


class Traffic:
    """Counts the messages between machines: ``weights`` that were sent to them, and ``sums`` that they sent back."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._each = int(about["workers_a_machine"])
        self._bytes = int(about.get("wire_bytes", 0))
        self._newest: dict[int, int] = {}  # machine -> the version that it got last
        self.weights = 0
        self.sums = 0

    def started(self, ticket: Ticket) -> None:
        machine = ticket.worker // self._each
        if self._newest.get(machine, -1) < ticket.version:
            self._newest[machine] = ticket.version
            self.weights += 1

    def stepped(self, tickets: Iterable[Ticket]) -> None:
        self.sums += len({ticket.worker // self._each for ticket in tickets})

    @property
    def bytes(self) -> int:
        return (self.weights + self.sums) * self._bytes


class Price:
    """Adds up what the workers' time costs: from when each joins until it leaves, or the end."""

    def __init__(self, prices: Iterable[float]) -> None:
        self._prices = list(prices)
        self._paid = 0.0
        self._since: dict[int, float] = {}

    def changed(self, event: Joined | Left) -> None:
        if isinstance(event, Joined):
            self._since[event.worker] = event.at
        else:
            self._paid += (event.at - self._since.pop(event.worker)) * self._of(event.worker)

    def until(self, end: float) -> float:
        """The price of all seconds up to the end of the run."""
        return self._paid + sum(self._open(end))

    def _open(self, end: float) -> Iterator[float]:
        return ((end - since) * self._of(worker) for worker, since in self._since.items())

    def _of(self, worker: int) -> float:
        return self._prices[worker] if worker < len(self._prices) else 0.0
