"""The invariants K5-K9 and K11 of the EC-DNN specification on whole runs, and what happens when things go wrong."""

import logging
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.facts import Start, Step, Ticket, local_steps
from paceline.learning.averaging import Averaging
from paceline.learning.ensemble import Ensemble, NormalEquations
from paceline.trace import Fact, Spoiled
from support.digits import Recorded, digits, digits_task, rows, weights
from support.local_models import fleet, members, mlp, run, sgd, trained_by_hand, trainers
from support.quadratic import Consecutive

EC = pl.EnsembleCompression
LIVELY = 0.3  # dropout, so that random numbers count


def kinds(result: pl.Run) -> list[tuple[str, int]]:
    """What was given out to worker 0, up to the last update."""
    return [fact.ticket.work for fact in until_the_end(result) if isinstance(fact, Start) and fact.ticket.worker == 0]


def until_the_end(result: pl.Run) -> list[Fact]:
    """The trace without what would have come after the last update."""
    facts = list(result.trace)
    while not isinstance(facts[-1], Step):
        facts.pop()
    return facts


# K5-K11


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_k5_averaging_after_every_step_is_ssgd_with_local_momentum_and_weight_decay_too(
    momentum: float, weight_decay: float
) -> None:
    optimizer = sgd(momentum=momentum, weight_decay=weight_decay)
    averaging = run(pl.ModelAveraging(every=1), optimizer=optimizer, updates=20)
    synchronous = run(pl.Synchronous(), optimizer=optimizer, updates=20)
    torch.testing.assert_close(weights(averaging.model), weights(synchronous.model), rtol=0, atol=1e-12)
    assert [row.loss for row in averaging.history] == pytest.approx([row.loss for row in synchronous.history])
    assert [row.samples for row in averaging.history] == [row.samples for row in synchronous.history]


def test_k5_needs_a_linear_step() -> None:
    """Adam's step is not linear in the gradient: averaging after every step is another method then."""

    def adam(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)  # type: ignore[arg-type]

    averaging, synchronous = (run(s, optimizer=adam, updates=5) for s in (pl.ModelAveraging(1), pl.Synchronous()))
    assert float((weights(averaging.model) - weights(synchronous.model)).abs().max()) > 1e-4


def test_k6_one_worker_distils_itself_unless_both_terms_are_off() -> None:
    def single(strategy: pl.Strategy) -> Tensor:
        return members(run(strategy, on=fleet(1)))[0]

    alone = single(pl.FinalEnsemble(20))
    assert torch.equal(single(EC(5, steps=20, distillation=0.0, diversity=0.0)), alone)
    assert torch.equal(single(EC(5, steps=20, compression_steps=0, diversity=0.0)), alone)
    assert not torch.equal(single(EC(5, steps=20, compression_steps=2, diversity=0.0)), alone)
    assert not torch.equal(single(EC(5, steps=20, distillation=0.0, compression_steps=2)), alone)


@pytest.mark.parametrize("rule", ["simple", "margin", "regression"])
def test_k7_an_interval_beyond_the_end_is_e_dnn_bit_for_bit(rule: str) -> None:
    ec = run(EC(1000, rule, steps=15), model=mlp(dropout=LIVELY))  # type: ignore[arg-type]
    e = run(pl.FinalEnsemble(15), model=mlp(dropout=LIVELY))
    assert all(map(torch.equal, members(ec), members(e)))
    assert ec.local is not None
    assert e.local is not None
    assert torch.equal(weights(ec.local), weights(e.local))
    assert until_the_end(ec) == until_the_end(e)
    assert (rows(ec) == rows(e)) == (rule != "regression")  # whose coefficients are not equal


@pytest.mark.parametrize(
    "off",
    [
        EC(5, steps=15, compression_steps=0, diversity=0.0),  # K8
        EC(5, steps=15, compression_steps=2, distillation=0.0, diversity=0.0),  # K11
        EC(5, steps=15, compression_steps=2, relabel=0.0, diversity=0.0),
        EC(5, steps=15, compression_steps=2, relabel=0.0),  # no sample has a centre either
        EC(5, steps=15, compression_steps=5, distillation=0.0),  # and no step is left for diversity
    ],
    ids=repr,
)
def test_k8_k11_without_its_terms_compression_is_plain_training(off: pl.EnsembleCompression) -> None:
    e = run(pl.FinalEnsemble(15), model=mlp(dropout=LIVELY))
    ec = run(off, model=mlp(dropout=LIVELY))
    assert all(map(torch.equal, members(ec), members(e)))


