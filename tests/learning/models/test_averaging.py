"""Averaged models, compared with what torch makes of the same mini-batches."""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.core.messages import Step
from support.digits import Noted, digits, weights
from support.forks import all_well, forked
from support.gloo_averaging import MOMENTUM, PERIOD, ROUNDS, average
from support.local_models import fleet, mlp, run, sgd, trained_by_hand


def averaged(models: Sequence[nn.Module]) -> nn.Module:
    """A model with the mean parameters."""
    result = copy.deepcopy(models[0])
    with torch.no_grad():
        for parameter, *own in zip(result.parameters(), *(model.parameters() for model in models), strict=True):
            parameter.copy_(torch.stack(list(own)).mean(dim=0))
    return result


def close(first: nn.Module, second: nn.Module, within: float = 1e-12) -> None:
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=within)


def test_every_round_begins_with_the_average_of_the_last() -> None:
    record = Noted()
    result = run(pl.ModelAveraging(every=3), on=fleet(2), sampling=record, updates=4)
    expected = mlp()
    for number in range(4):
        parts = [record.draws[worker][3 * number : 3 * number + 3] for worker in range(2)]
        expected = averaged([trained_by_hand(copy.deepcopy(expected), part) for part in parts])  # type: ignore[assignment]
    close(result.model, expected)


def test_torchs_periodic_averager_on_two_real_processes_gets_the_same(tmp_path: Path) -> None:
    record = Noted()
    optimizer = sgd(momentum=MOMENTUM)
    result = run(pl.ModelAveraging(PERIOD), on=fleet(2), sampling=record, optimizer=optimizer, updates=ROUNDS)
    for rank in range(2):
        torch.save(record.draws[rank][: PERIOD * ROUNDS], tmp_path / f"batches{rank}.pt")
    all_well(forked(*(partial(average, rank, tmp_path) for rank in range(2))))
    for rank in range(2):
        model = mlp()
        model.load_state_dict(torch.load(tmp_path / f"model{rank}.pt"))
        close(result.model, model, within=1e-6)


def test_the_models_of_the_fastest_are_averaged_and_the_late_ones_begin_again_with_the_average() -> None:
    record = Noted()
    slow_at_first = pl.delays.Empirical([9.0] * 2 + [1.0] * 20, in_order=True)
    unequal = pl.SimulatedFleet([pl.delays.Constant(1.0), slow_at_first, pl.delays.Constant(1.0)])
    result = run(pl.ModelAveraging(2, waits=pl.FastestK(2)), on=unequal, sampling=record, updates=2)
    steps = [[t.worker for t in fact.weights] for fact in result.trace if isinstance(fact, Step)]
    assert steps == [[0, 2], [0, 1]]  # all three come at once in the second round; the first two by number count
    first = averaged([trained_by_hand(mlp(), record.draws[worker][:2]) for worker in (0, 2)])
    parts = [record.draws[0][2:4], record.draws[1][2:4]]  # what it could not finish came back, and was drawn again
    assert record.draws[1][2:4] == record.draws[1][:2]
    close(result.model, averaged([trained_by_hand(copy.deepcopy(first), part) for part in parts]))


@pytest.mark.parametrize("waits", [pl.Grouped([[0], [1, 2, 3]]), pl.Grouped([[0, 1], [2, 3]])], ids=repr)
def test_groups_add_what_they_learnt_to_a_model_that_moved_on(waits: pl.Grouped) -> None:
    r"""Each update is $w + \frac1{|G|} \sum (w_k - w^{(k)})$."""
    record = Noted()
    speeds = [
        pl.delays.Constant(1.0),
        pl.delays.Constant(1.0 if len(waits.groups[0]) > 1 else 2.5),
        *[pl.delays.Constant(2.5)] * 2,
    ]
    result = run(pl.ModelAveraging(2, waits=waits), on=pl.SimulatedFleet(speeds), sampling=record, updates=8)
    versions, done = [mlp()], [0, 0, 0, 0]
    for fact in result.trace:
        if isinstance(fact, Step) and len(versions) < 9:
            moved = copy.deepcopy(versions[-1])
            for ticket, weight in fact.weights.items():
                began = versions[ticket.version]
                first = done[ticket.worker]
                done[ticket.worker] += 2
                after = trained_by_hand(copy.deepcopy(began), record.draws[ticket.worker][first : first + 2])
                with torch.no_grad():
                    for value, new, old in zip(moved.parameters(), after.parameters(), began.parameters(), strict=True):
                        value.add_(new - old, alpha=float(weight))
            versions.append(moved)
    assert max(fact_staleness(result)) >= 1
    close(result.model, versions[-1])


