"""Model averaging and EC-DNN when workers are slow, come, go or fail, and when what is asked for cannot be."""

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Step
from paceline.trace.format import NonFinite
from support.digits import digits, digits_task, weights
from support.local_models import fleet, members, mlp, run, sgd
from support.quadratic import Consecutive

EC = pl.EnsembleCompression


# Who waits for whom


def test_only_the_fastest_models_make_the_ensemble() -> None:
    slow = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(9.0), pl.delays.Constant(1.0)])
    result = run(EC(4, steps=12, waits=pl.FastestK(2)), on=slow)
    assert len(members(result)) == 2
    assert {ticket.worker for fact in result.trace if isinstance(fact, Step) for ticket in fact.weights} == {0, 2}


def test_workers_come_and_go() -> None:
    changes: list[pl.Left | pl.Joined] = [pl.Left(3.5, 0), pl.Joined(9.0, 0), pl.Joined(5.0, 2)]
    changing = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3, changes=changes)
    for strategy in (EC(2, compression_steps=1, relabel=0.02), pl.ModelAveraging(2)):
        result = run(strategy, on=changing, updates=9)
        steps = [{ticket.worker for ticket in fact.weights} for fact in result.trace if isinstance(fact, Step)]
        assert steps[0] == {0, 1}
        assert {1} in steps
        assert steps[-1] == {0, 1, 2}
        assert result.ended == "updates"
        assert math.isfinite(result.history[-1].loss)


@pytest.mark.parametrize("strategy", [EC(4), EC(4, "regression"), EC(4, "margin"), pl.ModelAveraging(4)], ids=repr)
def test_fewer_models_than_asked_go_on_without_the_others(strategy: pl.strategy.Strategy) -> None:
    leaving = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, changes=[pl.Left(5.0, 1)])
    result = run(strategy, on=leaving, updates=4)
    assert result.ended == "updates"
    last = [fact for fact in result.trace if isinstance(fact, Step)][-1]
    assert [ticket.worker for ticket in last.weights] == [0]


def test_when_everybody_left_the_run_ends_with_what_there_is() -> None:
    gone = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, changes=[pl.Left(9.5, 0), pl.Left(9.5, 1)])
    for strategy in (EC(4), pl.ModelAveraging(4)):
        result = run(strategy, on=gone, updates=9)
        assert result.ended == "no workers"
        assert result.history[-1].updates > 0


# Models that are not finite


def spoilt_task(spoilt: Sequence[int]) -> pl.Task:
    """The first samples of these workers, out of four, are infinite."""
    (x, y), test = digits()
    x = x.clone()
    for worker in spoilt:
        x[375 * worker] = math.inf
    return pl.Task(mlp(), cross_entropy, train=(x, y), test=test)


def train_spoilt(spoilt: Sequence[int], strategy: pl.strategy.Strategy) -> pl.Run:
    """Every worker goes through its shard in 3 updates, and so meets its infinite sample once."""
    return pl.train(
        spoilt_task(spoilt),
        strategy=strategy,
        fleet=fleet(4),
        optimizer=sgd(momentum=0.9),
        stop=pl.Stop(updates=3),
        batch_size=15,
        partition=Consecutive(),
        progress=False,
    )


ONE_EXCHANGE = EC(every=8, compression_steps=2, diversity=0.0)


@pytest.mark.parametrize("strategy", [ONE_EXCHANGE, EC(8, "regression", diversity=0.0), pl.ModelAveraging(8)], ids=repr)
def test_a_model_that_is_not_finite_is_left_out_reported_and_reset(
    strategy: pl.strategy.Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "paceline"):
        result = train_spoilt([2], strategy)
    assert result.ended == "updates"
    assert [ticket.worker for ticket in result.non_finite] == [2]
    assert [fact.ticket for fact in result.trace if isinstance(fact, NonFinite)] == list(result.non_finite)
    assert "leaves out worker 2: its model is not finite after 8 local steps" in caplog.text
    assert bool(weights(result.model).isfinite().all())
    assert math.isfinite(result.history[-1].loss)
    assert result.summary()["spoiled_by_worker"] == {"2": 1}


def test_a_worker_that_was_reset_goes_on_from_the_ensembles_first_member() -> None:
    """Both compute the same until they train on data of their own."""
    result = train_spoilt([2], EC(every=25, compression_steps=0, diversity=0.0, same_start=False))
    assert [ticket.version for ticket in result.non_finite] == [
        0,
        1,
        2,
    ]  # every epoch meets the sample: left out each time
    assert len(members(result)) == 3
    assert result.local is not None


