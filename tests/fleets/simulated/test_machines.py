"""Machines with links that are shared by what passes at once: exact times, and what is sent."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as pl
from paceline.core.messages import Arrived, Ticket
from paceline.engine.loop import Loop, NoLearner
from paceline.fleets.simulated.links import Link
from paceline.theory.runtime.costs import runtime
from paceline.trace.measure import MeasureReader, measure
from paceline.trace.writing import NoTrace
from support.digits import digits_task, train
from support.updates import arrivals, update_times

GIGABYTE = 10**9  # a second on a link of 8 Gbit/s


def fleet(seconds: float, workers: int, each: int, **more: Any) -> pl.SimulatedFleet:
    machines = pl.Machines(each, gigabits=8, message_bytes=GIGABYTE, **more)
    return pl.SimulatedFleet(pl.delays.Constant(seconds), workers=workers, machines=machines)


def passed(*messages: tuple[int, int]) -> dict[int, int]:
    """When each message has passed a link, of (begin, ticks alone)."""
    link, found = Link(), dict[int, int]()
    to_come = sorted(enumerate(messages), key=lambda each: each[1][0])
    while to_come or link.next_end() is not None:
        end = link.next_end()
        if to_come and (end is None or to_come[0][1][0] < end):
            number, (begins, ticks) = to_come.pop(0)
            link.begin(number, ticks, begins)
        else:
            assert end is not None
            found |= dict.fromkeys(link.take(end), end)
    assert link.carried == len(messages)
    return found


def fluid(*messages: tuple[int, int]) -> dict[int, Fraction]:
    """The same by the definition, exactly: from one change to the next everybody gets an equal share."""
    now, left, found = Fraction(0), dict[int, Fraction](), dict[int, Fraction]()
    to_come = sorted(enumerate(messages), key=lambda each: each[1][0])
    while to_come or left:
        begins = Fraction(to_come[0][1][0]) if to_come else None
        ends = now + min(left.values()) * len(left) if left else None
        until = min(at for at in (begins, ends) if at is not None)
        left = {number: ticks - (until - now) / len(left) for number, ticks in left.items()}
        now = until
        found |= {number: now for number, ticks in left.items() if not ticks}
        left = {number: ticks for number, ticks in left.items() if ticks}
        if to_come and begins == now:
            number, (_, ticks) = to_come.pop(0)
            left[number] = Fraction(ticks)
    return found


# One link


def test_two_messages_at_once_take_twice_as_long() -> None:
    assert passed((0, 1000), (0, 1000)) == {0: 2000, 1: 2000}


def test_a_message_that_begins_later_shares_what_is_left() -> None:
    """Alone for 500, together for 1000, and the second has 500 left for itself."""
    assert passed((0, 1000), (500, 1000)) == {0: 1500, 1: 2000}


def test_three_of_unlike_sizes() -> None:
    """300 of each take 900; then 300 of two take 600; then 300 of one."""
    assert passed((0, 300), (0, 600), (0, 900)) == {0: 900, 1: 1500, 2: 1800}


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**7)), min_size=1, max_size=12))
@settings(max_examples=60)
def test_a_link_is_that_of_the_definition_to_a_picosecond_a_message(messages: list[tuple[int, int]]) -> None:
    found, expected = passed(*messages), fluid(*messages)
    assert found.keys() == expected.keys()
    assert all(abs(found[number] - expected[number]) <= len(messages) for number in found)


# Machines


def test_one_machine_gets_the_weights_once_and_sends_one_sum() -> None:
    """A second for the weights, two to compute, one for the sum, one for the next weights."""
    trace = pl.simulate(pl.Synchronous(), fleet(2.0, 8, 8), pl.Stop(updates=3))
    assert update_times(trace) == [3.0, 7.0, 11.0]
    assert measure(trace).bytes_between_machines == (4 + 3) * GIGABYTE  # work on the fourth version was given out


def test_two_machines_share_the_servers_link() -> None:
    """Two seconds for the weights of both, one to compute, two for both sums."""
    assert update_times(pl.simulate(pl.Synchronous(), fleet(1.0, 4, 2), pl.Stop(updates=3))) == [3.0, 8.0, 13.0]


def test_two_shards_have_two_links() -> None:
    """Each machine's own link is now as busy as those of the shards: a second each way."""
    assert update_times(pl.simulate(pl.Synchronous(), fleet(1.0, 4, 2, shards=2), pl.Stop(updates=3))) == [2, 5, 8]