def fact_staleness(result: pl.Run) -> list[int]:
    steps = [fact for fact in result.trace if isinstance(fact, Step)]
    return [number - ticket.version for number, step in enumerate(steps) for ticket in step.weights]


def test_asynchronous_averaging_keeps_as_many_earlier_models_as_are_in_use() -> None:
    speeds = [pl.delays.Constant(1.0), pl.delays.Constant(1.7), pl.delays.Constant(3.1)]
    result = run(pl.ModelAveraging(2, waits=pl.Asynchronous()), on=pl.SimulatedFleet(speeds), updates=30)
    assert result.mean_staleness > 0
    assert result.history[-1].loss < result.history[0].loss


# Momentum


def test_momentum_is_kept_by_each_worker_or_averaged_with_the_models() -> None:
    record = Noted()
    optimizer = sgd(momentum=0.9)
    results = {
        how: run(pl.ModelAveraging(3, momentum=how), on=fleet(2), sampling=record, optimizer=optimizer, updates=2)
        for how in ("kept", "averaged")
    }
    models = [mlp(), mlp()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]

    def train(number: int) -> nn.Module:
        for worker in range(2):
            batches = record.draws[worker][3 * number : 3 * number + 3]
            trained_by_hand(models[worker], batches, optimizers[worker])
        return averaged(models)

    middle = train(0)
    for model in models:
        model.load_state_dict(middle.state_dict())
    aside = copy.deepcopy(
        [(model.state_dict(), own.state_dict()) for model, own in zip(models, optimizers, strict=True)]
    )
    close(results["kept"].model, train(1))
    for (values, state), model, own in zip(aside, models, optimizers, strict=True):
        model.load_state_dict(values)
        own.load_state_dict(state)
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        buffers = [own.state[p]["momentum_buffer"] for own, p in zip(optimizers, (first, second), strict=True)]
        mean_buffer = (buffers[0] + buffers[1]) / 2
        for buffer in buffers:
            buffer.copy_(mean_buffer)
    close(results["averaged"].model, train(1))
    assert not torch.equal(weights(results["kept"].model), weights(results["averaged"].model))


class Counting(torch.optim.SGD):
    """SGD with momentum, which also keeps a number and whole numbers for each parameter, as optimizers do."""

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                state["seen"] = state.get("seen", torch.zeros(2, dtype=torch.int64)) + 1
        return done


def test_what_an_optimizer_counts_is_not_averaged() -> None:
    results = []
    for kind in (torch.optim.SGD, Counting):
        rule, optimizer = pl.ModelAveraging(3, momentum="averaged"), partial(kind, lr=0.1, momentum=0.9)
        results.append(run(rule, on=fleet(2), optimizer=optimizer, updates=2))
    assert torch.equal(weights(results[0].model), weights(results[1].model))


def test_whatever_an_optimizer_keeps_is_averaged() -> None:
    def adam(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)  # type: ignore[arg-type]

    result = run(pl.ModelAveraging(3, momentum="averaged"), optimizer=adam, updates=5)
    assert result.history[-1].loss < result.history[0].loss


# Buffers


def test_float_buffers_are_averaged_and_counters_become_the_largest() -> None:
    record = Noted()
    model = mlp(norm=True)
    result = run(pl.ModelAveraging(3), model=model, on=fleet(2), sampling=record, updates=1)
    apart = [trained_by_hand(mlp(norm=True), record.draws[worker][:3]) for worker in range(2)]
    for name, buffer in result.model.named_buffers():
        own = torch.stack([each.get_buffer(name) for each in apart])
        if name.endswith("num_batches_tracked"):
            assert int(buffer) == 3
        else:
            torch.testing.assert_close(buffer, own.mean(dim=0))
            assert not torch.equal(own[0], own[1])


def test_recalibration_finds_the_statistics_of_the_averaged_model() -> None:
    (x, _), _ = digits()
    usual = run(pl.ModelAveraging(3), model=mlp(norm=True), on=fleet(2), updates=2)
    anew = run(pl.ModelAveraging(3, recalibrate=200), model=mlp(norm=True), on=fleet(2), updates=2)
    hidden = anew.model.get_submodule("0")(x).detach()
    norm, before = anew.model.get_submodule("1"), usual.model.get_submodule("1")
    torch.testing.assert_close(norm.get_buffer("running_mean"), hidden.mean(dim=0), rtol=0.05, atol=0.02)
    assert (norm.get_buffer("running_mean") - hidden.mean(dim=0)).norm() < 0.3 * (
        before.get_buffer("running_mean") - hidden.mean(dim=0)
    ).norm()
    assert norm.get_buffer("num_batches_tracked").item() == 200
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.momentum == 0.1
