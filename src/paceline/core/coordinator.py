"""Events in, instructions out: the ledger follows, then the strategy is asked until it answers nothing."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from paceline.core.codec import whole
from paceline.core.errors import ConfigError, IllegalDecision
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Event,
    Halt,
    Instruction,
    Joined,
    Leaving,
    Left,
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
    Work,
)
from paceline.core.rules import check_decisions, check_events
from paceline.core.state import LedgerState


class Strategy(Protocol):
    """Who waits for whom: a pure function of what happened.

    Implement ``decide`` on a frozen dataclass of hyperparameters. It sees the whole ledger, not the last event; it is
    asked again after its decisions were carried out, until it answers nothing.
    """

    def decide(self, ledger: Ledger, /) -> Sequence[Decision]: ...

    def check(self, workers: int, batch_size: int | None, /) -> None:
        """Raise ``ConfigError`` if the rule does not fit that many workers, or mini-batches of that size. Optional."""
        return None  # noqa: RET501 - a body, so that a rule need not have one

    # What else a rule may say of itself, by attributes: see paceline.strategies.traits.


def check_fits(strategy: Strategy, workers: int, batch_size: int | Sequence[int] | None) -> None:
    """Let a strategy refuse a fleet, or the batch size of all or of each worker, if it has a ``check``."""
    check: Callable[[int, int | None], None] | None = getattr(strategy, "check", None)
    if check is None:
        return
    if not isinstance(batch_size, Sequence):
        check(workers, batch_size)
        return
    check(workers, None)
    for worker, size in enumerate(batch_size):
        try:
            check(workers, size)
        except ConfigError as error:
            raise ConfigError(f"worker {worker}: {error}") from None


@lru_cache(maxsize=4096)
def _sized(work: Work, samples: int) -> Work:
    return work._replace(samples=samples)


class Coordinator:
    """Keeps one ledger, asks one strategy, and gives out the tickets.

    ``sizes`` are the samples of each worker's mini-batches, where they have sizes of their own.
    """

    def __init__(self, strategy: Strategy, sizes: Mapping[int, int] | None = None) -> None:
        self.strategy = strategy
        self.ledger = LedgerState()
        if sizes:
            self.ledger.resize(sizes)
        self._sizes = self.ledger.sizes
        self.issued = 0  # tickets
        self._whole = (self.ledger,)
        self._paths: dict[int, _Path] = {}
        self._regrouping: list[LedgerState] = []  # those in which somebody is to move when what it runs has ended

    @property
    def version(self) -> int:
        """The version of the global model: how many updates were made."""
        return self.ledger.round

    def receive(self, *events: Event) -> list[Instruction]:
        """Take in what happened (several events: at one instant), and return what is to be done."""
        ledger = self.ledger
        check_events(ledger, events)
        instructions: list[Instruction] = []
        for event in events:
            if type(event) is Arrived:  # by far the most frequent
                at, ticket, done = event.at, event.ticket, event.done
                for touched in self._touch(ticket.worker) if ledger.is_split else self._whole:
                    touched.now = at
                    touched.arrive(ticket, done)
                if self._regrouping:
                    self._move_on(ticket.worker)
            else:
                self._follow(event, instructions)
        decide = self.strategy.decide
        passes = 0
        while decisions := decide(ledger):
            self._carry_out(decisions, instructions)
            passes += 1
            if passes > 1000 + 4 * len(ledger.workers):
                raise IllegalDecision(f"{self.strategy} never becomes quiet: asked {passes} times, now {decisions[0]}")
        if ledger.touched:
            ledger.mark_asked()
        return instructions

    def _follow(self, event: Event, instructions: list[Instruction]) -> None:
        at = event.at
        if isinstance(event, Joined):
            for ledger in self._touch(event.worker):
                ledger.now = at
                ledger.join(event.worker)
        elif isinstance(event, Left):
            running = self.ledger.running.get(event.worker)
            for ledger in self._touch(event.worker):
                ledger.now = at
                ledger.leave(event.worker)
                if running is not None:
                    ledger.halt(running)
            if running is not None:
                instructions.append(Halt(running))
            if self._regrouping:
                self._move_on(event.worker)
        elif isinstance(event, Reported):
            self.ledger.now = at
            self.ledger.take_report(event.numbers)
        elif isinstance(event, Leaving):
            for ledger in self._touch(event.worker):
                ledger.now = at
                ledger.announce(event.worker, event.by)
        else:
            self.ledger.ring(at)

    def state(self) -> dict[str, Any]:
        """Everything that the next decisions depend on, as plain values. Between two events only."""
        sizes = [[worker, size] for worker, size in self._sizes.items()]
        return {"issued": self.issued, "ledger": self.ledger.state(), **({"sizes": sizes} if sizes else {})}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.issued = whole(state["issued"])
        self.ledger.resize({whole(worker): whole(size) for worker, size in state.get("sizes", ())})
        self.ledger.restore(state["ledger"])
        self._regrouping = [ledger for ledger in self.ledger.walk() if ledger.moving]

    def carry_out(self, decisions: Sequence[Decision]) -> list[Instruction]:
        """Carry out a list of decisions, all or none of them."""
        instructions: list[Instruction] = []
        self._carry_out(decisions, instructions)
        return instructions

    def _carry_out(self, decisions: Sequence[Decision], instructions: list[Instruction]) -> None:
        root = self.ledger
        check_decisions(root, decisions)
        if root.touched:
            root.mark_asked()  # every touched part was just asked; those that answered will be asked again
        for decision in decisions:
            inner = decision
            while type(inner) is Within:
                inner = inner.decision
            if type(inner) is Assign:
                instructions.append(self._start(inner.worker, inner.work))
            elif type(inner) is Step:
                # where it was given out: its worker may have moved since
                for ledger in self._whole if inner is decision else _touch_within(root, decision):
                    ledger.step(inner.weights, inner.keep)
                instructions.append(inner)
            elif type(inner) is Drop:
                instructions.append(self._drop(decision, inner))
            elif type(inner) is Recall:
                ticket = inner.ticket
                for ledger in self._touch(ticket.worker):
                    ledger.recall(ticket)
                instructions.append(inner)
            else:
                assert isinstance(inner, Remember | WakeAt | Regroup | Resize)  # all else was refused
                self._note(decision, inner, instructions)

    def _note(
        self, decision: Decision, inner: Remember | WakeAt | Regroup | Resize, instructions: list[Instruction]
    ) -> None:
        """Carry out a decision that is about no ticket."""
        if isinstance(inner, Resize):
            self.ledger.resize(inner.sizes)
            instructions.append(inner)
            return
        path = _touch_within(self.ledger, decision)
        if isinstance(inner, Remember | Regroup):
            if isinstance(inner, Remember):
                path[-1].remember(inner.name, inner.value)
            else:
                self._regroup(path[-1], inner)
            instructions.append(decision if isinstance(decision, Within) else inner)
            return
        if inner.at not in self.ledger.alarms:
            instructions.append(inner)
        for ledger in path:
            ledger.set_alarm(inner.at)

    def _start(self, worker: int, work: Work) -> Start:
        if self._sizes:
            work = _sized(work, self._sizes[worker])
        # half of the time of Ticket(...)
        ticket = tuple.__new__(Ticket, (self.issued, worker, self.ledger.round, work))
        self.issued += 1
        for ledger in self._touch(worker) if self.ledger.is_split else self._whole:
            ledger.start(ticket)
        return Start(ticket)

    def _drop(self, decision: Decision, inner: Drop) -> Halt | Drop:
        ticket = inner.ticket
        if self.ledger.running.get(ticket.worker) != ticket:
            for ledger in _touch_within(self.ledger, decision):
                ledger.drop(ticket)
            return inner
        for ledger in self._touch(ticket.worker):
            ledger.halt(ticket)
        if self._regrouping:
            self._move_on(ticket.worker)
        return Halt(ticket)

    def _regroup(self, ledger: LedgerState, decision: Regroup) -> None:
        ledger.regroup(decision.groups)
        self._paths.clear()
        self._regrouping = [each for each in self._regrouping if each is not ledger]
        if ledger.moving:
            self._regrouping.append(ledger)

    def _move_on(self, worker: int) -> None:
        """What the worker ran has ended: if it was to change its part, it does."""
        for ledger in self._regrouping:
            if ledger.move(worker):
                self._paths.pop(worker, None)
        self._regrouping = [ledger for ledger in self._regrouping if ledger.moving]

    def _touch(self, worker: int) -> tuple[LedgerState, ...]:
        """Mark the parts that a worker belongs to; return its ledgers, from the whole to the innermost part."""
        root = self.ledger
        if not root.is_split:
            return self._whole
        path = self._paths.get(worker)
        if path is None or path.ledgers[-1].is_split:  # or the innermost part was split since
            path = self._paths[worker] = _path(root, worker)
        for touched, number in path.marks:
            touched[number] = None
        return path.ledgers


class _Path(NamedTuple):
    """A worker's ledgers, from the whole to the innermost part, and where to note that something happened to them."""

    ledgers: tuple[LedgerState, ...]
    marks: tuple[tuple[dict[int, None], int], ...]


def _path(root: LedgerState, worker: int) -> _Path:
    ledgers = root.path(worker)
    return _Path(ledgers, tuple((ledger.touched, ledger.part_number(worker)) for ledger in ledgers[:-1]))


def _touch_within(ledger: LedgerState, decision: Decision) -> list[LedgerState]:
    """Mark the parts that a decision was made within; return them, the innermost last."""
    path = [ledger]
    while isinstance(decision, Within):
        ledger.touched[decision.part] = None
        ledger = ledger.parts()[decision.part]
        path.append(ledger)
        decision = decision.decision
    return path
