"""What pieces of local training cost, exactly, on workers and a network of constant speed."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import paceline as pl
from paceline.core.messages import Arrived, Halt, Start
from paceline.learning.cost import Cost, Costs, times_of
from paceline.trace.format import WorkCost
from paceline.trace.measure import measure
from paceline.trace.reading import read_trace
from paceline.trace.timeline import Span, timeline
from support.digits import digits_task, linear
from support.local_models import sgd

BYTES = 650 * 8  # a linear model of 64 inputs and 10 classes, in doubles
NETWORK = pl.Network(latency=0.5, bandwidth=1000.0)
MESSAGE = 0.5 + BYTES / 1000  # seconds
WORKERS, BATCH, SHARD = 3, 20, 500
LABELLED = 350  # of the samples of a worker: 70 %
FORWARDS = LABELLED * WORKERS / BATCH / 3  # in mini-batches
STEP = 0.25  # seconds


def train(
    strategy: pl.strategy.Strategy, delays: Sequence[float] = (STEP,) * WORKERS, updates: int | None = None
) -> pl.Run:
    return pl.train(
        digits_task(linear()),
        strategy=strategy,
        fleet=pl.SimulatedFleet([pl.delays.Constant(seconds) for seconds in delays], network=NETWORK),
        optimizer=sgd(),
        stop=None if updates is None else pl.Stop(updates=updates),
        batch_size=BATCH,
        progress=False,
    )


def costs(run: pl.Run) -> tuple[float, float, float]:
    """Of one worker, all being alike."""
    assert run.costs is not None
    each = run.costs.compute, run.costs.relabelling, run.costs.communication
    return each[0] / WORKERS, each[1] / WORKERS, each[2] / WORKERS


def test_averaging_sends_one_model_each_way() -> None:
    run = train(pl.ModelAveraging(every=10, steps=40))
    assert costs(run) == pytest.approx((40 * STEP, 0, 4 * 2 * MESSAGE), rel=1e-12)
    assert run.history[-1].seconds == pytest.approx(40 * STEP + 8 * MESSAGE, rel=1e-12)


def test_a_final_ensemble_sends_every_model_once() -> None:
    run = train(pl.FinalEnsemble(40))
    assert costs(run) == pytest.approx((40 * STEP, 0, MESSAGE), rel=1e-12)
    assert run.history[-1].seconds == pytest.approx(40 * STEP + MESSAGE, rel=1e-12)


@pytest.mark.parametrize("rule", ["simple", "regression", "margin"])
def test_every_exchange_sends_all_other_models_to_every_worker(rule: str) -> None:
    """Two an interval: of the trained models for the labels, and of the compressed ones for their centre."""
    run = train(pl.EnsembleCompression(10, rule, steps=40))  # type: ignore[arg-type]
    exchanges, pieces = 6, 7
    download = 0.5 + (WORKERS - 1) * BYTES / 1000
    expected = 40 * STEP, exchanges * FORWARDS * STEP, pieces * MESSAGE + exchanges * download
    assert costs(run) == pytest.approx(expected, rel=1e-12)
    assert run.history[-1].seconds == pytest.approx(sum(expected), rel=1e-12)


def test_without_diversity_there_is_one_exchange_an_interval() -> None:
    run = train(pl.EnsembleCompression(10, diversity=0.0, steps=40))
    download = 0.5 + (WORKERS - 1) * BYTES / 1000
    assert costs(run) == pytest.approx((40 * STEP, 3 * FORWARDS * STEP, 4 * MESSAGE + 3 * download), rel=1e-12)


def test_nothing_is_sent_or_labelled_that_nobody_uses() -> None:
    run = train(pl.EnsembleCompression(10, distillation=0.0, diversity=0.0, steps=40))
    assert costs(run) == pytest.approx((40 * STEP, 0, 4 * MESSAGE), rel=1e-12)


def test_a_worker_labels_as_fast_as_it_trains() -> None:
    assert times_of(Cost(100, 4, 6.0, 50), lambda: 0.5, lambda size: size / 10) == (10.0, 3.0, 2.0, 5.0)
    assert times_of(Cost(0, 2, 0.0, 50), lambda: 1.0, lambda size: 1 + size) == (0.0, 0.0, 2.0, 51.0)
    total = Costs()
    total.add(times_of(Cost(100, 4, 6.0, 50), lambda: 0.5, lambda size: size / 10))
    assert total == Costs(compute=2.0, relabelling=3.0, communication=15.0)


def test_work_that_was_stopped_is_not_in_the_costs_but_in_what_the_trace_tells() -> None:
    run = train(pl.ModelAveraging(4, waits=pl.FastestK(2)), delays=(0.25, 0.25, 10.0), updates=2)
    assert run.costs is not None
    assert run.costs.compute == pytest.approx(2 * 2 * 4 * 0.25)
    found = measure(run.trace)
    assert [each.wasted for each in found.workers] == pytest.approx([0, 0, 2 * (4 * 0.25 + MESSAGE)])


# What a trace tells


def test_the_trace_bills_every_piece_and_says_where_the_time_went() -> None:
    run = train(pl.EnsembleCompression(10, steps=30))
    facts = list(run.trace)
    last = max(number for number, fact in enumerate(facts) if isinstance(fact, Arrived))
    billed = [fact for fact in facts if isinstance(fact, WorkCost)]
    started = [fact.ticket for fact in facts[:last] if isinstance(fact, Start)]
    assert [fact.ticket for fact in billed] == started
    assert billed[0] == WorkCost(started[0], 0.0, 0.0, MESSAGE)
    assert billed[-1].relabelling == pytest.approx(FORWARDS * STEP)
    found = measure(run.trace)
    assert run.costs is not None
    assert found.hands_in_models
    assert found.compute == pytest.approx(run.costs.compute)
    assert found.relabelling == pytest.approx(run.costs.relabelling)
    assert found.transfer == pytest.approx(run.costs.communication)
    assert found.idle == pytest.approx(0, abs=1e-9)
    assert [seconds for _, seconds in run.trace.durations()] == pytest.approx([0.25] * 90)


def test_the_timeline_shows_messages_labels_and_training_without_gaps() -> None:
    run = train(pl.EnsembleCompression(10, steps=20), delays=(0.25, 0.5, 0.25))
    spans = [mark for mark in timeline(run.trace) if isinstance(mark, Span)]
    for worker in range(3):
        own = [span for span in spans if span.worker == worker]
        assert [b.start for b in own[1:]] == pytest.approx([a.end for a in own[:-1]])
    first = [span.kind for span in spans if span.worker == 1]
    assert first[:6] == ["compute", "transfer", "transfer", "relabel", "compute", "transfer"]
    slow = [span.end - span.start for span in spans if span.worker == 1]
    expected = [10 * 0.5, MESSAGE, 0.5 + 2 * BYTES / 1000, FORWARDS * 0.5, 0.5, MESSAGE]
    assert slow[:6] == pytest.approx(expected)
    assert "wait" in {span.kind for span in spans if span.worker == 0}


def test_work_that_was_halted_or_unfinished_is_cut_where_it_was() -> None:
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, network=NETWORK, changes=[pl.Left(2.0, 1)])
    run = pl.train(
        digits_task(linear()), strategy=pl.ModelAveraging(10), fleet=fleet, optimizer=sgd(), stop=pl.Stop(seconds=9.0)
    )
    assert any(isinstance(fact, Halt) for fact in run.trace)
    spans = [mark for mark in timeline(run.trace, end=9.0) if isinstance(mark, Span)]
    assert spans == [
        Span(1, 0.0, 2.0, "transfer", 1),
        Span(0, 0.0, MESSAGE, "transfer", 0),
        Span(0, MESSAGE, 9.0, "pending", 0),
    ]
    assert measure(run.trace).workers[1].transfer == 2.0


def test_a_billed_trace_reads_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    trace = pl.simulate(
        pl.ModelAveraging(4),
        pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(0.1)]),
        pl.Stop(updates=3),
        trace=file,
    )
    memory = pl.simulate(
        pl.ModelAveraging(4), pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(0.1)]), pl.Stop(updates=3)
    )
    assert list(trace) == list(read_trace(file)) == list(memory)
    assert sum(isinstance(fact, WorkCost) for fact in trace) == 6
