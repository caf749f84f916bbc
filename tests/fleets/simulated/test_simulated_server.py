"""A server that takes time: contributions wait for their turn, first come, first served."""

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as pl
from paceline.core.messages import Arrived, Event, Halt, Joined, Left, Rang, Start, Ticket, gradient
from paceline.theory.runtime.costs import runtime
from paceline.trace.reading import Trace
from support.digits import digits_task, train
from support.updates import arrivals, update_times, updates

Ties = Literal["index", "reverse", "batch"]
TIES: tuple[Ties, ...] = ("index", "reverse", "batch")
RECALLS: tuple[Literal["complete", "block", "abandon"], ...] = ("complete", "block", "abandon")
STRATEGIES: tuple[pl.strategy.Strategy, ...] = (
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.FastestK(2),
    pl.FastestK(2, stop_late=False),
    pl.LiveCompensation(2, blocks=3),
    pl.LiveCompensation(2, blocks=3, recall=False),
    pl.Grouped([[0, 2], [1, 3]]),
    pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(1, blocks=2)),
)


def constant(*seconds: float) -> list[pl.delays.Constant]:
    return [pl.delays.Constant(s) for s in seconds]


def ticket(serial: int, worker: int = 0, blocks: int = 1) -> Ticket:
    return Ticket(serial, worker, 0, gradient(blocks))


def told(trace: Trace) -> list[tuple[float, int]]:
    return [(arrived.at, arrived.ticket.worker) for arrived in arrivals(trace)]


# One after the other


def test_those_that_come_together_are_dealt_with_one_after_the_other() -> None:
    """Three arrive at 1; the server takes half a second for each."""
    trace = pl.simulate(
        pl.Asynchronous(), pl.SimulatedFleet(constant(1.0, 1.0, 1.0), server_seconds=0.5), pl.Stop(seconds=3.5)
    )
    assert told(trace) == [(1.5, 0), (2.0, 1), (2.5, 2), (3.0, 0), (3.5, 1)]


def test_a_server_that_is_free_deals_with_a_contribution_at_once() -> None:
    network = pl.Network(latency=0.25)
    trace = pl.simulate(
        pl.Asynchronous(),
        pl.SimulatedFleet(constant(1.0, 4.0), network=network, server_seconds=0.5),
        pl.Stop(seconds=5),
    )
    assert told(trace) == [(2.0, 0), (4.0, 0), (5.0, 1)]


def test_a_synchronous_round_ends_when_the_server_has_dealt_with_the_last() -> None:
    """It deals with the first at 1 to 1.5, while the others still compute; the last two come together."""
    fleet = pl.SimulatedFleet(constant(1.0, 2.0, 2.0), server_seconds=0.5)
    assert update_times(pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=2))) == [3.0, 6.0]


@pytest.mark.parametrize("ties", TIES)
def test_whose_turn_it_is_of_those_that_come_together(ties: Ties) -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0, 1.0), ties=ties, server_seconds=0.25)
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=1.75))
    order = [2, 1, 0] if ties == "reverse" else [0, 1, 2]
    assert told(trace) == [(1.25, order[0]), (1.5, order[1]), (1.75, order[2])]


def test_less_than_a_picosecond_counts_as_one() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), server_seconds=1e-15)
    assert told(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=1.5))) == [(1 + 1e-12, 0), (1 + 2e-12, 1)]


def test_a_piece_of_training_takes_the_servers_time_too() -> None:
    """Two mini-batches of a second each, by two workers that come at the same time."""
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), server_seconds=0.5)
    run = train(digits_task(), pl.ModelAveraging(every=2), fleet, updates=2)
    assert update_times(run.trace) == [3.0, 6.0]


@given(
    durations=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=5),
    service=st.integers(1, 10),
    latency=st.integers(0, 3),
)
def test_an_asynchronous_run_is_that_of_a_queue_by_the_book(
    durations: list[list[int]], service: int, latency: int
) -> None:
    """In eighths of a second, so that many come together."""
    fleet = pl.SimulatedFleet(
        [pl.delays.Empirical([each / 8 for each in own], in_order=True) for own in durations],
        network=pl.Network(latency=latency / 8),
        server_seconds=service / 8,
    )
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(updates=30))
    expected, free = list[tuple[float, int]](), 0
    reaches = [own[0] + 2 * latency for own in durations]
    handed_in = [1] * len(durations)
    for _ in range(30):
        reached, worker = min((at, worker) for worker, at in enumerate(reaches))
        free = max(reached, free) + service
        expected.append((free / 8, worker))
        own = durations[worker]
        reaches[worker] = free + 2 * latency + own[handed_in[worker] % len(own)]
        handed_in[worker] += 1
    assert told(trace) == expected