def test_a_run_of_which_no_model_is_finite_has_diverged() -> None:
    for strategy in (EC(every=25), pl.ModelAveraging(every=25)):
        result = train_spoilt([0, 1, 2, 3], strategy)
        assert result.ended == "diverged"
        assert result.problem is not None
        assert "none of the last 4 models is finite after 25 local steps" in result.problem
        assert len(result.non_finite) == 4


def test_single_models_end_the_run_only_when_all_workers_in_a_row_are_not_finite() -> None:
    lone = pl.ModelAveraging(every=25, waits=pl.Asynchronous())
    assert train_spoilt([1], lone).ended == "updates"
    task = spoilt_task([0, 1, 2, 3])
    result = pl.train(
        task, strategy=lone, fleet=fleet(4), optimizer=sgd(), stop=pl.Stop(updates=20), batch_size=15,
        partition=Consecutive(),
    )  # fmt: skip
    assert (result.ended, len(result.non_finite), result.history[-1].updates) == ("diverged", 4, 3)
    torch.testing.assert_close(weights(result.model), weights(mlp()), rtol=0, atol=0)  # the last good ones


# Bad input


def refused(said: str, strategy: pl.strategy.Strategy, *, workers: int = 4, model: nn.Module | None = None) -> None:
    with pytest.raises(pl.ConfigError, match=said):
        run(strategy, on=fleet(workers), model=model, updates=3)


class Ignoring(nn.Module):
    """A loss of one's own that says what it ignores."""

    ignore_index = 5

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets, ignore_index=5)


IGNORING: list[tuple[Any, int]] = [
    (cross_entropy, -100),
    (nn.CrossEntropyLoss(), -100),
    (nn.CrossEntropyLoss(ignore_index=3, weight=torch.linspace(0.5, 2.0, 10, dtype=torch.float64)), 3),
    (functools.partial(cross_entropy, ignore_index=99), 99),
    (Ignoring(), 5),
]


@pytest.mark.parametrize("weights", ["margin", "regression"])
@pytest.mark.parametrize(("loss", "ignored"), IGNORING, ids=["function", "module", "class weights", "partial", "own"])
def test_samples_whose_targets_are_ignored_are_labelled_all_the_same(loss: Any, ignored: int, weights: Any) -> None:
    """All those of the first worker are: nothing can be fitted on them."""
    (inputs, targets), _ = digits()
    targets = targets.clone()
    targets[::3] = ignored
    targets[: len(targets) // 3] = ignored
    task = replace(digits_task(mlp()), loss=loss, train=(inputs, targets), test=None)
    rule = EC(3, weights, relabel=1.0, compression_steps=1)
    found = pl.train(
        task, strategy=rule, fleet=fleet(3), optimizer=sgd(), stop=pl.Stop(updates=5), partition=Consecutive(),
        progress=False,
    )  # fmt: skip
    assert found.ended == "updates"
    assert math.isfinite(found.history[-1].loss)


def test_one_worker_with_a_regression_is_refused() -> None:
    refused("a regression over one model only scales it: use more workers", EC(5, "regression"), workers=1)


def test_a_quorum_beyond_the_fleet_is_refused() -> None:
    refused("a quorum of 9 does not fit 4 workers", pl.ModelAveraging(4, waits=pl.FastestK(9)))


def test_a_model_without_shape_is_refused() -> None:
    for strategy in (EC(4), pl.ModelAveraging(4), pl.Synchronous()):
        refused("pass one mini-batch through it", strategy, model=nn.Sequential(nn.LazyLinear(10)))


def test_a_run_needs_an_end_unless_the_strategy_has_one() -> None:
    refused_without_end = (EC(5), pl.ModelAveraging(5))
    for strategy in refused_without_end:
        with pytest.raises(pl.ConfigError, match="a run needs an end"):
            run(strategy)
    assert run(EC(5, steps=5), updates=1).ended == "updates"


def test_the_task_stays_as_it_is() -> None:
    task = digits_task(mlp())
    before = weights(task.model).clone()
    for strategy in (EC(3, steps=6), pl.ModelAveraging(3, steps=6)):
        pl.train(task, strategy=strategy, fleet=fleet(2), optimizer=sgd())
    assert torch.equal(weights(task.model), before)
