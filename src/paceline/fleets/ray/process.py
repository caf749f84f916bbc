"""A worker's process on another machine, as the supervisor of a run sees it."""

import os
import threading
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from paceline.fleets.ray.messages import AgentInfo

if TYPE_CHECKING:
    from paceline.fleets.ray.client import AgentClient
    from paceline.fleets.ray.machine import ServerSide

EXPECTED_FOR = 60.0  # seconds for which a worker whose machine finds no free resources counts as on its way
ENDED_WITHIN = 5.0  # seconds that a process may take to end once it is killed
UNKNOWN_PID = -1


class RemoteProcess:
    """A worker's process on another machine, as the supervisor sees it, from the moment when it is asked for."""

    def __init__(self, client: "AgentClient", worker: int, start: int, common: "ServerSide") -> None:
        self.start = start  # counts the processes of its machine
        self.sentinel = os.eventfd(0)
        self.pid = 0
        self._client = client
        self._worker = worker
        self._at_first = common.at_first
        self._info: AgentInfo | None = None
        self._requested_at = time.monotonic()
        self._placed_at: float | None = None
        self._released = False  # the supervisor has reaped it
        self._reason = ""  # how it ended
        self._lock = threading.Lock()  # the sentinel is not closed while another thread writes to it

    def placed(self, info: AgentInfo) -> None:
        """Its machine's agent has told where it runs."""
        self._info, self._placed_at = info, time.monotonic()

    def ended(self, reason: str) -> None:
        """It has ended, or must be assumed to have."""
        with self._lock:
            if not self._released and not self._reason:
                self._reason = reason
                self.pid = self.pid or UNKNOWN_PID
                os.eventfd_write(self.sentinel, 1)

    def has_ended(self) -> bool:
        return bool(self._reason)

    @property
    def start_timeout(self) -> float:
        """Unlimited while it waits for resources; then as long as a worker's first ticket may take."""
        if self._placed_at is None and self._client.has_place():
            self._placed_at = time.monotonic()
        return float("inf") if self._placed_at is None else self._placed_at - self._requested_at + self._at_first

    @property
    def expected_for(self) -> float:
        """Limited while it waits for resources. It may still join later."""
        return EXPECTED_FOR if self._info is None and not self._client.has_place() else float("inf")

    def kill(self) -> None:
        self._client.kill(self._worker)
        self.ended("was killed")

    def wait(self, until: float) -> bool:
        """Wait for the end, until a time of ``time.monotonic``."""
        return bool(wait([self.sentinel], max(0.0, until - time.monotonic())))

    def reap(self) -> str:
        """Wait for the end, and return how it ended."""
        if not self._reason:
            self.wait(time.monotonic() + ENDED_WITHIN)
        with self._lock:
            self._released = True
            os.close(self.sentinel)
        where = f" on {self._info.host}" if self._info is not None else ""
        return f"{self._reason or 'was lost'}{where}"
