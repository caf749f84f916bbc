"""The server's side of the channel to a worker of another machine."""

from typing import TYPE_CHECKING

from paceline.fleets.processes.channel import Order
from paceline.learning.arena.arena import EMPTY_REPORT

if TYPE_CHECKING:
    from paceline.fleets.ray.client import AgentClient


class AgentChannel:
    """Orders go to the agent of the worker's machine; what the worker has told last is kept here."""

    def __init__(self, client: "AgentClient", worker: int) -> None:
        self.last_received = 0
        self.last_heartbeat = 0
        self.reported = EMPTY_REPORT
        self.seconds = 0.0
        self.error = ""
        self.order: Order | None = None  # until its result is here
        self._client = client
        self._worker = worker

    def send(self, order: Order) -> None:
        self.order = order
        self._client.order(self._worker, order)

    def notify(self) -> None:
        """Orders of a machine are sent together: by ``AgentClient.flush``."""

    def halt(self, serial: int) -> None:
        self.order = None
        if not self._client.withdraw(self._worker, serial):
            self._client.control("halt", self._worker, serial)

    def recall(self, serial: int) -> None:
        self._client.control("recall", self._worker, serial)

    def quit(self) -> None:
        self._client.control("quit", self._worker)

    def reset(self) -> None:
        """The next process gets another channel."""