@given(
    workers=st.integers(1, 12),
    compute=st.sampled_from([0.05, 0.1, 0.37]),
    service=st.sampled_from([0.001, 0.01, 0.0125, 0.05, 0.2]),
)
@settings(max_examples=25)
def test_asynchronous_workers_get_what_the_server_or_their_own_speed_allows(
    workers: int, compute: float, service: float
) -> None:
    fleet = pl.SimulatedFleet(pl.delays.Constant(compute), workers=workers, server_seconds=service)
    times = update_times(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(updates=20 * workers + 1)))
    settled = times[10 * workers :]
    rate = (len(settled) - 1) / (settled[-1] - settled[0])
    assert rate == pytest.approx(min(workers / (compute + service), 1 / service), rel=1e-6)


# Who is stopped, recalled or leaves


@pytest.mark.parametrize("ties", TIES)
def test_who_is_stopped_while_it_waits_takes_none_of_the_servers_time(ties: Ties) -> None:
    """Three come at 1, and the first is enough: the next round begins at 1.5 and ends 1 + 0.5 seconds later."""
    fleet = pl.SimulatedFleet(constant(1.0, 1.0, 1.0), ties=ties, server_seconds=0.5)
    assert update_times(pl.simulate(pl.FastestK(1), fleet, pl.Stop(updates=3))) == [1.5, 3.0, 4.5]


def test_who_is_not_stopped_takes_the_servers_time_though_it_is_late() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0, 1.0), server_seconds=0.5)
    trace = pl.simulate(pl.FastestK(1, stop_late=False), fleet, pl.Stop(updates=2))
    assert told(trace) == [(1.5, 0), (2.0, 1), (2.5, 2), (3.0, 0)]


@pytest.mark.parametrize("recall", RECALLS)
@pytest.mark.parametrize("at", [1.25, 1.5, 1.75])  # it waits from 1 on, and is dealt with from 1.5 on
def test_what_is_at_the_server_cannot_be_recalled(recall: Literal["complete", "block", "abandon"], at: float) -> None:
    group = pl.SimulatedFleet(constant(1.0, 1.0), recall=recall, server_seconds=0.5).open(seed=0)
    group.wait()
    for worker in (0, 1):
        group.start(ticket(worker, worker, blocks=4))
    group.wake_at(at)
    events = [event for _ in range(3) for event in _wait_and_recall_at_the_alarm(group)]
    assert [event for event in events if isinstance(event, Arrived)] == [
        Arrived(1.5, ticket(0, 0, blocks=4), 4),
        Arrived(2.0, ticket(1, 1, blocks=4), 4),
    ]
    assert list(group.wait()) == []


def _wait_and_recall_at_the_alarm(group: Any) -> Sequence[Event]:
    events: Sequence[Event] = group.wait()
    if any(isinstance(event, Rang) for event in events):
        group.recall(ticket(1, 1, blocks=4))
    return events


def test_who_is_recalled_before_it_reached_the_server_waits_for_its_turn() -> None:
    """Recalled at 1 it has the first two blocks ready at 1.5, when the server is still at the other one."""
    group = pl.SimulatedFleet(constant(1.25, 3.0), server_seconds=1.0).open(seed=0)
    group.wait()
    group.start(ticket(0, 0))
    group.start(ticket(1, 1, blocks=4))
    group.wake_at(1.0)
    assert list(group.wait()) == [Rang(1.0)]
    group.recall(ticket(1, 1, blocks=4))
    assert list(group.wait()) == [Arrived(2.25, ticket(0, 0), 1)]
    assert list(group.wait()) == [Arrived(3.25, ticket(1, 1, blocks=4), 2)]


@pytest.mark.parametrize("ties", TIES)
def test_who_leaves_while_the_server_deals_with_it_loses_its_work_and_has_taken_the_time(ties: Ties) -> None:
    """The server is at worker 0 from 1 to 2, and at worker 1 from 2 to 3."""
    fleet = pl.SimulatedFleet(constant(1.0, 1.25), changes=[Left(1.5, 0)], ties=ties, server_seconds=1.0)
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=4.0))
    assert told(trace) == [(3.0, 1)]
    assert [fact.ticket.worker for fact in trace if isinstance(fact, Halt)] == [0]


