"""Outer optimizers, mixed and elastic models: compared with plain loops over the same mini-batches."""

import copy
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import paceline as pl
from paceline.core.coordinator import Strategy
from paceline.core.errors import IllegalDecision
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Step, mean
from paceline.storage import saved_models
from support.digits import Noted, digits, digits_task, weights
from support.local_models import fleet, mlp, run, sgd, trained_by_hand

UNEQUAL = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.7), pl.delays.Constant(3.1)])
Combine = Callable[[Tensor, list[tuple[Fraction, Tensor, Tensor]]], Tensor]  # of w, and (weight, model, what it was)


def load(model: nn.Module, values: Tensor) -> nn.Module:
    nn.utils.vector_to_parameters(values, model.parameters())
    return model


def by_trace(result: pl.Run, record: Noted, combine: Combine) -> Tensor:
    """The run's updates made again, one model after the other, with plain SGD and no momentum of the workers."""
    versions, done = [weights(mlp())], dict.fromkeys(range(8), 0)
    for fact in result.trace:
        if not isinstance(fact, Step) or len(versions) > result.history[-1].updates:
            continue
        handed_in = []
        for ticket, weight in sorted(fact.weights.items()):
            first, units = done[ticket.worker], ticket.work.units
            done[ticket.worker] += units
            began = versions[ticket.version]
            trained_by_hand(model := load(mlp(), began.clone()), record.draws[ticket.worker][first : first + units])
            handed_in.append((weight, weights(model), began))
        versions.append(combine(versions[-1], handed_in))
    return versions[-1]


def close(one: Tensor, other: Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=within)


def diloco(batches: Callable[[int, int], Sequence[Sequence[int]]], workers: int, rounds: int) -> nn.Module:
    """DiLoCo as a script: inner AdamW, outer SGD with Nesterov's momentum."""
    model = mlp()
    replicas = [copy.deepcopy(model) for _ in range(workers)]
    inner = [AdamW(replica.parameters(), lr=0.01, weight_decay=0.1) for replica in replicas]
    outer = SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for round_ in range(rounds):
        for worker, replica in enumerate(replicas):
            replica.load_state_dict(model.state_dict())
            trained_by_hand(replica, batches(worker, round_), inner[worker])
        outer.zero_grad()
        for parameter, *own in zip(model.parameters(), *(replica.parameters() for replica in replicas), strict=True):
            parameter.grad = torch.stack([parameter.detach() - each.detach() for each in own]).mean(dim=0)
        outer.step()
    return model


def adamw(parameters: object) -> AdamW:
    return AdamW(parameters, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "strategy",
    [
        pl.DiLoCo(every=3),
        pl.ModelAveraging(3, outer=lambda parameters: SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)),
    ],
    ids=["DiLoCo", "function"],
)
def test_diloco_comes_to_the_parameters_of_a_plain_script(strategy: Strategy) -> None:
    record = Noted()
    result = run(strategy, on=fleet(3), sampling=record, optimizer=adamw, updates=5)
    expected = diloco(lambda worker, round_: record.draws[worker][3 * round_ : 3 * round_ + 3], workers=3, rounds=5)
    close(weights(result.model), weights(expected), within=1e-6)


@pytest.mark.parametrize("waits", [pl.Synchronous(), pl.Asynchronous(), pl.Grouped([[0], [1, 2]])], ids=repr)
@pytest.mark.parametrize("every", [1, 3])
def test_an_outer_sgd_with_a_learning_rate_of_1_is_averaging_bit_for_bit(waits: Strategy, every: int) -> None:
    plain = run(pl.ModelAveraging(every, waits), on=UNEQUAL, updates=6)
    for outer in (lambda parameters: SGD(parameters, lr=1.0), pl.OuterSGD(1.0, 0.0)):
        other = run(pl.ModelAveraging(every, waits, outer=outer), on=UNEQUAL, updates=6)
        assert torch.equal(weights(other.model), weights(plain.model))


WAITS = [pl.Asynchronous(), pl.Grouped([[0, 2], [1]]), pl.FastestK(2), pl.Buffered(4), pl.QuorumGrace(2, 0.5)]


