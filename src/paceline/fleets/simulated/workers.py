"""The workers of one simulated run: a queue of what is to come, and the clock that goes from one thing to the next.

Time is counted in whole picoseconds, so that instants that are equal on paper are equal here (0.1 + 0.2 and 0.3), and
ties are broken by a stated rule rather than by rounding.

Where the server takes time, a contribution that reaches it waits for its turn, and arrives when the server has dealt
with it. The server begins with the next at the end of an instant, when everybody was told of what happened and has
answered: whoever is stopped by then takes none of its time.

Where workers are on machines with links that they share, ``cluster`` says when the model of a ticket is there.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, astuple, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.ledger import Ledger
from paceline.core.messages import Arrived, Event, Joined, Leaving, Left, Rang, Step, Ticket
from paceline.core.stateful import State
from paceline.data.sizes import BatchSizes
from paceline.fleets.simulated.cluster import TICKS, Cluster
from paceline.fleets.simulated.conditions import Stays
from paceline.fleets.simulated.draws import MOST_DRAWN, Draws, impossible
from paceline.learning.cost import Cost, Costs, Times, times_of
from paceline.trace.format import WorkCost, facts_from, plain_facts

if TYPE_CHECKING:
    from paceline.fleets.simulated.fleet import SimulatedFleet

NEVER = 10**30  # a tick: the model is not there yet, and nobody knows when it will be
ARRIVAL, AT_SERVER, CHANGE, ALARM, TURN, NETWORK = range(6)  # what comes first of things at one instant


class SimulatedWorkers:
    """The workers of one simulated run. ``announce`` is told how long each ticket takes that has a cost."""

    def __init__(
        self,
        fleet: "SimulatedFleet",
        seed: int,
        message_bytes: int,
        cost: Callable[[Ticket], Cost] | None,
        sizes: BatchSizes | None = None,
    ) -> None:
        self.costs = Costs()
        self.announce: Callable[[WorkCost], None] = lambda cost: None
        self._fleet = fleet
        self._cost = cost or _time_alone
        self._has_costs = cost is not None
        self._times: dict[Ticket, Times] = {}
        self._draws = Draws(fleet, seed, sizes)
        self._durations, self._drawn = self._draws.iterators, self._draws.counts
        self._slowness = self._draws.slowness
        transfer = fleet.message_seconds(message_bytes)
        self._cluster: Cluster | None = None
        self._network_at: int | None = None  # when the next thing happens on the links
        about: dict[str, object] = {"clock": "virtual", "workers": fleet.workers}
        if fleet.machines is not None:
            transfer = fleet.machines.latency
            self._cluster = Cluster(fleet.machines, fleet.machines.wire_bytes(message_bytes, fleet.wire))
            about["workers_a_machine"], about["wire_bytes"] = fleet.machines.workers_each, self._cluster.wire_bytes
            about["machines"] = asdict(replace(fleet.machines, message_bytes=self._cluster.wire_bytes))
        if fleet.prices:
            about["prices"] = list(fleet.worker_prices)
        self.about: Mapping[str, object] = {**about, "transfer_seconds": transfer}
        self._transfer = _ticks(transfer)
        self._service = 0  # ticks that the server takes for a contribution
        self._comes = ARRIVAL
        if fleet.server_seconds:
            self._service, self._comes = _ticks(fleet.server_seconds) or 1, AT_SERVER
            self.about = {**self.about, "server_seconds": fleet.server_seconds}
        self._waiting: deque[_Running] = deque()  # at the server; halted ones are passed over when it is their turn
        self._engaged = False  # a turn is to come, at the latest when the server is free
        self._batches = fleet.ties == "batch"
        self._sign = -1 if fleet.ties == "reverse" else 1
        self._now = 0
        self._pushed = 0
        self._alarms: set[int] = set()
        self._running: dict[int, _Running] = {}
        # (tick, what, worker in the order of ties, serial number, the event or the entry of a running ticket)
        self._heap: list[tuple[int, int, int, int, Event | _Running | None]] = []
        absent: dict[int, bool] = {}
        for change in sorted(fleet.changes, key=lambda change: change.at):
            absent.setdefault(change.worker, isinstance(change, Joined))
            tick = _ticks(change.at)
            self._push(tick, CHANGE, change.worker, replace(change, at=tick / TICKS))
        heapify(self._heap)
        self._stays = Stays(fleet.availability, fleet.comes_and_goes, seed, TICKS)
        self._plan(self._stays.first())
        self._present: Sequence[Event] = [Joined(0.0, i) for i in range(fleet.workers) if not absent.get(i, False)]

    def wait(self) -> Sequence[Event]:
        if self._present:
            present, self._present = self._present, ()
            return present
        event = self._next()
        if event is None:
            return ()
        if not self._batches:
            return (event,)
        events = [event]
        while (event := self._next(before=(self._now, TURN))) is not None:
            events.append(event)
        return events

    def _next(self, before: tuple[Any, ...] | None = None) -> Event | None:
        """The next event, if it is before things of a kind at a tick."""
        heap = self._heap
        while heap and (before is None or heap[0] < before):
            tick, kind, _, serial, entry = heappop(heap)
            if type(entry) is _Running:
                if entry.serial != serial:
                    continue  # halted, or recalled and due at another time
                if kind != ARRIVAL:
                    self._wait_for_turn(entry, tick)
                    continue
                self._now = tick
                del self._running[entry.ticket.worker]
                if self._times and (times := self._times.pop(entry.ticket, None)) is not None:
                    self.costs.add(times)
                return Arrived(tick / TICKS, entry.ticket, entry.done)
            if entry is None:
                (self._begin_next if kind == TURN else self._pass_on)(tick)
                continue
            assert not isinstance(entry, _Running)
            self._now = tick
            if isinstance(entry, Left):
                self._forget(entry.worker)
            if kind == ALARM:
                self._alarms.discard(tick)
            elif entry in self._stays:
                assert isinstance(entry, Joined | Left | Leaving)
                self._plan(self._stays.after(entry, tick))
            return entry
        return None

    def _plan(self, changes: Iterable[tuple[int, Joined | Left | Leaving]]) -> None:
        for tick, change in changes:
            self._push(tick, CHANGE, change.worker, change)

    def _wait_for_turn(self, entry: "_Running", tick: int) -> None:
        self._pushed = entry.serial = self._pushed + 1  # in the order of waiting, and nothing of the queue is due
        entry.at_server = True
        self._waiting.append(entry)
        if not self._engaged:
            self._turn_at(tick)

    def _begin_next(self, tick: int) -> None:
        """The server deals with the first that waits; what was halted meanwhile takes no time."""
        self._engaged, waiting = False, self._waiting
        while waiting and waiting[0].serial < 0:
            waiting.popleft()
        if waiting:
            self._due(waiting.popleft(), tick + self._service, ARRIVAL)
            self._turn_at(tick + self._service)  # even if what it deals with is halted: begun is begun

    def _turn_at(self, tick: int) -> None:
        self._engaged = True
        heappush(self._heap, (tick, TURN, 0, 0, None))  # there is only one

    def start(self, ticket: Ticket) -> None:
        kind, _, samples = ticket.work
        if self._has_costs or kind != "gradient" or self._cluster is not None:
            self._start_at_cost(ticket)
            return
        worker = ticket.worker
        seconds = next(self._durations[worker])  # hot: what Draws.draw and _due do
        self._drawn[worker] += 1
        if not 0 < seconds < math.inf:
            raise impossible(worker, seconds)
        if samples or self._draws.per_sample:
            seconds = self._draws.of_size(worker, samples, seconds)
        begins = self._now + self._transfer
        if self._slowness is not None:
            seconds *= self._draws.factor(worker, begins / TICKS)
        lasts = round(seconds * TICKS) or 1
        self._running[worker] = entry = _Running(ticket, begins, lasts)
        self._pushed = entry.serial = self._pushed + 1
        tick = begins + lasts + self._transfer
        heappush(self._heap, (tick, self._comes, self._sign * worker, entry.serial, entry))

    def _start_at_cost(self, ticket: Ticket) -> None:
        """Download, label, train and hand in."""
        worker, samples = ticket.worker, ticket.work.samples
        times = times_of(self._cost(ticket), lambda: self._draws.draw(worker, samples), self._fleet.message_seconds)
        if self._cluster is not None:
            self._start_on_machine(self._cluster, ticket, times.compute)
            return
        begins = self._now + _ticks(times.download)
        if (factor := self._draws.factor(worker, begins / TICKS)) != 1.0:
            times = times._replace(compute=times.compute * factor, relabelling=times.relabelling * factor)
        lasts = _ticks(times.compute + times.relabelling) or 1
        self._running[worker] = entry = _Running(ticket, begins, lasts)
        self._times[ticket] = times
        self._due(entry, begins + lasts + _ticks(times.upload), self._comes)
        self.announce(WorkCost(ticket, times.download, times.relabelling, times.upload))

    def _start_on_machine(self, cluster: Cluster, ticket: Ticket, seconds: float) -> None:
        """Begin when the model is on the worker's machine."""
        self._pushed += 1
        self._running[ticket.worker] = entry = _Running(ticket, NEVER, _ticks(seconds) or 1)
        entry.started, entry.serial = self._now, self._pushed
        begins = cluster.want(ticket.worker, ticket.serial, ticket.version, self._now)
        if begins is not None:
            self._begin(entry, begins)
        self._expect_network()

    def _begin(self, entry: "_Running", begins: int) -> None:
        entry.begins = begins
        if (factor := self._draws.factor(entry.ticket.worker, begins / TICKS)) != 1.0:
            entry.lasts = round(entry.lasts * factor) or 1
        download, transfer = (begins - entry.started) / TICKS, self._transfer / TICKS
        self._times[entry.ticket] = Times(download, 0.0, entry.lasts / TICKS, transfer)
        self._due(entry, begins + entry.lasts + self._transfer, ARRIVAL)
        self.announce(WorkCost(entry.ticket, download, 0.0, transfer))

    def stepped(self, step: Step) -> None:
        """An update was decided: the machines send the sums that it takes."""
        if self._cluster is not None:
            self._cluster.step({ticket.worker for ticket in step.weights}, self._now)
            self._expect_network()

    def _pass_on(self, tick: int) -> None:
        """Something happens on the links or at the server, and some workers may begin."""
        assert self._cluster is not None
        if tick != self._network_at:
            return  # something comes before it
        self._network_at = None
        for worker, serial, begins in self._cluster.run(tick):
            entry = self._running.get(worker)
            if entry is not None and entry.ticket.serial == serial:
                self._begin(entry, begins)
        self._expect_network()

    def _expect_network(self) -> None:
        assert self._cluster is not None
        at = self._cluster.next_tick()
        if at is not None and (self._network_at is None or at < self._network_at):
            self._network_at = at
            heappush(self._heap, (at, NETWORK, 0, 0, None))

    def halt(self, ticket: Ticket) -> None:
        self._forget(ticket.worker)

    def recall(self, ticket: Ticket) -> None:
        entry = self._running[ticket.worker]
        units, begins, lasts, now = ticket.work.units, entry.begins, entry.lasts, self._now
        how = self._fleet.recall
        if entry.at_server:
            return  # handed in already
        if how == "complete":
            self._due(entry, now, self._comes)
            return
        if now >= begins + lasts:
            return  # computed already, and on its way
        begun = units * (now - begins) // lasts if now > begins else 0
        if now < begins:
            entry.done = 0  # the model had not even arrived
        else:
            entry.done = begun + (how == "block")
        ends = begins - (-lasts * entry.done // units) if how == "block" and entry.done else now
        self._due(entry, ends + (self._transfer if entry.done else 0), self._comes)

    def wake_at(self, at: float) -> None:
        tick = _ticks(at)
        while tick / TICKS < at:
            tick += 1
        if tick not in self._alarms:  # several parts may ask for one instant: it rings once
            self._alarms.add(tick)
            self._push(tick, ALARM, 0, Rang(tick / TICKS))

    def close(self) -> None:
        """There is nobody to let go."""

    def state(self) -> State:
        """The clock, what is in work and to come, and how many durations were drawn of each worker."""
        due = {entry[3]: entry[0] for entry in self._heap if entry[1] in (ARRIVAL, AT_SERVER)}
        running = [
            [plain_ticket(each.ticket), each.begins, each.lasts, each.done, each.serial, due.get(each.serial)]
            for each in self._running.values()
        ]
        others = [entry for entry in sorted(self._heap) if entry[1] in (CHANGE, ALARM)]
        return {
            "now": self._now,
            "pushed": self._pushed,
            "drawn": self._drawn,
            "running": running,
            "alarms": [[tick, serial] for tick, kind, _, serial, _ in others if kind == ALARM],
            "changes": [entry[3] for entry in others if entry[1] == CHANGE and entry[4] not in self._stays],
            "billed": [[plain_ticket(ticket), *times] for ticket, times in self._times.items()],
            "costs": list(astuple(self.costs)),
            **({"server": self._server_state()} if self._service else {}),
            **({"cluster": self._cluster_state(self._cluster)} if self._cluster is not None else {}),
            **({"stays": self._stays_state()} if self._fleet.availability is not None else {}),
        }

    def _cluster_state(self, cluster: Cluster) -> State:
        started = [[each.ticket.worker, each.started] for each in self._running.values()]
        return {"started": started, **cluster.state()}

    def _stays_state(self) -> State:
        """What was drawn, and who comes or goes next: when, the serial number, and the event."""
        planned = sorted(entry for entry in self._heap if entry[1] == CHANGE and entry[4] in self._stays)
        events = [event for *_, event in planned if isinstance(event, Joined | Left | Leaving)]
        due = [[tick, serial] for tick, _, _, serial, _ in planned]
        return {**self._stays.state(), "due": due, "events": plain_facts(events)}

    def _server_state(self) -> State:
        """When its next turn is, and who is there: waiting, if nothing is due of them, or being dealt with."""
        there = [each.ticket.worker for each in self._running.values() if each.at_server]
        return {"turn": next((tick for tick, kind, *_ in self._heap if kind == TURN), None), "there": there}

    def restore(self, state: State) -> None:
        many = self._has_costs or self._cluster is not None
        self._draws.restore(list(map(whole, state["drawn"])), MOST_DRAWN if many else whole(state["pushed"]))
        self._now, self._pushed, self._present = whole(state["now"]), whole(state["pushed"]), ()
        to_come = set(state["changes"])
        if not to_come <= {entry[3] for entry in self._heap}:
            raise ValueError("somebody is to leave or join of whom the fleet does not know")
        self._heap = [entry for entry in self._heap if entry[3] in to_come and entry[4] not in self._stays]
        if self._fleet.availability is not None:
            self._stays.restore(state["stays"])
            for (tick, serial), event in zip(state["stays"]["due"], facts_from(state["stays"]["events"]), strict=True):
                if not isinstance(event, Joined | Left | Leaving) or event not in self._stays:
                    raise ValueError("somebody comes or goes at random who does not")
                self._heap.append((whole(tick), CHANGE, self._sign * event.worker, whole(serial), event))
        for tick, serial in state["alarms"]:
            self._alarms.add(whole(tick))
            self._heap.append((tick, ALARM, 0, whole(serial), Rang(tick / TICKS)))
        server: State = state["server"] if self._service else {"there": (), "turn": None}
        there = frozenset(server["there"])
        if len({ticket[1] for ticket, *_ in state["running"]}) < len(state["running"]):
            raise ValueError("a worker computes two things")
        for ticket, begins, lasts, done, serial, tick in state["running"]:
            entry = _Running(ticket_from(ticket), whole(begins), whole(lasts))
            entry.done, entry.serial = whole(done), whole(serial)
            worker = entry.ticket.worker
            entry.at_server = worker in there
            self._running[worker] = entry
            if entry.at_server and tick is None:
                self._waiting.append(entry)
            elif self._cluster is None or entry.begins < NEVER or tick is not None:
                kind = ARRIVAL if entry.at_server else self._comes
                self._heap.append((whole(tick), kind, self._sign * worker, serial, entry))
        self._waiting = deque(sorted(self._waiting, key=lambda entry: entry.serial))
        heapify(self._heap)
        if server["turn"] is not None:
            self._turn_at(whole(server["turn"]))
        if self._cluster is not None:
            for worker, started in state["cluster"]["started"]:
                self._running[whole(worker)].started = whole(started)
            self._cluster.restore(state["cluster"])
            self._expect_network()
        self._times = {ticket_from(ticket): Times(*map(real, times)) for ticket, *times in state["billed"]}
        self.costs = Costs(*map(real, state["costs"]))

    def check_restored(
        self, ledger: Ledger, here: Set[int], at_work: Set[Ticket], halted: Set[Ticket], to_ring: Set[float]
    ) -> None:
        """Raise ``ValueError`` unless what is to come fits what the ledger waits for, and lies ahead."""
        computed = {entry.ticket for entry in self._running.values()}
        if not at_work <= computed <= at_work | halted:
            raise ValueError("what the workers compute does not fit what was given out")
        if self._has_costs and self._times.keys() != computed:
            raise ValueError("the costs do not fit what the workers compute")
        if self._now / TICKS < ledger.now or any(entry[0] < self._now for entry in self._heap):
            raise ValueError("something is to come that has passed")
        serials = [entry[3] for entry in self._heap if entry[1] < TURN]
        if len({*serials}) < len(serials) or max(serials, default=0) > self._pushed:
            raise ValueError("two things to come have one number")
        for entry in self._running.values():
            if not (0 <= entry.done <= entry.ticket.work.units and entry.begins >= 0 and entry.lasts >= 1):
                raise ValueError(f"{entry.ticket} has {entry.done} units to come, or no duration")
            if entry.done < entry.ticket.work.units and entry.ticket not in ledger.recalled and entry.ticket in at_work:
                raise ValueError(f"{entry.ticket} is to come in part, and was not recalled")
        for tick in self._alarms:
            if not any(alarm <= tick / TICKS for alarm in ledger.alarms):
                raise ValueError(f"an alarm is to ring at {tick / TICKS:g} that nobody asked for")
        if any(_ticks(alarm) > max(self._alarms, default=-1) + 1 for alarm in to_ring):
            raise ValueError("an alarm was asked for and would not ring")
        self._check_changes({*here})

    def _check_changes(self, here: set[int]) -> None:
        """Who leaves must be here by then, and who joins must not."""
        for tick, kind, _, _, change in sorted(self._heap, key=lambda entry: entry[:4]):
            if kind != CHANGE:
                continue
            assert isinstance(change, Joined | Left | Leaving)
            if (change.worker in here) == isinstance(change, Joined):
                raise ValueError(f"worker {change.worker} cannot leave or join at {tick / TICKS:g}")
            if not isinstance(change, Leaving):
                (here.remove if isinstance(change, Left) else here.add)(change.worker)

    def _due(self, entry: "_Running", tick: int, kind: int) -> None:
        self._pushed += 1
        entry.serial = self._pushed
        heappush(self._heap, (tick, kind, self._sign * entry.ticket.worker, self._pushed, entry))

    def _push(self, tick: int, kind: int, worker: int, event: Event) -> None:
        self._pushed += 1
        heappush(self._heap, (tick, kind, self._sign * worker, self._pushed, event))

    def _forget(self, worker: int) -> None:
        if (entry := self._running.pop(worker, None)) is not None:
            entry.serial = -1
            self._times.pop(entry.ticket, None)


class _Running:
    """A ticket in work: when the computation begins, how long it lasts, how much of it will be handed in."""

    __slots__ = ("at_server", "begins", "done", "lasts", "serial", "started", "ticket")

    def __init__(self, ticket: Ticket, begins: int, lasts: int) -> None:
        self.ticket = ticket
        self.begins = begins
        self.lasts = lasts
        self.done = ticket.work.units
        self.serial = -1
        self.at_server = False
        self.started = 0


def _time_alone(ticket: Ticket) -> Cost:
    """Where there is no model that messages and labels could be of."""
    return Cost(0, ticket.work.mini_batches, 0.0, 0)


def _ticks(seconds: float) -> int:
    return round(seconds * TICKS)
