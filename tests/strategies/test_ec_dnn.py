"""The invariants K5-K9 and K11 of the EC-DNN specification on whole runs, and what happens when things go wrong."""

import logging
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Start, Step, Ticket, Work, distilled_steps, local_steps
from paceline.learning.models.averaging import Averaging
from paceline.learning.models.ensemble import Ensemble, NormalEquations
from paceline.trace.format import Fact
from support.digits import Noted, digits, rows, weights
from support.local_models import fleet, members, mlp, run, sgd, trained_by_hand, trainers

EC = pl.EnsembleCompression
LIVELY = 0.3  # dropout, so that random numbers count


def kinds(result: pl.Run) -> list[Work]:
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
    def single(strategy: pl.strategy.Strategy) -> Tensor:
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
    workload, workers = trainers(task, [np.arange(4)] * len(models), sgd())
    averaging = Averaging(workload, pl.ModelAveraging(1).aggregation)
    tickets = [Ticket(number, number, 0, local_steps(1)) for number in range(len(models))]
    for ticket, trainer, model in zip(tickets, workers, models, strict=True):
        averaging.started(ticket, [])
        trainer.load([parameter.detach() for parameter in model.parameters()])
    share = Fraction(1, len(models))
    averaging.combine(dict.fromkeys(tickets, share), [], lambda ticket: list(workers[ticket.worker].values()))
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


class Bare(nn.Module):
    """A layer that does not know how to draw its weights anew."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(inputs, outputs, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.w


def test_weights_that_no_layer_can_draw_are_told_of_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """Also where other layers draw theirs: an ensemble whose members begin alike is less than it seems."""
    linear = nn.Linear(8, 8, dtype=torch.float64)
    model = nn.Sequential(Bare(64, 8), linear, Bare(8, 8), Bare(8, 8), Bare(8, 10))
    with caplog.at_level(logging.WARNING, "paceline"):
        run(pl.FinalEnsemble(1), model=model)
    told = "all workers begin with the same values of 0.w, 2.w, 3.w and 1 more: no layer has a reset_parameters"
    assert caplog.text.count(told) == 1


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        self.head = nn.Linear(8, 10, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(len(inputs), 8, 8)
        outputs: Tensor = self.head(self.attention(rows, rows, rows)[0].mean(1))
        return outputs


def test_a_frozen_layer_inside_one_that_sets_its_weights_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model = Attentive()
    model.attention.out_proj.requires_grad_(False)
    with torch.no_grad():
        model.attention.out_proj.bias.fill_(0.3)
    with caplog.at_level(logging.WARNING, "paceline"):
        result = run(pl.FinalEnsemble(1), model=model, optimizer=sgd(0.0))
    assert isinstance(result.model, Ensemble)
    for member in result.model.members:
        assert torch.equal(member.get_parameter("attention.out_proj.bias"), model.attention.out_proj.bias)
    assert "the same values of attention.in_proj_weight" in caplog.text


def test_weights_of_attention_are_drawn_anew_too(caplog: pytest.LogCaptureFixture) -> None:
    """Torch's name for that is another one there; it sets biases to 0 that the layer inside draws."""
    with caplog.at_level(logging.WARNING, "paceline"):
        result = run(pl.FinalEnsemble(1), model=Attentive(), optimizer=sgd(0.0))
    assert isinstance(result.model, Ensemble)
    first, second, *_ = result.model.members
    for name in ("attention.in_proj_weight", "attention.out_proj.weight", "head.weight"):
        assert not torch.equal(first.get_parameter(name), second.get_parameter(name))
    assert not first.get_parameter("attention.out_proj.bias").any()
    assert "begin with the same" not in caplog.text


def test_a_model_whose_layers_all_draw_their_weights_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    """What a layer draws for the layers inside it counts too."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Bare(64, 10)

        def reset_parameters(self) -> None:
            nn.init.normal_(self.inner.w)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.inner(inputs)
            return outputs

    with caplog.at_level(logging.WARNING, "paceline"):
        run(pl.FinalEnsemble(1), model=Whole())
        run(pl.FinalEnsemble(1), model=mlp())
    assert "begin with the same" not in caplog.text


def test_e_dnn_is_training_apart() -> None:
    """Each member is what torch makes of the same mini-batches."""
    record = Noted()
    start = mlp()
    result = run(pl.FinalEnsemble(12, same_start=True), model=start, sampling=record)
    for worker, member in enumerate(members(result)):
        torch.testing.assert_close(member, weights(trained_by_hand(mlp(), record.draws[worker])), rtol=0, atol=1e-12)


def test_the_pieces_of_a_round_with_two_exchanges() -> None:
    result = run(EC(10, compression_steps=3, steps=25))
    assert kinds(result) == [local_steps(10), distilled_steps(3), local_steps(7), distilled_steps(3),
                             local_steps(2)]  # fmt: skip
    assert result.history[-1].samples == 25 * 16 * 4
    assert result.ended == "updates"


def test_without_diversity_there_is_one_exchange_a_round() -> None:
    result = run(EC(10, compression_steps=3, steps=25, diversity=0.0))
    assert kinds(result) == [local_steps(10), distilled_steps(10), distilled_steps(5)]


@pytest.mark.parametrize("steps", [1, 9, 10, 11, 12, 13, 20, 21, 25, 30])
def test_every_method_makes_exactly_the_steps_that_were_asked_for(steps: int) -> None:
    for strategy in (EC(10, compression_steps=2, steps=steps), pl.ModelAveraging(10, steps=steps)):
        assert sum(work.units for work in kinds(run(strategy, on=fleet(2)))) == steps


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
