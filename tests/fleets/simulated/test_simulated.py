"""Workers on a virtual clock: transfers, ties, recalls, coming and going."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytest

import paceline as pl
from paceline.core.messages import Arrived, Event, Halt, Joined, Left, Rang, Start, Ticket, gradient
from support.digits import digits_task, train
from support.updates import arrivals, update_times, updates

Recall = Literal["complete", "block", "abandon"]


def constant(*seconds: float) -> list[pl.delays.Constant]:
    return [pl.delays.Constant(s) for s in seconds]


def ticket(serial: int, worker: int = 0, blocks: int = 1) -> Ticket:
    return Ticket(serial, worker, 0, gradient(blocks))


# Time


def test_everybody_present_joins_at_zero_in_one_go() -> None:
    group = pl.SimulatedFleet(constant(1.0, 2.0, 3.0)).open(seed=0)
    assert list(group.wait()) == [Joined(0.0, 0), Joined(0.0, 1), Joined(0.0, 2)]
    assert list(group.wait()) == []


def test_work_arrives_after_its_delay() -> None:
    group = pl.SimulatedFleet(constant(2.0, 0.5)).open(seed=0)
    group.wait()
    group.start(ticket(0, worker=0))
    group.start(ticket(1, worker=1))
    assert list(group.wait()) == [Arrived(0.5, ticket(1, worker=1), 1)]
    group.start(ticket(2, worker=1))
    assert list(group.wait()) == [Arrived(1.0, ticket(2, worker=1), 1)]
    assert list(group.wait()) == [Arrived(2.0, ticket(0, worker=0), 1)]


def test_halted_work_never_arrives() -> None:
    group = pl.SimulatedFleet(constant(1.0, 2.0)).open(seed=0)
    group.wait()
    group.start(ticket(0, worker=0))
    group.start(ticket(1, worker=1))
    group.halt(ticket(0, worker=0))
    assert list(group.wait()) == [Arrived(2.0, ticket(1, worker=1), 1)]
    assert list(group.wait()) == []


def test_a_message_takes_its_latency_and_its_bytes_over_the_bandwidth() -> None:
    network = pl.Network(latency=0.25, bandwidth=1000.0)
    assert network.seconds(500) == 0.75
    group = pl.SimulatedFleet(constant(2.0), network=network).open(seed=0, message_bytes=500)
    group.wait()
    group.start(ticket(0))
    assert list(group.wait()) == [Arrived(0.75 + 2.0 + 0.75, ticket(0), 1)]


def test_a_trained_model_is_downloaded_and_its_gradient_handed_in() -> None:
    """650 doubles are 5200 bytes: at 52,000 bytes a second 0.1 each way, so that a round takes 0.1 + 1 + 0.1."""
    fleet = pl.SimulatedFleet(constant(1.0, 0.5), network=pl.Network(bandwidth=52_000.0))
    run = train(digits_task(), pl.Synchronous(), fleet, updates=3)
    assert update_times(run.trace) == [1.2, 2.4, 3.6]
    assert run.trace.about["transfer_seconds"] == pytest.approx(0.1, abs=1e-15)


def test_an_alarm_rings_when_it_was_set_for() -> None:
    group = pl.SimulatedFleet(constant(1.0)).open(seed=0)
    group.wait()
    group.start(ticket(0))
    group.wake_at(0.1 + 0.2)
    (rang,) = group.wait()
    assert isinstance(rang, Rang)
    assert rang.at >= 0.1 + 0.2
    assert rang.at == pytest.approx(0.3, abs=2e-12)
    assert list(group.wait()) == [Arrived(1.0, ticket(0), 1)]


# Ties


def test_instants_that_are_equal_on_paper_are_equal() -> None:
    """0.1 + 0.2 is not 0.3 in floating point, and ten times 0.1 is not 1; here both tie."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(0.3), pl.delays.Empirical([0.1, 0.2], in_order=True)], ties="index")
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=0.3))
    assert [(a.at, a.ticket.worker) for a in arrivals(trace)] == [(0.1, 1), (0.3, 0), (0.3, 1)]
    fleet = pl.SimulatedFleet(constant(0.1, 1.0))
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=1.0))
    assert [a.at for a in arrivals(trace)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0]


@pytest.mark.parametrize(("ties", "order"), [("index", [0, 1, 2]), ("reverse", [2, 1, 0])])
def test_those_that_tie_arrive_one_by_one_in_the_stated_order(
    ties: Literal["index", "reverse"], order: list[int]
) -> None:
    group = pl.SimulatedFleet(constant(1.0, 1.0, 1.0), ties=ties).open(seed=0)
    group.wait()
    for worker in (1, 0, 2):
        group.start(ticket(worker, worker))
    seen = [group.wait() for _ in range(3)]
    assert [[event.ticket.worker for event in events if isinstance(event, Arrived)] for events in seen] == [
        [worker] for worker in order
    ]


