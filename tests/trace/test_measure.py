"""From a trace to numbers, checked by hand on small fleets."""

import random
import time
from collections import defaultdict
from fractions import Fraction
from itertools import product

import pytest

import paceline as pl
from paceline.core.coordinator import Strategy
from paceline.core.messages import Arrived, Joined, Start, Step, Ticket
from paceline.trace.measure import MeasureReader, Measures, measure
from paceline.trace.writing import TraceWriter


def measured(strategy: Strategy, fleet: pl.SimulatedFleet, seconds: float) -> Measures:
    return measure(pl.simulate(strategy, fleet, pl.Stop(seconds=seconds)))


def constant(*values: float) -> pl.SimulatedFleet:
    return pl.SimulatedFleet([pl.delays.Constant(value) for value in values])


def test_synchronous_wastes_nothing_and_waits_for_the_slowest() -> None:
    found = measured(pl.Synchronous(), constant(1, 2, 4), seconds=8)
    assert (found.updates, found.mean_staleness, found.max_staleness) == (2, 0, 0)
    assert [each.busy for each in found.workers] == [2, 4, 8]
    assert [each.idle for each in found.workers] == [6, 4, 0]
    assert [each.waited_for for each in found.workers] == [0, 0, 2]
    assert [each.influence for each in found.workers] == pytest.approx([2 / 3] * 3)
    assert found.wasted == 0
    assert found.idle_share == pytest.approx(10 / 24)


def test_what_fastest_k_stops_is_wasted() -> None:
    found = measured(pl.FastestK(quorum=2), constant(1, 2, 5), seconds=4)
    assert found.updates == 2
    assert [each.busy for each in found.workers] == [2, 4, 4]
    assert [each.wasted for each in found.workers] == [0, 0, 4]
    assert found.wasted_share == 0.4
    assert [each.contributions for each in found.workers] == [2, 2, 0]


def test_what_fastest_k_lets_finish_and_drops_is_wasted_too() -> None:
    found = measured(pl.FastestK(quorum=2, stop_late=False), constant(1, 2, 3), seconds=6)
    assert [each.wasted for each in found.workers] == [0, 0, 6]


def test_asynchronous_staleness_of_the_group_sgd_fleet() -> None:
    fleet = constant(*[1] * 4, *[2] * 4, *[3] * 8)
    found = measured(pl.Asynchronous(), fleet, seconds=600)
    assert found.mean_staleness == pytest.approx(15, abs=0.1)
    assert found.wasted == found.idle == 0
    assert sum(each.waited_for for each in found.workers) == 0


def test_a_recalled_worker_that_finishes_its_block_wastes_nothing() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1), pl.delays.Constant(1), pl.delays.Constant(3.2)], recall="block")
    found = measured(pl.LiveCompensation(quorum=2, blocks=4), fleet, seconds=20)
    assert found.wasted == 0
    assert found.max_staleness == 1


def test_a_block_that_is_broken_off_counts_as_half_wasted() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1), pl.delays.Constant(1), pl.delays.Constant(3.2)], recall="abandon")
    found = measured(pl.LiveCompensation(quorum=2, blocks=4), fleet, seconds=2)
    assert found.workers[2].busy == 2
    assert found.workers[2].wasted == pytest.approx(2 * (1 - 1 / 1.5))


def test_transfers_are_neither_work_nor_waiting() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2, network=pl.Network(latency=0.25))
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=3))
    found = measure(trace)
    assert trace.about["transfer_seconds"] == 0.25
    assert found.updates == 2
    assert [each.busy for each in found.workers] == [2, 2]
    assert found.idle == 0


def test_a_worker_that_leaves_is_not_idle_and_its_work_is_lost() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(2)] * 2, changes=[pl.Left(3, 1), pl.Joined(5, 1)])
    found = measured(pl.Asynchronous(), fleet, seconds=6)
    assert [each.wasted for each in found.workers] == [0, 1]
    assert [each.idle for each in found.workers] == [0, 0]


def test_what_is_not_finite_is_wasted_and_told_with_its_worker() -> None:
    writer = TraceWriter(None, {"workers": 2, "transfer_seconds": 0.0})
    tickets = [Ticket(0, 0, 0), Ticket(1, 1, 0)]
    writer.record([Joined(0.0, 0), Joined(0.0, 1)], [Start(ticket) for ticket in tickets])
    writer.record([Arrived(1.0, tickets[0], 1)], [])
    writer.record([Arrived(2.0, tickets[1], 1)], [Step(dict.fromkeys(tickets, Fraction(1, 2)))])
    writer.non_finite([tickets[1]])
    found = measure(writer.close())
    assert [each.non_finite for each in found.workers] == [0, 1]
    assert [each.wasted for each in found.workers] == [0, 2]
    assert [each.contributions for each in found.workers] == [1, 0]


@pytest.mark.parametrize(
    "strategy",
    [
        pl.Synchronous(),
        pl.Asynchronous(),
        pl.FastestK(quorum=2),
        pl.LiveCompensation(quorum=2, blocks=4),
        pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(quorum=1, blocks=4)),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_staleness_agrees_with_the_run_itself(strategy: Strategy) -> None:
    import torch

    fleet = pl.SimulatedFleet(
        [
            pl.delays.LogNormal(1.0, 0.3),
            pl.delays.LogNormal(1.5, 0.3),
            pl.delays.Pareto(1.0, 2.0),
            pl.delays.Constant(3.0),
        ]
    )
    data = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2
    task = pl.Task(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, data)
    run = pl.train(
        task,
        strategy=strategy,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8,
        stop=pl.Stop(updates=40),
    )
    found = measure(run.trace)
    assert found.updates == 40
    assert found.mean_staleness == pytest.approx(run.mean_staleness)
    assert found.max_staleness == run.max_staleness


def test_the_gaps_of_many_ages_are_those_of_each_pair() -> None:
    """Of few ages each pair is looked at; of many, Fourier transforms add all of them up."""
    generator = random.Random(0)
    for number, most in ((5, 20), (40, 60), (200, 500), (200, 200), (100, 10_000)):
        by_age = {age: generator.uniform(-1, 1) for age in generator.sample(range(7, 7 + most), number)}
        expected: defaultdict[int, float] = defaultdict(float)
        for (age, one), (other, another) in product(by_age.items(), repeat=2):
            expected[abs(age - other)] += one * another
        reader = MeasureReader({})
        reader._count_weights(by_age)
        assert reader._weight_by_gap.keys() == expected.keys()
        assert reader._weight_by_gap == pytest.approx(expected, abs=1e-12)


def test_an_update_with_thousands_of_ages_takes_little_time() -> None:
    reader = MeasureReader({})
    began = time.process_time()
    reader._count_weights(dict.fromkeys(range(20_000), 1 / 20_000))  # 400 million pairs
    assert time.process_time() - began < 5
    assert sum(reader._weight_by_gap.values()) == pytest.approx(1)
