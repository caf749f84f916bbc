"""One thread through which everything comes that is not shared memory: answers of Ray, and connections of workers.

Ray tells of answers in threads of its own, in which nothing may wait. They only leave a note here; the notes are acted
on one after the other. So what concerns one worker happens in order, and nobody has to lock anything.
"""

import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("paceline")


class Switchboard:
    """Acts on what comes in, one after the other, until it is closed."""

    def __init__(self) -> None:
        self._notes: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0)
        self._waking = threading.Lock()  # the descriptor is not closed while somebody writes to it
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, self._take_notes)
        self._thread = threading.Thread(target=self._run, name="paceline-ray", daemon=True)
        self._thread.start()

    def note(self, action: Callable[[], None]) -> None:
        """Have something done soon; from any thread. Too late, it is not done at all."""
        self._notes.append(action)
        with self._waking:
            if self._open:
                os.eventfd_write(self._wake, 1)

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        """Act whenever a descriptor becomes readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def settle(self) -> None:
        """Wait until everything is done that was noted so far."""
        settled = threading.Event()
        self.note(settled.set)
        settled.wait()

    def close(self) -> None:
        self.note(self._end)
        self._thread.join()
        self._selector.close()

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                self._act(key.data)

    def _take_notes(self) -> None:
        os.eventfd_read(self._wake)
        while self._notes and self._open:
            self._act(self._notes.popleft())

    def _act(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # it concerns one worker: the others go on
            log.exception("something that came from a worker could not be dealt with")

    def _end(self) -> None:
        with self._waking:
            self._open = False
            os.close(self._wake)