def test_those_that_tie_arrive_all_at_once_in_a_batch() -> None:
    group = pl.SimulatedFleet([*constant(0.3, 0.4), pl.delays.Empirical([0.1, 0.2], in_order=True)], ties="batch").open(
        seed=0
    )
    group.wait()
    for worker in range(3):
        group.start(ticket(worker, worker))
    assert list(group.wait()) == [Arrived(0.1, ticket(2, 2), 1)]
    group.start(ticket(3, 2))
    assert list(group.wait()) == [Arrived(0.3, ticket(0, 0), 1), Arrived(0.3, ticket(3, 2), 1)]
    assert list(group.wait()) == [Arrived(0.4, ticket(1, 1), 1)]


# Recall


def answer(recall: Recall, at: float, *, transfer: float = 0.0) -> tuple[float, int]:
    """When, and with how many of 4 blocks, a worker comes back that takes 2 seconds and is recalled at a time."""
    fleet = pl.SimulatedFleet(constant(2.0, 1.0), recall=recall, network=pl.Network(latency=transfer))
    group = fleet.open(seed=0)
    group.wait()
    group.start(ticket(0, blocks=4))
    group.wake_at(at)
    assert list(group.wait()) == [Rang(at)]
    group.recall(ticket(0, blocks=4))
    (arrived,) = group.wait()
    assert isinstance(arrived, Arrived)
    assert arrived.ticket == ticket(0, blocks=4)
    assert list(group.wait()) == []
    return arrived.at, arrived.done


@pytest.mark.parametrize(
    ("recall", "at", "expected"),
    [
        ("complete", 0.1, (0.1, 4)),
        ("complete", 1.9, (1.9, 4)),
        ("block", 0.1, (0.5, 1)),
        ("block", 0.5, (1.0, 2)),
        ("block", 0.7, (1.0, 2)),
        ("block", 1.6, (2.0, 4)),
        ("abandon", 0.1, (0.1, 0)),
        ("abandon", 0.5, (0.5, 1)),
        ("abandon", 0.7, (0.7, 1)),
        ("abandon", 1.9, (1.9, 3)),
    ],
)
def test_a_recall_is_answered(recall: Recall, at: float, expected: tuple[float, int]) -> None:
    assert answer(recall, at) == expected


@pytest.mark.parametrize(
    ("recall", "at", "expected"),
    [
        ("block", 0.5, (0.5, 0)),  # the model is still on its way: nothing to hand in, nothing to send
        ("block", 1.7, (3.0, 2)),  # 0.7 into the work: the block ends at 1 + 1, and is sent
        ("abandon", 0.5, (0.5, 0)),
        ("abandon", 1.2, (1.2, 0)),
        ("abandon", 1.7, (2.7, 1)),
        ("block", 3.5, (4.0, 4)),  # computed, and being sent
        ("abandon", 3.5, (4.0, 4)),
        ("complete", 1.5, (1.5, 4)),
    ],
)
def test_a_recall_is_answered_over_a_network(recall: Recall, at: float, expected: tuple[float, int]) -> None:
    """With 1 second for each message: the work lasts from 1 to 3 and would arrive at 4."""
    assert answer(recall, at, transfer=1.0) == expected


# Coming and going


def halted(trace: Sequence[object] | Any) -> list[tuple[int, int]]:
    return [(fact.ticket.serial, fact.ticket.worker) for fact in trace if isinstance(fact, Halt)]


def test_a_worker_that_leaves_takes_its_work_with_it_and_the_others_go_on() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 3.0), changes=[pl.Left(2.5, 1)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=5.0))
    assert [(u.at, sorted(u.workers)) for u in updates(trace)] == [(2.5, [0]), (3.5, [0]), (4.5, [0])]
    assert halted(trace) == [(1, 1)]


def test_a_worker_whose_first_change_is_to_join_comes_later() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), changes=[pl.Joined(1.5, 1)])
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=3.0))
    assert [(a.at, a.ticket.worker) for a in arrivals(trace)] == [(1.0, 0), (2.0, 0), (2.5, 1), (3.0, 0)]
    assert Joined(0.0, 1) not in list(trace)


def test_a_worker_that_leaves_and_comes_back_is_given_work_again() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), changes=[pl.Left(0.5, 1), pl.Joined(2.0, 1)])
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=3.0))
    assert [(a.at, a.ticket.worker) for a in arrivals(trace)] == [(1.0, 0), (2.0, 0), (3.0, 0), (3.0, 1)]


