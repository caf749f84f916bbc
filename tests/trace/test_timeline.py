"""What every worker did at every moment, checked by hand on small fleets and against the sums of ``measure``."""

import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import pytest

import paceline as pl
from paceline.core.coordinator import Strategy
from paceline.core.messages import Arrived, Drop, Joined, Start, Step, Ticket
from paceline.reports.picture import gather
from paceline.trace.measure import measure
from paceline.trace.reading import Trace
from paceline.trace.timeline import Recalled, Span, Updated, timeline
from paceline.trace.writing import TraceWriter


def simulated(strategy: Strategy, fleet: pl.SimulatedFleet, seconds: float) -> Trace:
    return pl.simulate(strategy, fleet, pl.Stop(seconds=seconds))


def constant(*values: float, recall: str = "block", latency: float = 0.0) -> pl.SimulatedFleet:
    delays = [pl.delays.Constant(value) for value in values]
    return pl.SimulatedFleet(delays, recall=recall, network=pl.Network(latency=latency))  # type: ignore[arg-type]


def of_worker(trace: Trace, worker: int) -> list[tuple[str, float, float]]:
    spans = [mark for mark in timeline(trace) if isinstance(mark, Span) and mark.worker == worker]
    return [(span.kind, span.start, span.end) for span in spans]


def updates(trace: Trace) -> list[Updated]:
    return [mark for mark in timeline(trace) if isinstance(mark, Updated)]


def test_under_synchronous_the_fast_wait_for_the_slow() -> None:
    trace = simulated(pl.Synchronous(), constant(1, 3), seconds=6)
    assert of_worker(trace, 0) == [("compute", 0, 1), ("wait", 1, 3), ("compute", 3, 4), ("wait", 4, 6)]
    assert of_worker(trace, 1) == [("compute", 0, 3), ("compute", 3, 6)]
    assert updates(trace) == [Updated(3, 1, (0, 1), (0, 0), 1, 2), Updated(6, 2, (0, 1), (0, 0), 1, 2)]


def test_transfers_stand_before_and_after_the_work() -> None:
    trace = simulated(pl.Synchronous(), constant(1, 1, latency=0.25), seconds=1.5)
    assert of_worker(trace, 0) == [("transfer", 0, 0.25), ("compute", 0.25, 1.25), ("transfer", 1.25, 1.5)]


def test_what_fastest_k_stops_is_dropped() -> None:
    trace = simulated(pl.FastestK(quorum=2), constant(1, 2, 5), seconds=4)
    assert of_worker(trace, 2) == [("dropped", 0, 2), ("dropped", 2, 4)]


def test_what_fastest_k_lets_finish_is_dropped_when_it_comes() -> None:
    trace = simulated(pl.FastestK(quorum=2, stop_late=False), constant(1, 2, 3), seconds=3)
    assert of_worker(trace, 2) == [("dropped", 0, 3)]


def test_live_compensation_recalls_those_that_are_late_and_uses_them_a_step_later() -> None:
    trace = simulated(pl.LiveCompensation(quorum=2, blocks=4), constant(1, 1, 3.2), seconds=2)
    assert [mark for mark in timeline(trace) if isinstance(mark, Recalled)] == [Recalled(1, 2, 2), Recalled(2, 2, 5)]
    assert of_worker(trace, 2) == [("late", 0, 1.6), ("pending", 1.6, 2)]
    used = [dict(zip(update.workers, update.staleness, strict=True)) for update in updates(trace)]
    assert used == [{0: 0, 1: 0}, {0: 0, 1: 0, 2: 1}]


def test_a_block_that_is_broken_off_is_half_dropped() -> None:
    trace = simulated(pl.LiveCompensation(quorum=2, blocks=4), constant(1, 1, 3.2, recall="abandon"), seconds=2)
    assert of_worker(trace, 2)[:2] == [("late", 0, pytest.approx(1 / 1.5)), ("dropped", pytest.approx(1 / 1.5), 1)]


@pytest.mark.parametrize(
    "strategy", [pl.Asynchronous(), pl.Grouped([[0, 1], [2, 3]])], ids=lambda each: type(each).__name__
)
def test_stale_work_is_not_late_if_its_own_group_waited_for_it(strategy: Strategy) -> None:
    trace = simulated(strategy, constant(1, 2, 3.5, 5), seconds=30)
    assert any(max(update.staleness) > 0 for update in updates(trace))
    assert {mark.kind for mark in timeline(trace) if isinstance(mark, Span)} <= {"compute", "wait", "pending"}


def test_groups_tell_late_from_stale_each_for_itself() -> None:
    strategy = pl.Grouped([[0, 1, 2], [3, 4]], inside=pl.LiveCompensation(quorum=2, blocks=4))
    trace = simulated(strategy, constant(1, 1, 3.2, 0.3, 0.3), seconds=20)
    late = {mark.worker for mark in timeline(trace) if isinstance(mark, Span) and mark.kind == "late"}
    assert late == {2}