@pytest.mark.parametrize(
    "on",
    [
        EC(5, steps=15, compression_steps=2, diversity=0.0),
        EC(5, steps=15, compression_steps=2, distillation=0.0),
        EC(5, steps=15, compression_steps=0),
        EC(5, "regression", steps=15, compression_steps=0),
        EC(5, steps=15, compression_steps=5),
        EC(5, steps=15, compression_steps=2, squared=True),
    ],
    ids=repr,
)
def test_each_term_by_itself_has_an_effect(on: pl.EnsembleCompression) -> None:
    e = members(run(pl.FinalEnsemble(15)))
    ec = members(run(on))
    assert not any(map(torch.equal, ec, e))
    assert all(bool(model.isfinite().all()) for model in ec)


def test_k9_models_that_stay_identical_are_their_own_average_and_ensemble() -> None:
    """Nobody learns anything; the final models differ in nothing."""
    for strategy in (EC(3, steps=6, same_start=True), pl.ModelAveraging(3, steps=6)):
        result = run(strategy, optimizer=sgd(lr=0.0))
        first, last = result.history[0], result.history[-1]
        assert last.accuracy == first.accuracy  # Diff_LG is 0
        assert last.loss == pytest.approx(first.loss, rel=1e-6)
        assert result.local is not None
        torch.testing.assert_close(weights(result.local), weights(mlp()), rtol=0, atol=0)


def test_averaging_two_nets_that_compute_the_same_can_destroy_both() -> None:
    """Relu(x) - relu(-x) = x, with the hidden units in either order: each has no error, nor has the ensemble."""
    x = torch.tensor([[-2.0], [-1.0], [0.5], [3.0]])

    def net(sign: float) -> nn.Sequential:
        model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        with torch.no_grad():
            model.get_parameter("0.weight").copy_(sign * torch.tensor([[1.0], [-1.0]]))
            model.get_parameter("2.weight").copy_(sign * torch.tensor([[1.0, -1.0]]))
        return model

    straight, permuted = net(1.0).requires_grad_(False), net(-1.0).requires_grad_(False)
    each = [float((model(x) - x).square().mean()) for model in (straight, permuted)]
    ensemble = (straight(x) + permuted(x)) / 2
    assert each == [0.0, 0.0]
    assert float((ensemble - x).square().mean()) == 0.0
    averaged = averaged_by_paceline(net(1.0), net(-1.0)).requires_grad_(False)
    assert float((averaged(x) - x).square().mean()) == 3.5625


def averaged_by_paceline(*models: nn.Module) -> nn.Module:
    task = pl.Task(models[0], nn.functional.mse_loss, train=(torch.zeros(8, 1), torch.zeros(8, 1)))
    job, workers = trainers(task, [np.arange(4)] * len(models), sgd())
    averaging = Averaging(job, pl.ModelAveraging(1), workers)
    tickets = [Ticket(number, number, 0, local_steps(1)) for number in range(len(models))]
    for ticket, trainer, model in zip(tickets, workers, models, strict=True):
        averaging.started(ticket)
        trainer.load([parameter.detach() for parameter in model.parameters()])
    averaging.combine(dict.fromkeys(tickets, Fraction(1, len(models))), [])
    return averaging.model


# The course of a run


def test_every_worker_begins_with_weights_of_its_own_or_with_the_same() -> None:
    task_model = mlp()
    different = members(run(pl.FinalEnsemble(1), model=task_model, optimizer=sgd(lr=0.0)))
    assert all(not torch.equal(a, b) for n, a in enumerate(different) for b in different[:n])
    same = members(run(pl.FinalEnsemble(1, same_start=True), model=task_model, optimizer=sgd(lr=0.0)))
    assert all(torch.equal(each, weights(task_model)) for each in same)


def test_frozen_layers_stay_as_they_are() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    frozen = model[0].get_parameter("weight").detach().clone()
    result = run(EC(3, steps=6), model=model)
    assert isinstance(result.model, Ensemble)
    for member in result.model.members:
        assert torch.equal(member.get_parameter("0.weight"), frozen)
    heads = [member.get_parameter("3.weight") for member in result.model.members]
    assert not torch.equal(heads[0], heads[1])