@pytest.mark.parametrize("at", [1.25, 1.5, 2.0])  # when it reaches the server, later, and at the instant of its turn
def test_who_leaves_while_it_waits_loses_its_work_and_takes_no_time(at: float) -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.25, 1.5), changes=[Left(at, 1)], server_seconds=1.0)
    assert told(pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=1))) == [(2.0, 0), (3.0, 2)]


def test_what_was_dealt_with_at_the_very_time_of_leaving_counts() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), changes=[Left(3.0, 1)], server_seconds=1.0)
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=2))
    assert [(update.at, sorted(update.workers)) for update in updates(trace)] == [(3.0, [0, 1]), (5.0, [0])]


def test_who_comes_back_while_the_server_is_at_what_it_lost_works_anew() -> None:
    """At 1.25 it leaves and comes back. What it had handed in blocks the server to 3; the next comes at 2.25."""
    fleet = pl.SimulatedFleet(constant(1.0), changes=[Left(1.25, 0), Joined(1.25, 0)], server_seconds=2.0)
    assert told(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=6.0))) == [(5.0, 0)]


def test_a_batch_is_answered_before_the_server_takes_up_the_next() -> None:
    """At 2 an alarm rings, worker 0 was dealt with, and worker 1 waits: stopped, it does not hold worker 2 up."""
    group = pl.SimulatedFleet(constant(1.0, 1.25, 1.5), ties="batch", server_seconds=1.0).open(seed=0)
    group.wait()
    for worker in range(3):
        group.start(ticket(worker, worker))
    group.wake_at(2.0)
    assert list(group.wait()) == [Arrived(2.0, ticket(0, 0), 1), Rang(2.0)]
    group.halt(ticket(1, 1))
    assert list(group.wait()) == [Arrived(3.0, ticket(2, 2), 1)]
    assert list(group.wait()) == []


# Whatever happens


@st.composite
def fleets(draw: st.DrawFn) -> pl.SimulatedFleet:
    """Four workers with times in quarters of a second, some of which come and go."""
    quarters = st.integers(1, 8).map(lambda each: each / 4)
    changes: list[Left | Joined] = []
    for worker in draw(st.sets(st.integers(1, 3))):
        times = sorted(draw(st.sets(st.integers(1, 20), min_size=1, max_size=4)))
        leaves = draw(st.booleans())
        for at in times:
            changes.append(Left(at / 4, worker) if leaves else Joined(at / 4, worker))
            leaves = not leaves
    return pl.SimulatedFleet(
        [pl.delays.Empirical(draw(st.lists(quarters, min_size=1, max_size=3)), in_order=True) for _ in range(4)],
        network=pl.Network(latency=draw(st.sampled_from([0.0, 0.25]))),
        recall=draw(st.sampled_from(RECALLS)),
        ties=draw(st.sampled_from(TIES)),
        changes=changes,
        server_seconds=draw(st.sampled_from([1e-13, 0.01, 0.125, 0.25, 1.0])),
    )


@given(fleet=fleets(), strategy=st.sampled_from(STRATEGIES))
@settings(max_examples=100)
def test_every_contribution_arrives_once_or_is_stopped_and_none_before_the_server_had_time_for_it(
    fleet: pl.SimulatedFleet, strategy: pl.strategy.Strategy
) -> None:
    trace = pl.simulate(strategy, fleet, pl.Stop(seconds=12.0))
    open_tickets: dict[Ticket, float] = {}
    now, last = 0.0, -math.inf
    for fact in trace:
        if isinstance(fact, Event):
            assert fact.at >= now
            now = fact.at
        if isinstance(fact, Start):
            open_tickets[fact.ticket] = now
        elif isinstance(fact, Halt):
            del open_tickets[fact.ticket]
        elif isinstance(fact, Arrived):
            began = open_tickets.pop(fact.ticket)
            assert now >= began + fleet.server_seconds - 1e-12
            assert now >= last + max(fleet.server_seconds, 1e-12) - 1e-13
            last = now
    assert len(open_tickets) <= fleet.workers


@given(fleet=fleets(), actions=st.lists(st.integers(0, 9), min_size=20, max_size=60))
@settings(max_examples=100)
def test_a_group_restored_from_any_checkpoint_continues_as_if_nothing_had_happened(
    fleet: pl.SimulatedFleet, actions: list[int]
) -> None:
    straight, broken = _Driven(fleet), _Driven(fleet)
    for action in actions:
        broken.resume()
        assert straight.act(action) == broken.act(action)
        assert straight.group.state() == broken.group.state()