@pytest.mark.parametrize("waits", WAITS, ids=repr)
def test_the_outer_optimizer_follows_any_waiting_rule(waits: Strategy) -> None:
    record, place = Noted(), nn.Parameter(weights(mlp()))
    outer = Adam([place], lr=0.02)
    rule = pl.ModelAveraging(2, waits, outer=lambda parameters: Adam(parameters, lr=0.02))
    result = run(rule, on=UNEQUAL, sampling=record, updates=7)

    def combine(now: Tensor, handed_in: list[tuple[Fraction, Tensor, Tensor]]) -> Tensor:
        place.data = now.clone()
        place.grad = sum((float(w) * (began - model) for w, model, began in handed_in), torch.zeros_like(now))
        outer.step()
        return place.detach().clone()

    close(weights(result.model), by_trace(result, record, combine), within=1e-9)


@pytest.mark.parametrize("nesterov", [False, True])
def test_bmuf_is_the_papers_recursion(nesterov: bool) -> None:
    r"""$\Delta = \mu \Delta + \eta G$; with Nesterov, a block begins ahead of the model, at $w + \mu \Delta$."""
    record = Noted()
    result = run(pl.BMUF(2, 0.8, nesterov=nesterov), on=fleet(4), sampling=record, updates=5)
    delta = torch.zeros_like(weights(mlp()))
    state = {"delta": delta, "model": weights(mlp())}
    momentum = 1 - 1 / 4

    def combine(begun: Tensor, handed_in: list[tuple[Fraction, Tensor, Tensor]]) -> Tensor:
        block = torch.stack([model for _, model, _ in handed_in]).mean(dim=0) - begun
        state["delta"] = momentum * state["delta"] + 0.8 * block
        state["model"] = state["model"] + state["delta"]
        return state["model"] + momentum * state["delta"] if nesterov else state["model"]

    close(weights(result.model), by_trace(result, record, combine))


def test_slowmo_is_the_papers_recursion() -> None:
    record = Noted()
    result = run(pl.SlowMo(2, outer_lr=0.9, outer_momentum=0.6), on=fleet(3), sampling=record, updates=5)
    slow, rate = [torch.zeros_like(weights(mlp()))], 0.1

    def combine(now: Tensor, handed_in: list[tuple[Fraction, Tensor, Tensor]]) -> Tensor:
        average = torch.stack([model for _, model, _ in handed_in]).mean(dim=0)
        slow.append(0.6 * slow[-1] + (now - average) / rate)
        return now - 0.9 * rate * slow[-1]

    close(weights(result.model), by_trace(result, record, combine))


def test_post_local_sgd_is_synchronous_at_first() -> None:
    optimizer = sgd(momentum=0.9)
    begins = run(pl.PostLocalSGD(every=4, warm_up=3), on=fleet(3), optimizer=optimizer, updates=3)
    close(weights(begins.model), weights(run(pl.Synchronous(), on=fleet(3), optimizer=optimizer, updates=3).model))
    units = [[t.work.units for t in fact.weights] for fact in _updates(pl.PostLocalSGD(4, warm_up=2, steps=9), 4)]
    assert units == [[1, 1], [1, 1], [4, 4], [3, 3]]


def _updates(strategy: Strategy, count: int) -> list[Step]:
    trace = pl.simulate(strategy, pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2), pl.Stop(updates=count))
    return [fact for fact in trace if isinstance(fact, Step)]


# Models that pull


def test_fedasync_mixes_each_model_in_the_less_the_older_it_is() -> None:
    record = Noted()
    result = run(pl.FedAsync(2, mixing=0.6), on=UNEQUAL, sampling=record, updates=9)
    ages = []
    for number, fact in enumerate(fact for fact in result.trace if isinstance(fact, Step)):
        (ticket,) = fact.weights
        ages.append(number - ticket.version)
        assert fact.weights[ticket] == Fraction(round(600_000 / math.sqrt(1 + ages[-1])), 10**6)
    assert max(ages) > 1

    def combine(now: Tensor, handed_in: list[tuple[Fraction, Tensor, Tensor]]) -> Tensor:
        ((alpha, model, _),) = handed_in
        return (1 - float(alpha)) * now + float(alpha) * model

    close(weights(result.model), by_trace(result, record, combine))


@pytest.mark.parametrize("waits", [pl.Asynchronous(), pl.Synchronous()], ids=repr)
def test_the_elastic_force_pulls_both_ways(waits: Strategy) -> None:
    record = Noted()
    result = run(pl.EASGD(2, waits=waits), on=UNEQUAL, sampling=record, updates=9)
    centre, own, done = weights(mlp()), [weights(mlp()) for _ in range(3)], [0, 0, 0]
    for fact in [fact for fact in result.trace if isinstance(fact, Step)][:9]:
        before = centre
        for ticket, alpha in sorted(fact.weights.items()):
            assert alpha == Fraction(3, 10)
            worker, first = ticket.worker, done[ticket.worker]
            done[worker] += 2
            model = weights(trained_by_hand(load(mlp(), own[worker]), record.draws[worker][first : first + 2]))
            own[worker] = model - 0.3 * (model - before)
            centre = centre + 0.3 * (model - before)
    close(weights(result.model), centre)
    assert result.local is not None
    assert any(torch.allclose(weights(result.local), each, rtol=0, atol=1e-12) for each in own)