def test_a_model_that_cannot_draw_weights_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(64, 10, dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ self.w

    with caplog.at_level(logging.WARNING, "paceline"):
        run(pl.FinalEnsemble(1), model=Bare())
    assert "no layer of the model knows how to draw its weights anew" in caplog.text


def test_e_dnn_is_training_apart() -> None:
    """Each member is what torch makes of the same mini-batches."""
    record = Recorded()
    start = mlp()
    result = run(pl.FinalEnsemble(12, same_start=True), model=start, sampling=record)
    for worker, member in enumerate(members(result)):
        torch.testing.assert_close(member, weights(trained_by_hand(mlp(), record.draws[worker])), rtol=0, atol=1e-12)


def test_the_pieces_of_a_round_with_two_exchanges() -> None:
    result = run(EC(10, compression_steps=3, steps=25))
    assert kinds(result) == [("local_steps", 10), ("distilled_steps", 3), ("local_steps", 7), ("distilled_steps", 3),
                             ("local_steps", 2)]  # fmt: skip
    assert result.history[-1].samples == 25 * 16 * 4
    assert result.ended == "updates"


def test_without_diversity_there_is_one_exchange_a_round() -> None:
    result = run(EC(10, compression_steps=3, steps=25, diversity=0.0))
    assert kinds(result) == [("local_steps", 10), ("distilled_steps", 10), ("distilled_steps", 5)]


@pytest.mark.parametrize("steps", [1, 9, 10, 11, 12, 13, 20, 21, 25, 30])
def test_every_method_makes_exactly_the_steps_that_were_asked_for(steps: int) -> None:
    for strategy in (EC(10, compression_steps=2, steps=steps), pl.ModelAveraging(10, steps=steps)):
        assert sum(units for _, units in kinds(run(strategy, on=fleet(2)))) == steps


def test_the_local_model_is_the_one_with_the_smallest_training_loss() -> None:
    (x, y), _ = digits()
    result = run(pl.FinalEnsemble(20))
    assert isinstance(result.model, Ensemble)
    assert result.local is not None
    losses = [cross_entropy(member(x), y).item() for member in result.model.eval().members]
    assert len(set(losses)) == 4
    assert cross_entropy(result.local.eval()(x), y).item() == min(losses)


def test_the_final_coefficients_of_a_regression_are_fitted_on_the_final_models() -> None:
    """Whether the last steps are local ones or compression."""
    (x, y), _ = digits()
    for steps in (25, 22):
        ensemble = run(EC(10, "regression", compression_steps=3, steps=steps, relabel=1.0)).model
        assert isinstance(ensemble, Ensemble)
        outputs = torch.stack([torch.softmax(member.eval()(x), dim=1) for member in ensemble.members]).detach()
        fit = NormalEquations(4)
        fit.add(outputs[:, :1500], y[:1500])
        torch.testing.assert_close(ensemble.weights.double(), fit.solve(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["simple", "margin"])
def test_the_final_ensemble_of_s_and_m_is_the_plain_mean(rule: str) -> None:
    ensemble = run(EC(5, rule, steps=10)).model  # type: ignore[arg-type]
    assert isinstance(ensemble, Ensemble)
    assert ensemble.weights.tolist() == [0.25] * 4


def test_the_final_ensemble_loses_no_more_on_the_test_set_than_its_members() -> None:
    (_, _), (x, y) = digits()
    result = run(EC(5, steps=40))
    assert isinstance(result.model, Ensemble)
    each = [cross_entropy(member(x), y).item() for member in result.model.eval().members]
    assert result.history[-1].loss <= sum(each) / len(each)


# Who waits for whom


def test_only_the_fastest_models_make_the_ensemble() -> None:
    slow = pl.SimulatedFleet([pl.Constant(1.0), pl.Constant(9.0), pl.Constant(1.0)])
    result = run(EC(4, steps=12, waits=pl.FastestK(2)), on=slow)
    assert len(members(result)) == 2
    assert {ticket.worker for fact in result.trace if isinstance(fact, Step) for ticket in fact.weights} == {0, 2}


def test_workers_come_and_go() -> None:
    changes: list[pl.Left | pl.Joined] = [pl.Left(3.5, 0), pl.Joined(9.0, 0), pl.Joined(5.0, 2)]
    changing = pl.SimulatedFleet(pl.Constant(1.0), workers=3, changes=changes)
    for strategy in (EC(2, compression_steps=1, relabel=0.02), pl.ModelAveraging(2)):
        result = run(strategy, on=changing, updates=9)
        steps = [{ticket.worker for ticket in fact.weights} for fact in result.trace if isinstance(fact, Step)]
        assert steps[0] == {0, 1}
        assert {1} in steps
        assert steps[-1] == {0, 1, 2}
        assert result.ended == "updates"
        assert math.isfinite(result.history[-1].loss)


@pytest.mark.parametrize("strategy", [EC(4), EC(4, "regression"), EC(4, "margin"), pl.ModelAveraging(4)], ids=repr)
def test_fewer_models_than_asked_go_on_without_the_others(strategy: pl.Strategy) -> None:
    leaving = pl.SimulatedFleet(pl.Constant(1.0), workers=2, changes=[pl.Left(5.0, 1)])
    result = run(strategy, on=leaving, updates=4)
    assert result.ended == "updates"
    last = [fact for fact in result.trace if isinstance(fact, Step)][-1]
    assert [ticket.worker for ticket in last.weights] == [0]


def test_when_everybody_left_the_run_ends_with_what_there_is() -> None:
    gone = pl.SimulatedFleet(pl.Constant(1.0), workers=2, changes=[pl.Left(9.5, 0), pl.Left(9.5, 1)])
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


def train_spoilt(spoilt: Sequence[int], strategy: pl.Strategy) -> pl.Run:
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
    strategy: pl.Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "paceline"):
        result = train_spoilt([2], strategy)
    assert result.ended == "updates"
    assert [ticket.worker for ticket in result.spoiled] == [2]
    assert [fact.ticket for fact in result.trace if isinstance(fact, Spoiled)] == list(result.spoiled)
    assert "leaves out worker 2: its model is not finite after 8 local steps" in caplog.text
    assert bool(weights(result.model).isfinite().all())
    assert math.isfinite(result.history[-1].loss)
    assert result.summary()["spoiled_by_worker"] == {"2": 1}


def test_a_worker_that_was_reset_goes_on_from_the_ensembles_first_member() -> None:
    """Both compute the same until they train on data of their own."""
    result = train_spoilt([2], EC(every=25, compression_steps=0, diversity=0.0, same_start=False))
    assert [ticket.version for ticket in result.spoiled] == [
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
        assert len(result.spoiled) == 4


def test_single_models_end_the_run_only_when_all_workers_in_a_row_are_not_finite() -> None:
    lone = pl.ModelAveraging(every=25, waits=pl.Asynchronous())
    assert train_spoilt([1], lone).ended == "updates"
    task = spoilt_task([0, 1, 2, 3])
    result = pl.train(
        task, strategy=lone, fleet=fleet(4), optimizer=sgd(), stop=pl.Stop(updates=20), batch_size=15,
        partition=Consecutive(),
    )  # fmt: skip
    assert (result.ended, len(result.spoiled), result.history[-1].updates) == ("diverged", 4, 3)
    torch.testing.assert_close(weights(result.model), weights(mlp()), rtol=0, atol=0)  # the last good ones


# Bad input


def refused(said: str, strategy: pl.Strategy, *, workers: int = 4, model: nn.Module | None = None) -> None:
    with pytest.raises(pl.ConfigError, match=said):
        run(strategy, on=fleet(workers), model=model, updates=3)


def test_one_worker_with_a_regression_is_refused() -> None:
    refused("a regression over one model only scales it: use more workers", EC(5, "regression"), workers=1)


def test_models_inside_groups_are_refused_and_turned_round() -> None:
    for inner in (pl.ModelAveraging(4), EC(4)):
        refused(r"cannot be the rule inside Grouped.*waits=Grouped", pl.Grouped([[0, 1], [2, 3]], inside=inner))
        nested = pl.Grouped([[0, 1, 2, 3]], inside=pl.Grouped([[0, 1], [2, 3]], inside=inner))
        refused("cannot be the rule inside Grouped", nested)


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
