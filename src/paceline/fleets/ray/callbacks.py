"""One thread for all callbacks of a run."""

import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("paceline")


class CallbackThread:
    """One thread on which all callbacks of Ray and of local sockets run, one after the other.

    Ray reports results in threads of its own, in which nothing may block. They only schedule a function here. So
    everything about one worker happens in order, and needs few locks.
    """

    def __init__(self) -> None:
        self._scheduled: deque[Callable[[], None]] = deque()
        self._eventfd = os.eventfd(0)
        self._waking = threading.Lock()  # the eventfd is not closed while another thread writes to it
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._eventfd, selectors.EVENT_READ, self._run_scheduled)
        self._thread = threading.Thread(target=self._run, name="paceline-ray", daemon=True)
        self._thread.start()

    def schedule(self, action: Callable[[], None]) -> None:
        """Run a function soon; may be called from any thread. After ``close`` it is not run."""
        self._scheduled.append(action)
        with self._waking:
            if self._open:
                os.eventfd_write(self._eventfd, 1)

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        """Run a function whenever a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def drain(self) -> None:
        """Wait until everything has run that was scheduled so far."""
        drained = threading.Event()
        self.schedule(drained.set)
        drained.wait()

    def close(self) -> None:
        self.schedule(self._end)
        self._thread.join()
        self._selector.close()

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                self._call(key.data)

    def _run_scheduled(self) -> None:
        os.eventfd_read(self._eventfd)
        while self._scheduled and self._open:
            self._call(self._scheduled.popleft())

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # it concerns one worker: the others continue
            log.exception("a message of a worker could not be handled")

    def _end(self) -> None:
        with self._waking:
            self._open = False
            os.close(self._eventfd)
