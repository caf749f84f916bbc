"""One actor, as the roster sees a process."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from paceline.fleets.ray.actor import Greeting
from paceline.fleets.ray.connection import Handle, kill_on

PLACE_WITHIN = 60.0  # seconds
NEVER_MET = -1  # instead of a process's number


class Hand:
    """An actor from the moment when it is asked for."""

    def __init__(
        self, handle: Handle, at_first: float, *, has_place: Callable[[], bool], keep: Callable[[Handle], bool]
    ) -> None:
        self.handle = handle
        self._has_place = has_place
        self._keep = keep
        self._whole = False  # could it work for another run?
        self.sentinel = os.eventfd(0)
        self.pid = 0
        self._pidfd = -1  # of a process on this machine
        self.over = False  # nobody cares any more
        self._greeting: Greeting | None = None
        self._at_first = at_first
        self._asked = time.monotonic()
        self._since: float | None = None  # when it had a place, or told so
        self._why = ""
        self._lock = threading.Lock()  # the sentinel is not closed while it is written to

    def meet(self, greeting: Greeting) -> None:
        """It has a place, and told where."""
        if greeting.near:
            with suppress(OSError):  # gone already
                self._pidfd = os.pidfd_open(greeting.pid)
        self._greeting, self._since, self.pid = greeting, time.monotonic(), greeting.pid

    def gone(self, why: str) -> None:
        """It has ended, or must be taken to have."""
        with self._lock:
            if not self.over and not self._why:
                self._why = why
                self.pid = self.pid or NEVER_MET
                os.eventfd_write(self.sentinel, 1)

    def has_ended(self) -> bool:
        return bool(self._why)

    def done(self) -> None:
        """It has ended as it should."""
        self._whole = True
        self.gone("ended")

    @property
    def start_limit(self) -> float:
        """For ever until it has a place; then as long as a worker without a past has."""
        if self._since is None and self._has_place():
            self._since = time.monotonic()
        return float("inf") if self._since is None else self._since - self._asked + self._at_first

    @property
    def patience(self) -> float:
        """A worker that finds no place is after some time no longer counted on; it is still welcome."""
        return PLACE_WITHIN if self._greeting is None and not self._has_place() else float("inf")

    def kill(self) -> None:
        """At once, even if it is stopped."""
        self._whole = False
        self.handle.kill()
        if self._greeting is None:
            return
        if self._greeting.near:
            self._kill_here()
        else:
            kill_on(self._greeting.node, self.pid)
            self.gone("was killed")

    def _kill_here(self) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def ends_by(self, until: float) -> bool:
        return bool(select.select([self.sentinel], [], [], max(0.0, until - time.monotonic()))[0])

    def end(self) -> str:
        if not self._why:
            self.ends_by(time.monotonic() + 5.0)
        with self._lock:
            self.over = True
            os.close(self.sentinel)
        if not (self._whole and self._keep(self.handle)):
            self.handle.kill()  # its place is free only then
            self._kill_here()  # one that has closed its descriptors cannot be told, and would stay
        if self._pidfd >= 0:
            os.close(self._pidfd)
        where = f" on {self._greeting.host}" if self._greeting is not None else ""
        return f"{self._why or 'was lost'}{where}"