def test_what_arrives_at_the_very_time_of_leaving_counts() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 2.0), changes=[pl.Left(2.0, 1)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=4.0))
    assert [(u.at, sorted(u.workers)) for u in updates(trace)] == [(2.0, [0, 1]), (3.0, [0]), (4.0, [0])]
    assert [a.at for a in arrivals(trace) if a.ticket.worker == 1] == [2.0]


def test_who_leaves_at_the_time_of_an_update_has_no_part_in_the_next_round() -> None:
    """Worker 0 leaves at 2, when worker 1 completes the round that both are in."""
    fleet = pl.SimulatedFleet(constant(1.0, 2.0), changes=[pl.Left(2.0, 0)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=4.0))
    assert [(u.at, sorted(u.workers)) for u in updates(trace)] == [(2.0, [0, 1]), (4.0, [1])]


def test_who_joins_at_the_time_of_an_update_takes_part_at_once() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), changes=[pl.Joined(1.0, 1)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=2.0))
    assert [(u.at, sorted(u.workers)) for u in updates(trace)] == [(1.0, [0]), (2.0, [0, 1])]


def test_leaving_and_coming_back_at_one_instant_only_loses_the_work() -> None:
    fleet = pl.SimulatedFleet(constant(1.0), changes=[pl.Left(0.5, 0), pl.Joined(0.5, 0)])
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=2.0))
    assert [a.at for a in arrivals(trace)] == [1.5]


def test_joining_and_leaving_again_at_one_instant_gives_nothing() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), changes=[pl.Joined(1.5, 1), pl.Left(1.5, 1)])
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=4.0))
    assert [(a.at, a.ticket.worker) for a in arrivals(trace)] == [(1.0, 0), (2.0, 0), (3.0, 0), (4.0, 0)]


def test_a_run_whose_workers_all_leave_ends() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0), changes=[pl.Left(2.5, 0), pl.Left(3.0, 1)])
    run = train(digits_task(), pl.Synchronous(), fleet, updates=100)
    assert run.ended == "no workers"
    assert update_times(run.trace) == [1.0, 2.0, 3.0]
    assert run.history[-1].updates == 3


@pytest.mark.parametrize(
    "strategy",
    [
        pl.Synchronous(),
        pl.Asynchronous(),
        pl.FastestK(3),
        pl.FastestK(3, stop_late=False),
        pl.LiveCompensation(3, blocks=4),
        pl.LiveCompensation(3, blocks=4, recall=False),
        pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(2, blocks=2)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("ties", ["index", "reverse", "batch"])
def test_training_survives_leaving_and_joining_at_the_times_of_arrivals(
    strategy: pl.strategy.Strategy, ties: Literal["index", "reverse", "batch"]
) -> None:
    """Everybody arrives at whole times, and the changes come at whole times too."""
    changes: list[Left | Joined] = [
        Left(1.0, 0), Left(2.0, 3), Joined(2.0, 0), Left(3.0, 1), Left(4.0, 2), Joined(5.0, 3), Joined(6.0, 1),
    ]  # fmt: skip
    fleet = pl.SimulatedFleet(constant(1.0, 1.0, 2.0, 3.0), changes=changes, ties=ties)
    run = train(digits_task(), strategy, fleet, updates=30)
    assert run.ended == "updates"
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    assert [row.updates for row in run.history][-1] == 30


# Randomness


def test_one_workers_delays_leave_the_others_alone() -> None:
    """Changing the delay of worker 1 changes neither the draws of worker 0 nor those of worker 2."""
    random = pl.delays.ShiftedExponential(0.05, 0.02)

    def arrivals_of(worker: int, delays: list[Any]) -> list[float]:
        trace = pl.simulate(pl.Asynchronous(), pl.SimulatedFleet(delays), pl.Stop(seconds=2.0), seed=9)
        return [a.at for a in arrivals(trace) if a.ticket.worker == worker]

    for worker in (0, 2):
        assert arrivals_of(worker, [random] * 3) == arrivals_of(worker, [random, pl.delays.LogNormal(1.0, 0.5), random])
    assert arrivals_of(0, [random] * 3) != arrivals_of(2, [random] * 3)


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=5)
    one, two, other = (
        list(pl.simulate(pl.LiveCompensation(3, blocks=4), fleet, pl.Stop(updates=50), seed=seed)) for seed in (1, 1, 2)
    )
    assert one == two
    assert one != other


def test_strategies_see_the_same_delays() -> None:
    """With one draw for each piece of work the first pieces of every worker take equally long under every rule."""
    fleet = pl.SimulatedFleet(pl.delays.ShiftedExponential(0.05, 0.02), workers=4)
    firsts = []
    for strategy in (pl.Asynchronous(), pl.Synchronous(), pl.Grouped([[0, 1], [2, 3]])):
        first: dict[int, float] = {}
        for arrived in arrivals(pl.simulate(strategy, fleet, pl.Stop(updates=40), seed=1)):
            first.setdefault(arrived.ticket.worker, arrived.at)
        firsts.append(first)
    assert firsts[0] == firsts[1] == firsts[2]
    assert len(firsts[0]) == 4


# Refusals


class Drawing:
    """A delay of one's own that draws something impossible."""

    median = 1.0

    def __init__(self, value: float) -> None:
        self.value = value

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        while True:
            yield self.value


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_draw_of_ones_own_delay_is_refused(value: float) -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), Drawing(value)])
    with pytest.raises(pl.ConfigError, match=f"worker 1 drew a delay of {value}"):
        pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delays": []}, "at least one worker"),
        ({"delays": pl.delays.Constant(1.0)}, "at least one worker"),
        ({"delays": constant(1.0, 2.0), "workers": 3}, "3 workers were asked for, but 2 delays"),
        (
            {"delays": constant(1.0), "recall": "maybe"},
            "recall='maybe' is unknown: choose one of complete, bl",
        ),
        ({"delays": constant(1.0), "ties": "random"}, "ties='random' is unknown"),
        ({"delays": constant(1.0), "evaluation": "lazy"}, "evaluation='lazy' is unknown"),
        ({"delays": constant(1.0), "changes": [Left(1.0, 1)]}, "names no worker"),
        ({"delays": constant(1.0), "changes": [Left(1.0, -1)]}, "names no worker"),
        ({"delays": constant(1.0), "changes": [Left(-1.0, 0)]}, "no possible time"),
        ({"delays": constant(1.0), "changes": [Left(math.nan, 0)]}, "no possible time"),
        ({"delays": constant(1.0), "changes": [Left(1.0, 0), Left(2.0, 0)]}, "would do it twice"),
        ({"delays": constant(1.0), "changes": [Joined(1.0, 0), Joined(2.0, 0)]}, "would do it twice"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.ConfigError, match=message):
        pl.SimulatedFleet(**settings)