class _Driven:
    """A group whose workers always have something to do; actions stop or recall one of them."""

    def __init__(self, fleet: pl.SimulatedFleet) -> None:
        self.fleet = fleet
        self.group = fleet.open(seed=1)
        self.present: set[int] = set()
        self.running: dict[int, Ticket] = {}
        self.recalled: set[Ticket] = set()
        self.serial = 0
        self.act(9)

    def act(self, action: int) -> Sequence[Event]:
        """0 to 3: stop or recall the work of a worker, in turns; always: wait, and give out new work."""
        if (own := self.running.get(action)) is not None:
            if own.serial % 2:
                self.group.halt(self.running.pop(action))
                self.start(action)
            elif own not in self.recalled:
                self.recalled.add(own)
                self.group.recall(own)
        events = self.group.wait()
        for event in events:
            if isinstance(event, Arrived):
                assert self.running.pop(event.ticket.worker) == event.ticket
            elif isinstance(event, Joined):
                self.present.add(event.worker)
            elif isinstance(event, Left):
                self.present.remove(event.worker)
                self.running.pop(event.worker, None)
        for worker in sorted(self.present - self.running.keys()):
            self.start(worker)
        return events

    def start(self, worker: int) -> None:
        self.running[worker] = own = ticket(self.serial, worker, blocks=3)
        self.serial += 1
        self.group.start(own)

    def resume(self) -> None:
        state = json.loads(json.dumps(self.group.state()))
        self.group = self.fleet.open(seed=1)
        self.group.restore(state)


def busy_group() -> Any:
    """The server is at one contribution, and another waits."""
    group = pl.SimulatedFleet(constant(1.0, 1.0, 9.0), server_seconds=0.5).open(seed=0)
    group.wait()
    for worker in range(3):
        group.start(ticket(worker, worker))
    group.wake_at(1.25)
    group.wait()
    return group


@pytest.mark.parametrize(
    "server", [{}, {"turn": None, "there": []}, {"turn": "soon", "there": [0, 1]}, {"turn": 0, "there": 2}, None]
)
def test_a_forged_state_of_the_server_is_refused(server: object) -> None:
    state = busy_group().state()
    assert state["server"] == {"turn": 1_500_000_000_000, "there": [0, 1]}
    with pytest.raises((LookupError, TypeError, ValueError)):
        pl.SimulatedFleet(constant(1.0, 1.0, 9.0), server_seconds=0.5).open(seed=0).restore({**state, "server": server})


# What is told of it


def test_a_server_that_takes_no_time_leaves_no_trace() -> None:
    plain = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3)
    zero = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3, server_seconds=0)
    one, two = (pl.simulate(pl.LiveCompensation(2, blocks=4), fleet, pl.Stop(updates=30)) for fleet in (plain, zero))
    assert list(one.lines()) == list(two.lines())
    assert zero.open(seed=0).state() == plain.open(seed=0).state()
    assert "server" not in zero.open(seed=0).state()


def test_runs_are_known_by_the_servers_time_only_if_it_takes_some() -> None:
    """So that those which were begun before a server could take time can be resumed."""
    known = (
        "SimulatedFleet(delays=Constant(value=1.0), workers=2, network=Network(latency=0.0, bandwidth=inf), "
        "recall='block', changes=(), ties='index', evaluation='fused'"
    )
    assert repr(pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2)) == f"{known})"
    assert repr(pl.SimulatedFleet(pl.delays.Constant(1.0), 2, server_seconds=0.5)) == f"{known}, server_seconds=0.5)"


def test_the_trace_says_what_the_server_takes() -> None:
    trace = pl.simulate(pl.Asynchronous(), pl.SimulatedFleet(constant(1.0), server_seconds=0.5), pl.Stop(updates=1))
    assert trace.about["server_seconds"] == 0.5


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_an_impossible_server_is_refused(seconds: float) -> None:
    with pytest.raises(pl.ConfigError, match=f"server_seconds={seconds} is not possible: give a finite number of at"):
        pl.SimulatedFleet(constant(1.0), server_seconds=seconds)


def test_a_prediction_for_a_busy_server_is_simulated() -> None:
    """Ten workers of 0.1 s would make 100 updates a second; a server of 20 ms makes 50."""
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(0.1, 0.2), workers=10, server_seconds=0.02)
    found = runtime(pl.Asynchronous(), fleet).updates_per_second
    assert found.source == "simulation"
    assert found.value == pytest.approx(50.0, rel=1e-3)
