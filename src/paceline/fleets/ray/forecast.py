"""Which sums the server is going to ask a machine for, told by those that it has asked for before.

Most rules step on the same tickets again and again: on all workers of a machine, on a group, on a single gradient.
What is expected is sent with the orders; the machine then sends the sum along with the news of the last arrival, and
an update needs no call of its own for it. A sum that was expected and is not wanted is not used: what is used is always
what would have been asked for, to the bit.

Other rules step on other tickets every time, such as the fastest. Where their sums cannot be foreseen, and gradients
are small, each gradient is sent along with its own arrival, and the server adds them up itself.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.fleets.processes.channel import Order
from paceline.fleets.ray.messages import Expected, Sum
from paceline.fleets.ray.wire import Bytes
from paceline.learning.gradients.held import Parts

SURE = 2  # so many times the same before it is expected
PATTERNS = 16  # are remembered, the latest
LATEST, UNFORESEEN = 16, 7  # if so many of the latest sums were not foreseen, gradients are sent along


class Pattern(NamedTuple):
    """A sum that was asked for."""

    parts: Parts
    ends: tuple[int, ...]
    times: int  # in a row


class Received(NamedTuple):
    """A sum that came without being asked for."""

    expected: Expected
    row: Bytes
    ends: Sequence[Bytes]


class SumForecast:
    """Of one machine. ``first_row`` is the slot of row 0. ``small``: gradients may be sent along one by one."""

    def __init__(self, first_row: int, *, small: bool = False) -> None:
        self._first_row = first_row
        self._small = small
        self._foreseen: deque[bool] = deque(maxlen=LATEST)  # were the latest sums?
        self.sends_rows = False  # every gradient is sent along with its arrival; that stays so
        self._rows: dict[int, Received] = {}  # gradients that came along, by slot
        self._single = 0  # how many sums in a row were of one whole row
        self._patterns: dict[frozenset[int], Pattern] = {}  # by slots
        self._received: dict[int, Received] = {}  # by each of its slots
        self._serials: dict[int, int] = {}  # of the tickets that were handed in last, by slot

    @property
    def is_active(self) -> bool:
        """Whether sums are to be expected now."""
        return self.sends_rows or self._single >= SURE or any(each.times >= SURE for each in self._patterns.values())

    def note(self, parts: Parts, ends: Sequence[int]) -> None:
        """The server has asked for a sum."""
        self._single = self._single + 1 if is_whole(parts) else 0
        slots = frozenset(row + self._first_row for row, _ in parts)
        before = self._patterns.pop(slots, None)
        same = before is not None and (before.parts, before.ends) == (parts, tuple(ends))
        self._patterns[slots] = Pattern(parts, tuple(ends), before.times + 1 if before is not None and same else 1)
        if len(self._patterns) > PATTERNS:
            del self._patterns[next(iter(self._patterns))]

    def of(self, orders: Sequence[Order]) -> list[Expected]:
        """The sums of tickets that are sent now which will be asked for."""
        serials = {order.slot: order.serial for order in orders}
        if self.sends_rows or self._single >= SURE:
            return [
                Expected(((slot - self._first_row, 1.0),), (slot,), ((slot, serial),))
                for slot, serial in serials.items()
            ]
        return [
            Expected(each.parts, each.ends, tuple((slot, serials[slot]) for slot in sorted(slots)))
            for slots, each in self._patterns.items()
            if each.times >= SURE and slots <= serials.keys()
        ]

    def handed_in(self, slot: int, serial: int) -> None:
        """A slot has another gradient: a sum of the one before was not wanted."""
        self._serials[slot] = serial
        self._rows.pop(slot, None)
        unused = self._received.get(slot)
        if unused is not None:
            self._remove(unused)
            self._single = 0
            self._patterns.pop(frozenset(slot for slot, _ in unused.expected.tickets), None)

    def receive(self, found: Sum, row: Bytes) -> None:
        """A sum came, with the result that completes it. It counts if all tickets in it were handed in."""
        if any(self._serials.get(slot) != serial for slot, serial in found.expected.tickets):
            return  # one was halted, and its slot may have been written to since
        received = Received(found.expected, row, found.ends)
        if self.sends_rows and is_whole(found.expected.parts):
            self._rows[found.expected.tickets[0][0]] = received
            return
        for slot, _ in found.expected.tickets:
            self._received[slot] = received

    def take(self, parts: Parts, ends: Sequence[int]) -> Received | None:
        """A sum that is asked for, if it is here."""
        found = self._received.get(parts[0][0] + self._first_row) if parts else None
        foreseen = found is not None and (found.expected.parts, found.expected.ends) == (parts, tuple(ends))
        self._foreseen.append(foreseen)
        self.sends_rows |= self._small and self._foreseen.count(False) >= UNFORESEEN
        if found is None or not foreseen:
            return None
        self._remove(found)
        return found

    def rows(self, parts: Parts, ends: Sequence[int]) -> Mapping[int, Received] | None:
        """The gradients of a sum and what else is wanted, by slot, if all of them came along. They stay here."""
        wanted = {*(row + self._first_row for row, _ in parts), *ends}
        return self._rows if wanted <= self._rows.keys() else None

    def _remove(self, received: Received) -> None:
        for slot, _ in received.expected.tickets:
            self._received.pop(slot, None)

    def clear(self) -> None:
        """The machine is lost."""
        self._received.clear()
        self._serials.clear()
        self._rows.clear()


def is_whole(parts: Parts) -> bool:
    """Whether a sum is a single gradient as it is."""
    return len(parts) == 1 and parts[0][1] == 1.0
