"""Tells callbacks which workers join, leave, and are late."""

from paceline.callbacks.base import WorkerEvent
from paceline.callbacks.hooks import Hooks
from paceline.core.ledger import Ledger
from paceline.core.messages import Joined, Left, Step, Ticket


class WorkerWatch:
    """Turns what happens to workers and to their work into events for callbacks; each ticket is late at most once."""

    def __init__(self, hooks: Hooks, ledger: Ledger) -> None:
        self._hooks = hooks
        self._ledger = ledger
        self._late: dict[int, int] = {}  # worker -> serial number of its last ticket that was late
        self._updated: dict[int, int] = {}  # worker -> the last version that its work helped to update
        self._kept: frozenset[Ticket] = frozenset()

    def changed(self, event: Joined | Left) -> None:
        """A worker came or went."""
        kind = "joined" if isinstance(event, Joined) else "left"
        self._hooks.worker(WorkerEvent(kind, event.worker, event.at))  # type: ignore[arg-type]

    def given_up(self, ticket: Ticket, at: float) -> None:
        """The strategy does not wait for a ticket: it is recalled, stopped or thrown away. Its worker may be gone."""
        if ticket.worker in self._ledger.workers:
            self._tell(ticket, at)

    def stepped(self, step: Step, version: int, at: float) -> None:
        """A model version was updated. Late is what those that it is combined with had made an update without."""
        first = [ticket for ticket in step.weights if ticket not in self._kept]
        if len(first) > 1:
            before = max(self._updated.get(ticket.worker, -1) for ticket in first)
            for ticket in first:
                if ticket.version <= before:
                    self._tell(ticket, at)
        self._updated.update((ticket.worker, version) for ticket in first)
        self._kept = frozenset(step.keep)

    def _tell(self, ticket: Ticket, at: float) -> None:
        if self._late.get(ticket.worker) != ticket.serial:
            self._late[ticket.worker] = ticket.serial
            self._hooks.worker(WorkerEvent("late", ticket.worker, at))