@pytest.mark.parametrize(
    "network", [{"latency": -1.0}, {"latency": math.nan}, {"bandwidth": 0.0}, {"bandwidth": math.nan}]
)
def test_a_network_that_cannot_be_is_refused(network: dict[str, float]) -> None:
    with pytest.raises(pl.ConfigError, match="not possible"):
        pl.Network(**network)


def test_changes_may_be_given_in_any_order() -> None:
    changes: list[Left | Joined] = [Joined(2.0, 1), Left(1.5, 1)]
    one, two = (
        list(pl.simulate(pl.Synchronous(), pl.SimulatedFleet(constant(1.0, 1.0), changes=given), pl.Stop(seconds=4.0)))
        for given in (changes, changes[::-1])
    )
    assert one == two
    assert Left(1.5, 1) in one


def test_starts_are_given_out_in_the_order_of_events() -> None:
    """Tickets are numbered as they are given out, and the version is the one at the start."""
    trace = pl.simulate(pl.Asynchronous(), pl.SimulatedFleet(constant(1.0, 2.0)), pl.Stop(seconds=2.0))
    events: list[Event | Start] = [fact for fact in trace if isinstance(fact, Arrived | Start)]
    t0, t1, t2 = Ticket(0, 0, 0), Ticket(1, 1, 0), Ticket(2, 0, 1)
    assert events == [
        Start(t0), Start(t1), Arrived(1.0, t0, 1), Start(t2), Arrived(2.0, t2, 1), Start(Ticket(3, 0, 2)),
        Arrived(2.0, t1, 1), Start(Ticket(4, 1, 3)),
    ]  # fmt: skip


def test_fleets_with_a_common_delay_have_as_many_workers_as_asked_for() -> None:
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(2.0, 1.0), workers=3)
    assert (fleet.workers, fleet.medians) == (3, (2.0, 2.0, 2.0))
    assert pl.SimulatedFleet(constant(1.0, 2.0)).medians == (1.0, 2.0)


def test_a_batch_holds_events_of_one_instant_only_although_others_were_stopped() -> None:
    fleet = pl.SimulatedFleet(constant(1.0, 1.0, 2.0, 2.0), ties="batch")
    trace = pl.simulate(pl.FastestK(2), fleet, pl.Stop(seconds=4.0))
    assert [fact.at for fact in trace if isinstance(fact, Arrived)] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]


def test_alarms_that_fall_on_one_picosecond_ring_once() -> None:
    group = pl.SimulatedFleet(constant(9.0)).open(seed=0)
    group.wait()
    group.wake_at(0.5 + 1e-15)
    group.wake_at(0.5 + 2e-15)
    (rang,) = group.wait()
    assert rang.at >= 0.5 + 2e-15
    assert list(group.wait()) == []
