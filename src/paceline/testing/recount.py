"""What a ledger shows, and what it ought to show."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Drop,
    Event,
    Groups,
    Halt,
    Instruction,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Reported,
    Resize,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
)

INDICES = (
    "workers", "idle", "free", "leaving", "running", "behind", "recalled", "fresh", "holding", "late", "handed_in",
    "kept", "counts", "tally", "alarms", "memory", "sizes",
)  # fmt: skip
NUMBERS = ("round", "now", "updated_at", "least_count")
Fact = Event | Instruction


def recount(facts: Sequence[Fact]) -> dict[str, object]:
    """What a ledger that these things happened to has to show: slow, and by definition."""
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
    leaving = {
        fact.worker: fact.by
        for i, fact in enumerate(facts)
        if isinstance(fact, Leaving) and i > left.get(fact.worker, -1)
    }
    running = {ticket for ticket in given_out if ticket not in settled and ticket not in handed_in}
    held = {ticket: done for ticket, done in handed_in.items() if ticket not in settled}
    old = {ticket for ticket, i in given_out.items() if i < last_step}
    fresh = {ticket: done for ticket, done in held.items() if ticket not in used | old}
    busy = {ticket.worker for ticket in running | fresh.keys()}
    counts, least = _counts(facts)
    alarms = {i: fact.at for i, fact in enumerate(facts) if isinstance(fact, WakeAt)}
    rang = {i: fact.at for i, fact in enumerate(facts) if isinstance(fact, Rang)}
    return {
        "workers": sorted(worker for worker in here if here[worker]),
        "idle": sorted(worker for worker in here if here[worker] and worker not in {*busy, *leaving}),
        "free": sorted({w for w in here if here[w]} - {ticket.worker for ticket in running} - {*leaving}),
        "leaving": sorted(leaving.items()),
        "running": sorted((ticket.worker, ticket) for ticket in running),
        "behind": sorted(running & old),
        "recalled": sorted(running & recalls),
        "fresh": list(fresh.items()),
        "holding": sorted(Counter(ticket.worker for ticket in fresh).items()),
        "late": sorted((ticket, done) for ticket, done in held.items() if ticket in old - used),
        "handed_in": [ticket for ticket in held if ticket not in used],
        "kept": sorted((ticket, done) for ticket, done in held.items() if ticket in used),
        "counts": sorted(counts.items()),
        "tally": sorted(Counter(counts.values()).items()),
        "least_count": least,
        "ages": sorted((ticket, sum(i > given_out[ticket] for i in steps)) for ticket in (*running, *held)),
        "round": len(steps),
        "now": _time(facts),
        "updated_at": _time(facts[: last_step + 1]),
        "alarms": sorted({at for i, at in alarms.items() if not any(j > i and rang[j] >= at for j in rang)}),
        "sizes": sorted(next((fact.sizes for fact in reversed(facts) if isinstance(fact, Resize)), {}).items()),
        "memory": sorted({fact.name: fact.value for fact in facts if isinstance(fact, Remember)}.items()),
    }


def _counts(facts: Sequence[Fact]) -> tuple[dict[int, int], int]:
    """Pieces used of each worker that is here; a joiner begins with the least of the others."""
    counts: dict[int, int] = {}
    least = 0
    used: set[Ticket] = set()
    for fact in facts:
        if isinstance(fact, Joined):
            counts[fact.worker] = least
        elif isinstance(fact, Left | Leaving):
            counts.pop(fact.worker, None)
        elif isinstance(fact, Step):
            for ticket in fact.weights:
                if ticket not in used and ticket.worker in counts:
                    counts[ticket.worker] += 1
            used.update(fact.weights)
        least = min(counts.values(), default=least)
    return counts, least


def _time(facts: Sequence[Fact]) -> float:
    return max((fact.at for fact in facts if isinstance(fact, Event)), default=0.0)


def happened_in(part: int, facts: Iterable[Fact], groups: Groups) -> list[Fact]:
    """What happened in one part of a ledger, that was split by ``groups``, of all that happened in it.

    A ticket belongs to the part that its worker was in when it was given out. A worker that is to change its part does
    so when it runs nothing: in the one part it leaves, in the other it joins.
    """
    part_of = {worker: number for number, group in enumerate(groups) for worker in group}
    last, now = len(groups) - 1, 0.0
    here: set[int] = set()
    running: dict[int, Ticket] = {}
    given_out: dict[Ticket, int] = {}
    moving, leaving = dict[int, int](), dict[int, float]()
    found: list[Fact] = []

    def number(worker: int) -> int:
        return part_of.get(worker, last)

    def move(worker: int) -> None:
        old, part_of[worker] = number(worker), moving.pop(worker)
        if worker in here:
            found.extend([Left(now, worker)] * (old == part) + [Joined(now, worker)] * (number(worker) == part))
            if worker in leaving and number(worker) == part:
                found.append(Leaving(now, worker, leaving[worker]))

    for fact in facts:
        ended: set[int] = set()  # the workers that run nothing any more
        if isinstance(fact, Event):
            now = fact.at
        if isinstance(fact, Within):
            assert isinstance(fact.decision, Instruction)
            found += [fact.decision] * (fact.part == part)
        elif isinstance(fact, Regroup):
            was = {worker: number(worker) for worker in here}
            part_of = {worker: place for place, group in enumerate(fact.groups) for worker in group}
            last = len(fact.groups) - 1
            moving = {worker: number(worker) for worker in here if number(worker) != was[worker]}
            part_of |= {worker: was[worker] for worker in moving}
            ended = moving.keys() - running.keys()
        elif isinstance(fact, Joined | Left | Leaving):
            found += [fact] * (number(fact.worker) == part)
            if isinstance(fact, Leaving):
                leaving[fact.worker] = fact.by
                continue
            (here.add if isinstance(fact, Joined) else here.discard)(fact.worker)
            leaving.pop(fact.worker, None)
            if isinstance(fact, Left) and running.pop(fact.worker, None) is not None:
                ended = {fact.worker}
        elif isinstance(fact, Step):
            found += [fact] * (given_out[next(iter(fact.weights))] == part)
        elif isinstance(fact, Start | Arrived | Halt | Drop | Recall):
            ticket = fact.ticket
            if isinstance(fact, Start):
                given_out[ticket] = number(ticket.worker)
                running[ticket.worker] = ticket
            found += [fact] * (given_out[ticket] == part)
            if isinstance(fact, Arrived | Halt) and running.get(ticket.worker) == ticket:
                ended = {running.pop(ticket.worker).worker}
        elif not isinstance(fact, Remember | Reported):
            found.append(fact)  # sizes are those of all parts; which part asked for an alarm is not recorded
        for worker in sorted(ended & moving.keys()):
            move(worker)
    return found


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
        shown[name] = [*index.items()] if hasattr(index, "items") else [*index]
    held = (*ledger.running.values(), *ledger.fresh, *ledger.late, *ledger.kept)
    shown["ages"] = [(ticket, ledger.age(ticket)) for ticket in held]
    return shown
