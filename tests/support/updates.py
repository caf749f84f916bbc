"""Reads updates, with their time and staleness, off a trace."""

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from paceline.core.messages import Arrived, Joined, Left, Rang, Recall, Start, Step, Ticket
from paceline.trace.format import Fact


class Update(NamedTuple):
    """One step of the model: when, from which version, along what, and how stale each ticket is that it uses first."""

    at: float
    version: int
    step: Step
    ages: tuple[int, ...]

    @property
    def staleness(self) -> Fraction:
        return Fraction(sum(self.ages), len(self.ages))

    @property
    def workers(self) -> frozenset[int]:
        """Whose gradient of the current round it uses (nothing of an earlier round)."""
        newest = max(ticket.version for ticket in self.step.weights)
        return frozenset(ticket.worker for ticket in self.step.weights if ticket.version == newest)


class Answer(NamedTuple):
    """What came back after a recall."""

    started: float
    recalled: float
    arrived: float
    ticket: Ticket
    done: int


def updates(trace: Iterable[Fact]) -> list[Update]:
    at, found, kept = 0.0, list[Update](), set[Ticket]()
    for fact in trace:
        if isinstance(fact, Joined | Left | Arrived | Rang):
            at = fact.at
        elif isinstance(fact, Step):
            version = len(found)
            ages = tuple(version - ticket.version for ticket in fact.weights if ticket not in kept)
            found.append(Update(at, version, fact, ages))
            kept = (kept - fact.weights.keys()) | set(fact.keep)
    return found


def update_times(trace: Iterable[Fact]) -> list[float]:
    return [update.at for update in updates(trace)]


def arrivals(trace: Iterable[Fact]) -> list[Arrived]:
    return [fact for fact in trace if isinstance(fact, Arrived)]


def answers(trace: Iterable[Fact]) -> list[Answer]:
    """Every recall with what came of it."""
    at, started, recalled, found = 0.0, dict[Ticket, float](), dict[Ticket, float](), list[Answer]()
    for fact in trace:
        if isinstance(fact, Joined | Left | Arrived | Rang):
            at = fact.at
        if isinstance(fact, Start):
            started[fact.ticket] = at
        elif isinstance(fact, Recall):
            recalled[fact.ticket] = at
        elif isinstance(fact, Arrived) and fact.ticket in recalled:
            found.append(Answer(started[fact.ticket], recalled[fact.ticket], at, fact.ticket, fact.done))
    return found