def test_a_worker_that_is_away_has_no_spans() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(2)] * 2, changes=[pl.Left(3, 1), pl.Joined(5, 1)])
    trace = simulated(pl.Asynchronous(), fleet, seconds=6)
    assert of_worker(trace, 1) == [("compute", 0, 2), ("dropped", 2, 3), ("pending", 5, 6)]


def by_hand(spoiled: bool) -> Trace:
    writer = TraceWriter(None, {"workers": 2, "transfer_seconds": 0.0})
    first, second = [Ticket(0, 0, 0), Ticket(1, 1, 0)], [Ticket(2, 0, 1), Ticket(3, 1, 1)]
    writer.record([Joined(0.0, 0), Joined(0.0, 1)], [Start(ticket) for ticket in first])
    writer.record([Arrived(1.0, first[0], 1)], [])
    step = Step(dict.fromkeys(first, Fraction(1, 2)))
    writer.record([Arrived(2.0, first[1], 1)], [step, *(Start(ticket) for ticket in second)])
    if spoiled:
        writer.non_finite([first[1]])  # written when the step was made: after the starts that follow it
    writer.record([Arrived(3.0, second[0], 1)], [Drop(second[0])])
    return writer.close()


def test_what_is_not_finite_is_dropped() -> None:
    assert of_worker(by_hand(spoiled=False), 1) == [("compute", 0, 2), ("pending", 2, 3)]
    assert of_worker(by_hand(spoiled=True), 1) == [("dropped", 0, 2), ("pending", 2, 3)]
    assert of_worker(by_hand(spoiled=True), 0) == [("compute", 0, 1), ("wait", 1, 2), ("dropped", 2, 3)]


def test_what_went_on_after_the_last_event_is_drawn_to_the_end() -> None:
    trace = simulated(pl.Synchronous(), constant(1, 3), seconds=5)
    last = {mark.worker: mark for mark in timeline(trace, end=5) if isinstance(mark, Span)}
    assert [(last[0].kind, last[0].start, last[0].end), (last[1].kind, last[1].start, last[1].end)] == [
        ("wait", 4, 5),
        ("pending", 3, 5),
    ]


def test_a_trace_of_nothing_has_no_timeline() -> None:
    assert list(timeline(TraceWriter(None, {"workers": 2}).close())) == []


STRATEGIES = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.FastestK(quorum=2),
    pl.FastestK(quorum=2, stop_late=False),
    pl.LiveCompensation(quorum=2, blocks=4),
    pl.LiveCompensation(quorum=2, blocks=4, recall=False),
    pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(quorum=1, blocks=4)),
]


@pytest.mark.parametrize("recall", ["complete", "block", "abandon"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_spans_cover_a_workers_presence_and_add_up_to_what_is_measured(strategy: Strategy, recall: str) -> None:
    fleet = pl.SimulatedFleet(
        [
            pl.delays.LogNormal(1.0, 0.3),
            pl.delays.LogNormal(1.5, 0.3),
            pl.delays.Pareto(1.0, 2.0),
            pl.delays.Constant(3.0),
        ],
        network=pl.Network(latency=0.1),
        recall=recall,  # type: ignore[arg-type]
        changes=[pl.Left(20.0, 3), pl.Joined(31.0, 3)],
    )
    trace = simulated(strategy, fleet, seconds=60)
    measured = measure(trace)
    spans: dict[int, list[Span]] = defaultdict(list)
    for mark in timeline(trace):
        if isinstance(mark, Span):
            spans[mark.worker].append(mark)
    for times in measured.workers:
        mine = spans[times.worker]
        assert (mine[0].start, mine[-1].end) == (0, measured.seconds)
        away = [(a.end, b.start) for a, b in pairwise(mine) if a.end != b.start]
        assert away == ([(20.0, 31.0)] if times.worker == 3 else [])
        assert total(mine, "wait") == pytest.approx(times.idle)
        assert total(mine, "dropped") == pytest.approx(times.wasted)
    contributions = sum(times.contributions for times in measured.workers)
    assert sum(len(update.workers) for update in updates(trace)) == contributions


def total(spans: Iterable[Span], kind: str) -> float:
    return sum(span.end - span.start for span in spans if span.kind == kind)


def test_a_long_run_is_drawn_for_a_window_and_summed_up_whole() -> None:
    trace = simulated(pl.Synchronous(), constant(1, 2, 4), seconds=4000)
    whole, window = gather(trace, limit=10**9), gather(trace, limit=500)
    assert math.isinf(whole.until)
    assert window.marks <= 500
    assert 0 < window.until < window.end == whole.end == 4000
    assert window.workers == whole.workers
    assert window.staleness == whole.staleness
    assert window.workers[2].held_up == 2 * 1000
    drawn = [span._replace(end=min(span.end, window.until)) for span in whole.spans if span.start < window.until]
    assert window.spans == drawn


def test_some_workers_can_be_drawn_and_all_are_summed_up() -> None:
    picture = gather(simulated(pl.Synchronous(), constant(1, 2, 4), seconds=40), limit=10**9, workers={1})
    assert {span.worker for span in picture.spans} == {1}
    assert sorted(picture.workers) == [0, 1, 2]
