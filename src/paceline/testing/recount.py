"""What a ledger shows, and what it ought to show."""

from collections.abc import Iterator, Mapping, Sequence

from paceline.core.facts import (
    Arrived,
    Decision,
    Drop,
    Event,
    Halt,
    Instruction,
    Joined,
    Left,
    Rang,
    Recall,
    Remember,
    Start,
    Step,
    WakeAt,
    Within,
)
from paceline.core.ledger import Ledger

INDICES = ("workers", "idle", "running", "behind", "recalled", "fresh", "late", "kept", "alarms", "memory")
NUMBERS = ("round", "now", "updated_at")
Fact = Event | Instruction


def recount(history: Sequence[Fact], members: set[int], numbers: tuple[int, ...] = ()) -> dict[str, object]:
    """What a ledger of these workers has to show, told from the facts alone: slow, and by definition."""
    facts = [fact for fact in history if _concerns(fact, members)]
    steps = {i: fact for i, fact in enumerate(facts) if isinstance(fact, Step)}
    last_step = max(steps, default=-1)
    given_out = {fact.ticket: i for i, fact in enumerate(facts) if isinstance(fact, Start)}
    handed_in = {fact.ticket: fact.done for fact in facts if isinstance(fact, Arrived)}
    used = {ticket for step in steps.values() for ticket in step.weights}
    settled = {ticket for step in steps.values() for ticket in step.weights if ticket not in step.keep}
    settled |= {fact.ticket for fact in facts if isinstance(fact, Drop | Halt)}
    recalls = {fact.ticket for fact in facts if isinstance(fact, Recall)}
    here = {fact.worker: isinstance(fact, Joined) for fact in facts if isinstance(fact, Joined | Left)}
    left = {fact.worker: i for i, fact in enumerate(facts) if isinstance(fact, Left)}
    settled |= {
        ticket for ticket, i in given_out.items() if i < left.get(ticket.worker, -1) and ticket not in handed_in
    }
    running = {ticket for ticket in given_out if ticket not in settled and ticket not in handed_in}
    held = {ticket: done for ticket, done in handed_in.items() if ticket not in settled}
    old = {ticket for ticket, i in given_out.items() if i < last_step}
    fresh = {ticket: done for ticket, done in held.items() if ticket not in used | old}
    busy = {ticket.worker for ticket in running | fresh.keys()}
    alarms = {i: fact.at for i, fact in enumerate(facts) if isinstance(fact, WakeAt)}
    rang = {i: fact.at for i, fact in enumerate(facts) if isinstance(fact, Rang)}
    return {
        "workers": sorted(worker for worker in here if here[worker]),
        "idle": sorted(worker for worker in here if here[worker] and worker not in busy),
        "running": sorted((ticket.worker, ticket) for ticket in running),
        "behind": sorted(running & old),
        "recalled": sorted(running & recalls),
        "fresh": list(fresh.items()),
        "late": sorted((ticket, done) for ticket, done in held.items() if ticket in old - used),
        "kept": sorted((ticket, done) for ticket, done in held.items() if ticket in used),
        "round": len(steps),
        "now": _time(facts),
        "updated_at": _time(facts[: last_step + 1]),
        "alarms": sorted({at for i, at in alarms.items() if not any(j > i and rang[j] >= at for j in rang)}),
        "memory": sorted(dict(note for fact in facts for note in _notes(fact, numbers)).items()),
    }


def _concerns(fact: Fact, members: set[int]) -> bool:
    if isinstance(fact, Joined | Left):
        return fact.worker in members
    if isinstance(fact, Arrived | Start | Halt | Drop | Recall):
        return fact.ticket.worker in members
    return not isinstance(fact, Step) or any(ticket.worker in members for ticket in fact.weights)


def _time(facts: Sequence[Fact]) -> float:
    return max((fact.at for fact in facts if isinstance(fact, Joined | Left | Arrived | Rang)), default=0.0)


def _notes(fact: Decision | Fact, numbers: tuple[int, ...]) -> Iterator[tuple[str, float]]:
    if isinstance(fact, Within) and numbers and fact.part == numbers[0]:
        yield from _notes(fact.decision, numbers[1:])
    elif isinstance(fact, Remember) and not numbers:
        yield fact.name, fact.value


def walk(ledger: Ledger, numbers: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Ledger]]:
    """A ledger and all of its parts, each with the numbers that lead to it."""
    yield numbers, ledger
    for number, part in enumerate(ledger.parts()):
        yield from walk(part, (*numbers, number))


def snapshot(ledger: Ledger) -> dict[str, object]:
    """All that a ledger shows, in its order, as a value that stays as it is. Its parts have their own."""
    shown: dict[str, object] = {name: getattr(ledger, name) for name in NUMBERS}
    for name in INDICES:
        index = getattr(ledger, name)
        shown[name] = [*index.items()] if isinstance(index, Mapping) else [*index]
    return shown
