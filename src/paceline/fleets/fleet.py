"""What a fleet offers to the training loop, whichever machines and clock are behind it."""

from collections.abc import Sequence
from typing import Protocol

from paceline.core.facts import Event, Ticket


class Crew(Protocol):
    """The workers of one run, at work."""

    def wait(self) -> Sequence[Event]:
        """The next event, or several of one instant; nothing when nothing can happen any more."""
        ...

    def start(self, ticket: Ticket) -> None: ...

    def halt(self, ticket: Ticket) -> None: ...

    def recall(self, ticket: Ticket) -> None: ...

    def wake_at(self, at: float) -> None: ...


class Fleet(Protocol):
    """The description of a fleet; opened once for every run."""

    @property
    def workers(self) -> int: ...

    def open(self, seed: int, message_bytes: int) -> Crew: ...