def test_what_the_server_takes_is_for_each_sum_and_each_step_and_a_share_of_it_with_shards() -> None:
    """Alone: 2 for the weights, 1 to compute, 2 for the sums, which come together, 2 x 0.25 and 0.5 at the server."""
    one = fleet(1.0, 4, 2, sum_seconds=0.25, step_seconds=0.5)
    two = fleet(1.0, 4, 2, sum_seconds=0.25, step_seconds=0.5, shards=2)
    assert update_times(pl.simulate(pl.Synchronous(), one, pl.Stop(updates=3))) == [3.0, 9.0, 15.0]
    assert update_times(pl.simulate(pl.Synchronous(), two, pl.Stop(updates=3))) == [2.0, 5.5, 9.0]


def test_a_message_takes_its_latency_too() -> None:
    """An order with weights, a report; an order for the sum, the sum; an order with weights, a report."""
    trace = pl.simulate(pl.Synchronous(), fleet(2.0, 8, 8, latency=0.25), pl.Stop(updates=2))
    assert update_times(trace) == [3.5, 3.5 + 0.5 + 1.0 + 3.5]


def test_who_begins_with_a_version_that_is_there_waits_for_the_order_alone() -> None:
    """The second worker joins when the machine has had the weights for long."""
    cluster = pl.SimulatedFleet(
        [pl.delays.Constant(9.0), pl.delays.Constant(1.0)],
        machines=pl.Machines(2, gigabits=8, message_bytes=GIGABYTE, latency=0.25),
        changes=[pl.Joined(4.0, 1)],
    )
    first = arrivals(pl.simulate(pl.Synchronous(), cluster, pl.Stop(updates=1)))[0]
    assert (first.ticket.worker, first.at) == (1, 4.0 + 0.25 + 1.0 + 0.25)


def test_asynchronous_machines_overlap_their_messages() -> None:
    """Worker 0 arrives at 3. Its sum takes a second; worker 1 arrives at 3.5, and its sum shares the link from then on.

    The first is through at 4.5 (0.5 alone, 1 for the other half), and its weights go out alone until 5.5; the second's
    sum is through at 5.
    """
    cluster = pl.SimulatedFleet(
        [pl.delays.Constant(1.0), pl.delays.Constant(1.5)],
        machines=pl.Machines(1, gigabits=8, message_bytes=GIGABYTE),
    )
    trace = pl.simulate(pl.Asynchronous(), cluster, pl.Stop(updates=3))
    # weights of the second go out from 5 on: both share the link until 6, when the first has its 0.5 + 0.5
    assert [(each.at, each.ticket.worker) for each in arrivals(trace)] == [(3.0, 0), (3.5, 1), (7.0, 0)]