def test_a_model_that_is_not_finite_is_left_out_and_its_worker_begins_anew() -> None:
    (x, y), test = digits()
    x = x.clone()
    x[0] = math.inf  # one worker meets it, in one of its mini-batches
    task = pl.Task(mlp(), nn.functional.cross_entropy, (x, y), test)
    stale = pl.DiLoCo(2, outer_momentum=0.0, waits=pl.Asynchronous())  # along stale differences momentum swings
    for rule in (pl.EASGD(2, waits=pl.Synchronous()), pl.DiLoCo(2), stale):
        result = pl.train(
            task, strategy=rule, fleet=fleet(3), optimizer=sgd(), stop=pl.Stop(epochs=2), batch_size=16, progress=False
        )
        assert len({ticket.worker for ticket in result.non_finite}) == 1, rule
        assert result.ended == "epochs", rule
        assert weights(result.model).isfinite().all()
        assert result.history[-1].loss < result.history[0].loss


class Twice(Strategy):
    """A buffer: a worker goes on at once, and an update uses two models of each worker."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if len(ledger.handed_in) >= 2 * len(ledger.workers):
            return [Step(mean(tuple(ledger.handed_in)))]
        return [Assign(worker) for worker in ledger.workers if worker not in ledger.running]


def test_several_models_of_one_worker_are_averaged() -> None:
    record = Noted()
    optimizer = sgd(momentum=0.9)
    rule = pl.ModelAveraging(2, waits=Twice())
    result = run(rule, on=fleet(2), sampling=record, optimizer=optimizer, updates=1)
    models = []
    for worker in range(2):
        kept = None
        for piece in range(2):  # both begin with the same model; the momentum goes on
            own = SGD((model := mlp()).parameters(), lr=0.1, momentum=0.9)
            if kept is not None:
                own.load_state_dict(kept)
            trained_by_hand(model, record.draws[worker][2 * piece : 2 * piece + 2], own)
            kept = own.state_dict()
            models.append(weights(model))
    close(weights(result.model), torch.stack(models).mean(dim=0))


def test_what_needs_the_last_model_of_a_worker_refuses_a_buffer() -> None:
    with pytest.raises(IllegalDecision, match="cannot give worker 0 new work before its last model is used"):
        run(pl.EASGD(2, waits=Twice()), on=fleet(2), updates=2)
    with pytest.raises(IllegalDecision, match="two models of one worker in one step: an ensemble has one member a wor"):
        run(pl.EnsembleCompression(2, waits=Twice()), on=fleet(2), updates=2)


@pytest.mark.parametrize(
    ("outer", "said"),
    [
        (lambda parameters: 3, "outer=<lambda>: optimizer= made a int, which is no torch optimizer"),
        (lambda parameters: SGD(mlp().parameters(), lr=1.0), "outer=<lambda>: the optimizer steps other parameters"),
        (lambda parameters: SGD(parameters[:1], lr=1.0), "outer= steps 1 of 4 trained parameters, and the others"),
        (torch.optim.LBFGS, "outer=LBFGS: optimizer: LBFGS evaluates the loss by itself"),
    ],
)
def test_what_is_no_outer_optimizer_is_refused_before_training(outer: Callable[..., object], said: str) -> None:
    with pytest.raises(pl.ConfigError, match=said):
        run(pl.ModelAveraging(2, outer=outer), updates=1)


def test_a_run_is_not_resumed_with_another_outer_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_models, "_save_architecture", lambda *arguments: None)  # takes longer than the run

    def trained(rate: float, updates: int, resume: bool) -> pl.Run:
        return pl.train(
            digits_task(mlp()), strategy=pl.ModelAveraging(2, outer=lambda parameters: SGD(parameters, lr=rate)),
            fleet=fleet(2), optimizer=sgd(), stop=pl.Stop(updates=updates), directory=tmp_path, resume=resume,
            progress=False,
        )  # fmt: skip

    trained(0.5, 1, resume=False)
    with pytest.raises(pl.ConfigError, match=r"begun with outer optimizer: lr = 0\.5, not 0\.6"):
        trained(0.6, 2, resume=True)
