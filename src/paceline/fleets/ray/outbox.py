"""What an agent has to tell the server, until a call of the server takes it along.

A call that brings orders waits at the agent for something to tell, so one call takes orders there and news back. One
that brings weights through the object store returns at once, since they stay there as long as it runs, and others wait.
Several may wait at once, so that large sums travel side by side. A sum that the server is sure to ask for, as it has
asked for the same one before, comes with the news of the last gradient in it.
"""

import threading
import time
from collections.abc import Callable, Sequence

from paceline.fleets.ray.messages import Expected, Message, Result, Sum
from paceline.fleets.ray.wire import CHUNK

LINGER = 0.002  # seconds that news wait for the rest of a sum that the server expects,
SHARE = 0.1  # or this share of the time since its tickets were given out


class Outbox:
    """Messages in the order in which they came, and the sums that are to go with them.

    size  bytes of a sum
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._since = 0.0  # when the first of them came
        self._expected: dict[tuple[int, int], _Awaited] = {}  # by slot and serial number
        self._waiting = 0
        self._open = True

    def expect(self, expected: Expected) -> None:
        """Tell a sum as soon as all tickets in it are handed in."""
        with self._changed:
            for slot, _ in expected.tickets:  # what was expected of an earlier ticket with this slot will not come
                for key in [key for key in self._expected if key[0] == slot]:
                    self._forget(self._expected[key])
            awaited = _Awaited(expected)
            for ticket in expected.tickets:
                self._expected[ticket] = awaited

    def tell(self, messages: Sequence[Message]) -> None:
        with self._changed:
            if not self._messages:
                self._since = time.monotonic()
            self._messages += messages
            self._changed.notify_all()

    def completed(self, result: Result, slot: int) -> Result:
        """What is to be told of a ticket that was handed in: its result, with the sum that it completes."""
        with self._changed:
            awaited = self._expected.pop((slot, result.serial), None)
            if awaited is None:
                return result
            awaited.missing -= 1
            return result if awaited.missing else result._replace(sum=Sum(awaited.expected))

    def take(self, *, waiting: int, rows: int) -> list[Message]:
        """What there is to tell; waits for it, unless so many calls wait already. At most so many sums at once."""
        with self._changed:
            if self._waiting < waiting or self._messages:
                self._waiting += 1
                while not self._messages and self._open:
                    self._changed.wait()
                self._linger()
                self._waiting -= 1
            end = self._at_once(rows)
            found, self._messages = self._messages[:end], self._messages[end:]
            if self._messages:
                self._changed.notify_all()
        return found

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that ``notify`` announces."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or not self._open)

    def notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _linger(self) -> None:
        """Wait a little longer for the rest of a sum: then all of it is told at once."""
        while self._messages and self._open and (left := self._patience() - time.monotonic()) > 0:
            self._changed.wait(left)

    def _patience(self) -> float:
        """Until when news wait: for sums of which a part is here, and the rest is not."""
        partial = [each.began for each in self._expected.values() if each.missing < len(each.expected.tickets)]
        return self._since + max(LINGER, SHARE * (self._since - min(partial))) if partial else 0.0

    def _forget(self, awaited: "_Awaited") -> None:
        for ticket in awaited.expected.tickets:
            self._expected.pop(ticket, None)

    def _at_once(self, rows: int) -> int:
        """How many messages go together: as many as fit a call besides so many sums, or one that is large."""
        total = 0
        for number, message in enumerate(self._messages):
            if isinstance(message, Result):
                if message.sum is not None and rows:
                    rows -= 1
                elif message.sum is not None:
                    total += self._size
                elif message.row is not None:
                    total += message.row.nbytes
            if total > CHUNK and number:
                return number
        return len(self._messages)


class _Awaited:
    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.began = time.monotonic()
        self.missing = len(expected.tickets)