def test_a_worker_that_is_stopped_while_it_waits_for_the_weights_begins_anew() -> None:
    group = fleet(1.0, 2, 2).open(seed=0)
    group.wait()
    group.start(Ticket(0, 0, 0))
    group.wake_at(0.5)
    group.wait()
    group.halt(Ticket(0, 0, 0))
    group.start(Ticket(1, 0, 0))
    assert list(group.wait()) == [Arrived(2.0, Ticket(1, 0, 0), 1)]
    assert list(group.wait()) == []


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.Asynchronous(), pl.LiveCompensation(5, blocks=4)])
def test_what_is_sent_is_what_the_trace_says_and_no_link_carries_more_than_it_can(strategy: Any) -> None:
    machines = pl.Machines(3, gigabits=8, message_bytes=GIGABYTE // 10, shards=2, sum_seconds=0.01)
    cluster = pl.SimulatedFleet(pl.delays.LogNormal(0.5, 0.5), workers=8, machines=machines)
    workers = cluster.open(seed=4)
    reader = MeasureReader(workers.about)
    trace = NoTrace(workers.about, reader)
    workers.announce = trace.note
    for update in Loop(strategy, workers, NoLearner(), trace, seconds=60.0):
        assert update.at <= 60.0
    state = workers.state()["cluster"]
    links = {number - 2: link["numbers"][2] for number, link in state["links"]}
    under_way = {(number, kind) for number, kind, *_ in state["messages"]}
    weights, sums = state["counts"][:2]
    asked = weights + sum(len(waiting) for _, waiting in state["unmade"])  # some for versions that are yet to be made
    assert (asked + sums) * machines.message_bytes == reader.measures(trace.history).bytes_between_machines
    for kind, server in ((0, -2), (1, -1)):  # each message passes its machine's link and the server's, once
        passing = sum(each == kind for _, each in under_way)
        sent = (weights, sums)[kind]
        assert sent - passing <= links[server] <= sent
        assert sent - passing <= sum(links.get(2 * machine + kind, 0) for machine in range(3)) <= sent
        assert links[server] * 0.1 / 2 <= 60.0
        assert all(links.get(2 * machine + kind, 0) * 0.1 <= 60.0 for machine in range(3))


def test_messages_of_no_size_and_a_server_without_cost_are_the_plain_simulator() -> None:
    """In time and order, bit for bit; the trace also tells when the weights were there."""
    plain = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=6)
    free = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=6, machines=pl.Machines(2))
    for strategy in (pl.Synchronous(), pl.Asynchronous(), pl.FastestK(4), pl.LiveCompensation(4, blocks=4)):
        one, two = (pl.simulate(strategy, each, pl.Stop(updates=40)) for each in (plain, free))
        billed = [line for line in two.lines() if line.startswith('["billed"')]
        assert billed
        assert [*one.lines()][1:] == [line for line in [*two.lines()][1:] if line not in billed]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_busy_server_makes_as_many_updates_as_it_has_time_for(shards: int) -> None:
    """0.06 s for the sum and 0.04 for the step of each update, shared by the shards; the workers could make more."""
    machines = pl.Machines(8, sum_seconds=0.06, step_seconds=0.04, shards=shards)
    cluster = pl.SimulatedFleet(pl.delays.LogNormal(0.1, 0.2), workers=8, machines=machines)
    times = update_times(pl.simulate(pl.Asynchronous(), cluster, pl.Stop(updates=400)))
    assert 300 / (times[-1] - times[-301]) == pytest.approx(10.0 * shards, rel=0.01)
    assert runtime(pl.Asynchronous(), cluster).updates_per_second.source == "simulation"


# Training


def test_a_run_on_machines_says_what_was_sent_and_what_it_cost() -> None:
    """65 times 10 numbers of 4 bytes (in half: bfloat16), to and from two machines."""
    cluster = pl.SimulatedFleet(
        pl.delays.Constant(1.0), workers=4, machines=pl.Machines(2, gigabits=1e-5), wire="bfloat16", prices=[1, 1, 2, 2]
    )
    run = train(digits_task(), pl.Synchronous(), cluster, updates=3)
    summary = run.summary()
    size = run.trace.about["wire_bytes"]
    assert size == sum(each.numel() * each.element_size() for each in run.model.parameters()) / 2
    assert summary["bytes_between_machines"] == (4 * 2 + 3 * 2) * size
    assert summary["price"] == pytest.approx(6 * run.history[-1].seconds)


def test_averaged_models_are_summed_by_machine_and_ensembles_are_refused() -> None:
    cluster = fleet(1.0, 4, 2)
    run = train(digits_task(), pl.ModelAveraging(every=2), cluster, updates=2)
    assert update_times(run.trace) == [2.0 + 2.0, 4.0 + 4.0 + 2.0]
    assert run.costs is not None
    assert run.costs.compute == pytest.approx(4 * 2 * 2.0)
    with pytest.raises(pl.ConfigError, match="an ensemble needs every model"):
        train(digits_task(), pl.EnsembleCompression(every=4), cluster, updates=2)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"network": pl.Network(0.1)}, "machines have links and a server of their own: leave network="),
        ({"server_seconds": 0.1}, "leave server_seconds=0.1 out"),
        ({"machines": 8}, r"give Machines\(workers_each=8\)"),
        ({"wire": "float16"}, "wire='float16' is unknown: choose one of float32, bfloat16"),
    ],
)
def test_what_does_not_fit_machines_is_refused(more: dict[str, Any], why: str) -> None:
    given_ = {"machines": pl.Machines(2), **more}
    with pytest.raises(pl.ConfigError, match=why):
        pl.SimulatedFleet(pl.delays.Constant(1.0), workers=4, **given_)


@pytest.mark.parametrize(
    "wrong", [{"workers_each": 0}, {"gigabits": 0.0}, {"shards": 0}, {"latency": -1.0}, {"message_bytes": -1}]
)
def test_impossible_machines_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(pl.ConfigError, match="is not possible"):
        pl.Machines(**wrong)
