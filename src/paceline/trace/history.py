"""What is known of a run after some of its facts: which fact can come next, and what became of each ticket.

All that is read out of a trace is read here once. ``History`` goes from fact to fact. It refuses what cannot follow:
the rules are those that the ledger had when the trace was written (``paceline.core.rules``), as far as a trace tells.
And it tells its observers who waited, and when each ticket was downloaded, trained, handed in and used. ``durations``,
``measure`` and ``timeline`` are such observers, so that several of them share one pass through a trace.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from paceline.core.messages import (
    Arrived,
    Drop,
    Event,
    Halt,
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
from paceline.trace.format import Computed, Fact, FreshState, MachineWorkers, NonFinite, WorkCost

INSTANT = 1e-9  # seconds; two times that differ by less are one


class TicketTimes:
    """The times of one ticket, in seconds.

    plain         it took no message and no labels, and was not recalled: all of its time is training
    started       it was given out
    download, relabelling, upload  how long these take; the rest is training
    recalled_at   the worker was asked to hand in what it had; None if it was not
    done          units handed in; 0 if it was halted
    used          an update has used it, and kept it for another one

    Known when it has ended:

    downloaded    the worker had the model
    trained_from  it had the labels too, and trained
    useful_until  what was done by then was handed in. How far a block had come that a recall broke off, a trace does
                  not tell: half of it is assumed
    sent          the contribution was on its way back
    ended         it arrived, or was halted
    """

    __slots__ = (
        "done", "download", "downloaded", "ended", "plain", "recalled_at", "relabelling", "sent", "started", "ticket",
        "trained_from", "upload", "used", "useful_until",
    )  # fmt: skip

    def __init__(self, ticket: Ticket, started: float, transfer: float) -> None:
        self.ticket = ticket
        self.started = started
        self.download = self.upload = transfer
        self.relabelling = 0.0
        self.recalled_at: float | None = None
        self.done = 0
        self.used = False
        self.plain = not transfer
        self.downloaded: float
        self.trained_from: float
        self.useful_until: float
        self.sent: float
        self.ended: float

    def age(self, version: int) -> int:
        """Its staleness in an update of a model version: how many updates were made since its download."""
        return version - self.ticket.version

    @property
    def answered_at_once(self) -> bool:
        """A recall ended it at the same instant: nothing was done, or completed by decree."""
        return self.recalled_at is not None and self.ended - self.recalled_at < INSTANT

    def arrive(self, at: float) -> None:
        if self.plain:
            self.downloaded = self.trained_from = self.started
            self.useful_until = self.sent = self.ended = at
            return
        self.ended = at
        self._prepare(at)
        self.useful_until = self.sent = at if self.answered_at_once else max(self.trained_from, at - self.upload)
        recalled_at = self.recalled_at
        if recalled_at is not None and self.done < self.ticket.work.units and self.sent - recalled_at < INSTANT:
            trained = self.sent - self.trained_from
            self.useful_until = self.trained_from + trained * self.done / (self.done + 0.5)

    def break_off(self, at: float) -> None:
        """It was halted, or a trace ends before it does: nothing of it is useful."""
        self.ended = self.sent = at
        self._prepare(at)
        self.useful_until = self.trained_from

    def _prepare(self, at: float) -> None:
        self.downloaded = min(self.started + self.download, at)
        self.trained_from = min(self.downloaded + self.relabelling, at)


class Observer:
    """Whom a ``History`` tells what happens. Each method does nothing by default, and then costs nothing."""

    def event(self) -> None:
        """An event comes next: what the last one led to is complete."""

    def changed(self, event: Joined | Left) -> None:
        """A worker came or went."""

    def waited(self, worker: int, since: float, until: float) -> None:
        """A worker that was there had nothing to do."""

    def started(self, times: TicketTimes) -> None: ...

    def recalled(self, times: TicketTimes) -> None: ...

    def computed(self, times: TicketTimes, seconds: float) -> None:
        """The worker itself took so long for what is about to arrive."""

    def cost(self, times: TicketTimes) -> None:
        """The ticket has a download, relabelling and upload of its own."""

    def arrived(self, times: TicketTimes) -> None: ...

    def halted(self, times: TicketTimes) -> None: ...

    def stepped(self, at: float, version: int, step: Step, first: Sequence[TicketTimes]) -> None:
        """An update changed the model from a version; ``first`` are the tickets that it is the first to use."""

    def dropped(self, times: TicketTimes) -> None:
        """A ticket that was handed in is thrown away; no update has used it."""

    def non_finite(self, times: TicketTimes) -> None:
        """It was not finite, and had no part in the update since the last event that was to use it first."""


class History:
    """Goes from fact to fact; ``follow`` has a function for each type of fact. Raises ``ValueError`` with the reason.

    ``tickets`` are those that may be named again. It grows with the workers and the work not yet settled only.
    """

    def __init__(self, about: Mapping[str, Any], observers: Iterable[Observer] = ()) -> None:
        self.now = 0.0
        self.updates = 0
        self.tickets: dict[int, Ticket] = {}
        self._transfer = float(about.get("transfer_seconds", 0.0))
        self._next_serial = 0
        self._free_since: dict[int, float] = {}  # of who is here; of those at work, when they began
        self._running: dict[int, TicketTimes] = {}  # by worker
        self._held: dict[int, TicketTimes] = {}  # handed in and not settled, by serial number as in all that follows
        self._stepped: dict[int, TicketTimes | None] = {}  # used since the last event; None if not for the first time
        self._settled: list[int] = []  # since the last event
        watching = tuple(observers)
        self._watched = bool(watching)
        self._on_event = _overriding(watching, "event")
        self._on_changed = _overriding(watching, "changed")
        self._on_waited = _overriding(watching, "waited")
        self._on_started = _overriding(watching, "started")
        self._on_recalled = _overriding(watching, "recalled")
        self._on_computed = _overriding(watching, "computed")
        self._on_cost = _overriding(watching, "cost")
        self._on_arrived = _overriding(watching, "arrived")
        self._on_halted = _overriding(watching, "halted")
        self._on_stepped = _overriding(watching, "stepped")
        self._on_dropped = _overriding(watching, "dropped")
        self._on_non_finite = _overriding(watching, "non_finite")
        self.follow: Mapping[type, Callable[[Any], None]] = {
            Arrived: self._arrived,
            Start: self._start,
            Step: self._step,
            Joined: self._joined,
            Left: self._left,
            Leaving: self._leaving,
            Rang: self._event,
            Reported: self._event,
            Halt: self._halt,
            Drop: self._drop,
            Recall: self._recall,
            NonFinite: self._non_finite,
            WorkCost: self._cost,
            Computed: self._computed,
            MachineWorkers: self._nothing,
            FreshState: self._fresh_state,
            WakeAt: self._nothing,
            Remember: self._nothing,
            Regroup: self._nothing,
            Resize: self._nothing,
            Within: self._nothing,
        }

    def waiting(self) -> Iterator[tuple[int, float]]:
        """Who is here and has nothing to do, and since when."""
        return ((worker, since) for worker, since in self._free_since.items() if worker not in self._running)

    def running(self) -> list[TicketTimes]:
        return list(self._running.values())

    def unused(self) -> list[TicketTimes]:
        """Handed in, and used by no update."""
        return [times for times in self._held.values() if not times.used]

    def _nothing(self, fact: Fact) -> None:
        """It can always come."""

    def _event(self, event: Event) -> None:
        at = event.at
        if at < self.now:
            raise ValueError(f"the time goes back from {self.now:g} to {at:g}")
        self.now = at
        if self._settled:
            tickets = self.tickets
            for serial in self._settled:
                tickets.pop(serial, None)
            self._settled.clear()
        if self._stepped:
            self._stepped.clear()
        for tell in self._on_event:
            tell()

    def _joined(self, fact: Joined) -> None:
        self._event(fact)
        if fact.worker in self._free_since:
            raise ValueError(f"worker {fact.worker} joins and is here already")
        self._free_since[fact.worker] = fact.at
        for tell in self._on_changed:
            tell(fact)

    def _left(self, fact: Left) -> None:
        self._event(fact)
        if (since := self._free_since.pop(fact.worker, None)) is None:
            raise ValueError(f"worker {fact.worker} leaves and is not here")
        if fact.at > since and fact.worker not in self._running:
            for tell in self._on_waited:
                tell(fact.worker, since, fact.at)
        for tell in self._on_changed:
            tell(fact)

    def _leaving(self, fact: Leaving) -> None:
        self._event(fact)
        if fact.worker not in self._free_since:
            raise ValueError(f"worker {fact.worker} is leaving and is not here")

    def _start(self, fact: Start) -> None:
        ticket, now = fact.ticket, self.now
        serial, worker, version, _ = ticket
        if serial < self._next_serial:
            raise ValueError(f"{ticket} is started twice")
        since = self._free_since.get(worker)
        if since is None or worker in self._running:
            raise ValueError(f"{ticket} is given to worker {worker}, which is not here or not free")
        if version > self.updates:
            raise ValueError(f"{ticket} begins with version {version}, after {self.updates} updates")
        self._next_serial = serial + 1
        times = self._running[worker] = TicketTimes(ticket, now, self._transfer)
        if now > since:
            for tell in self._on_waited:
                tell(worker, since, now)
        for tell in self._on_started:
            tell(times)

    def _cost(self, fact: WorkCost) -> None:
        times = self._runs(fact.ticket)
        times.download, times.relabelling, times.upload = fact.download, fact.relabelling, fact.upload
        times.plain = False
        for tell in self._on_cost:
            tell(times)

    def _fresh_state(self, fact: FreshState) -> None:
        self._runs(fact.ticket)

    def _computed(self, fact: Computed) -> None:
        times = self._runs(fact.ticket)
        for tell in self._on_computed:
            tell(times, fact.seconds)

    def _recall(self, fact: Recall) -> None:
        times = self._runs(fact.ticket)
        if times.recalled_at is not None:
            raise ValueError(f"{fact.ticket} is recalled twice")
        times.recalled_at = self.now
        times.plain = False
        for tell in self._on_recalled:
            tell(times)

    def _arrived(self, fact: Arrived) -> None:
        self._event(fact)
        ticket, done = fact.ticket, fact.done
        serial, worker, _, (_, units, _) = ticket
        times = self._running.get(worker)
        if times is None or times.ticket is not ticket:
            raise ValueError(f"{ticket} arrives and does not run")
        if done != units and not (done < units and times.recalled_at is not None):
            raise ValueError(f"{ticket} arrives with {done} of {units} units, and was not recalled")
        del self._running[worker]
        times.done = done
        self._held[serial] = times
        if worker in self._free_since:
            self._free_since[worker] = fact.at
        if self._watched:
            times.arrive(fact.at)
            for tell in self._on_arrived:
                tell(times)

    def _halt(self, fact: Halt) -> None:
        ticket, now = fact.ticket, self.now
        times = self._runs(ticket)
        del self._running[ticket.worker]
        self._settled.append(ticket.serial)
        if ticket.worker in self._free_since:
            self._free_since[ticket.worker] = now
        if self._watched:
            times.break_off(now)
            for tell in self._on_halted:
                tell(times)

    def _step(self, fact: Step) -> None:
        weights, held = fact.weights, self._held
        first: list[TicketTimes] = []
        if fact.keep or len(weights) != 1:
            self._use(fact, first)
        else:  # by far the most frequent
            for ticket in weights:
                serial = ticket.serial
                times = held.get(serial)
                if times is None or not times.done:
                    raise ValueError(f"t{serial} is used, and was not handed in or is used up")
                del held[serial]
                self._settled.append(serial)
                self._stepped[serial] = None if times.used else times
                if not times.used:
                    first.append(times)
        for tell in self._on_stepped:
            tell(self.now, self.updates, fact, first)
        self.updates += 1

    def _use(self, step: Step, first: list[TicketTimes]) -> None:
        held, kept = self._held, {ticket.serial for ticket in step.keep}
        if not step.weights:
            raise ValueError("a step on nothing")
        if not kept <= {ticket.serial for ticket in step.weights}:
            raise ValueError("what is kept was not used")
        for ticket in step.weights:
            serial = ticket.serial
            times = held.get(serial)
            if times is None or not times.done:
                raise ValueError(f"t{serial} is used, and was not handed in or is used up")
            self._stepped[serial] = None if times.used else times
            if not times.used:
                first.append(times)
            if serial in kept:
                times.used = True
            else:
                del held[serial]
                self._settled.append(serial)

    def _drop(self, fact: Drop) -> None:
        if (times := self._held.pop(fact.ticket.serial, None)) is None:
            raise ValueError(f"{fact.ticket} is dropped, and was not handed in or is used up")
        self._settled.append(fact.ticket.serial)
        if not times.used:
            for tell in self._on_dropped:
                tell(times)

    def _non_finite(self, fact: NonFinite) -> None:
        serial = fact.ticket.serial
        if serial not in self._stepped:
            raise ValueError(f"{fact.ticket} was in no update since the last event")
        if (times := self._stepped[serial]) is not None:
            self._stepped[serial] = None
            for tell in self._on_non_finite:
                tell(times)

    def _runs(self, ticket: Ticket) -> TicketTimes:
        times = self._running.get(ticket.worker)
        if times is None or times.ticket is not ticket:
            raise ValueError(f"{ticket} does not run")
        return times


def _overriding(observers: Sequence[Observer], name: str) -> list[Callable[..., None]]:
    """The methods of a name that do something."""
    return [getattr(each, name) for each in observers if getattr(type(each), name) is not getattr(Observer, name)]
