"""What workers do is decided by the work that a rule assigns, whoever wrote the rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline import delays
from paceline.engine.build import first_work
from paceline.strategy import (
    Assign,
    AverageModels,
    Decision,
    EnsembleModels,
    Ledger,
    Step,
    Strategy,
    WakeAt,
    Work,
    distilled_steps,
    gradient,
    local_steps,
)
from support.digits import weights
from support.local_models import fleet, members, mlp, run, sgd
from support.own_rules import Together

GROUPS = [[0, 1], [2, 3]]


@dataclass(frozen=True)
class Settled(Together):
    """With an ``aggregation`` of its own."""

    aggregation: Any = None


@dataclass(frozen=True)
class Changing(Strategy):
    """Another kind of work in each round."""

    kinds: tuple[Work, ...]

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return Together(self.kinds[min(ledger.round, len(self.kinds) - 1)]).decide(ledger)


@dataclass(frozen=True)
class Unlike(Strategy):
    """Two kinds of work at once."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return [Assign(worker, local_steps(2) if worker % 2 else gradient()) for worker in ledger.idle]


@dataclass(frozen=True)
class Wrapped(Strategy):
    """A rule around another, that does not tell what the other wants to be made of models."""

    inside: Strategy

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return self.inside.decide(ledger)


@pytest.mark.parametrize(
    ("strategy", "kind", "groups"),
    [
        (pl.Synchronous(), "gradient", ()),
        (pl.LiveCompensation(2, blocks=4), "gradient", ()),
        (pl.Grouped(GROUPS), "gradient", ((0, 1), (2, 3))),
        (pl.ModelAveraging(4), "local_steps", ()),
        (pl.ModelAveraging(4, waits=pl.Grouped(GROUPS)), "local_steps", ((0, 1), (2, 3))),
        (pl.Grouped(GROUPS, inside=pl.ModelAveraging(4)), "local_steps", ((0, 1), (2, 3))),
        (pl.EnsembleCompression(4), "local_steps", ()),
        (Together(local_steps(4)), "local_steps", ()),
        (Together(distilled_steps(4)), "distilled_steps", ()),
    ],
    ids=repr,
)
def test_a_rule_is_asked_what_its_workers_do(strategy: Strategy, kind: str, groups: object) -> None:
    assert first_work(strategy, 4) == (kind, groups)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_rule_of_one_s_own_that_assigns_local_steps_averages_models(steps: int) -> None:
    own, averaging = (run(s, updates=4) for s in (Together(local_steps(steps)), pl.ModelAveraging(every=steps)))
    assert torch.equal(weights(own.model), weights(averaging.model))
    assert [row.loss for row in own.history] == [row.loss for row in averaging.history]
    assert own.history[-1].samples == 4 * 4 * 16 * steps
    assert own.costs == averaging.costs
    assert own.local is not None


def on_processes(strategy: Strategy, **options: Any) -> pl.Run:
    return run(strategy, on=pl.ProcessFleet(2), updates=3, **options)  # type: ignore[arg-type]


def test_such_a_rule_trains_on_worker_processes(tmp_path: Path) -> None:
    own, averaging = (on_processes(strategy) for strategy in (Together(local_steps(4)), pl.ModelAveraging(every=4)))
    assert torch.equal(weights(own.model), weights(averaging.model))
    assert not torch.equal(weights(own.model), weights(mlp()))


def test_models_after_distilled_steps_make_an_ensemble() -> None:
    result = run(Together(distilled_steps(3)), updates=3)
    assert len(members(result)) == 4
    alone = EnsembleModels(distillation=0.0)
    without = run(Settled(distilled_steps(3), alone), updates=3)
    assert not torch.equal(members(result)[0], members(without)[0])  # the ensemble's labels make the difference


def test_a_rule_says_what_becomes_of_its_models() -> None:
    kept = run(Together(local_steps(3)), optimizer=sgd(momentum=0.9), updates=4)
    averaged = run(Settled(local_steps(3), AverageModels(momentum="averaged")), optimizer=sgd(momentum=0.9), updates=4)
    same = run(pl.ModelAveraging(3, momentum="averaged"), optimizer=sgd(momentum=0.9), updates=4)
    assert torch.equal(weights(averaged.model), weights(same.model))
    assert not torch.equal(weights(averaged.model), weights(kept.model))
    ensemble = run(Settled(local_steps(3), EnsembleModels(same_start=True)), updates=2)
    assert len(members(ensemble)) == 4
    with pytest.raises(pl.ConfigError, match=r"Settled.aggregation is 'mean': give AverageModels"):
        run(Settled(local_steps(3), "mean"), updates=2)


def test_groups_around_a_rule_that_hands_in_models_average_as_the_rule_around_groups_does() -> None:
    fastest = pl.SimulatedFleet([delays.Constant(each) for each in (1.0, 1.0, 1.5, 3.0)])
    outside, inside = (
        run(strategy, on=fastest, updates=9)
        for strategy in (
            pl.Grouped(GROUPS, inside=pl.ModelAveraging(4)),
            pl.ModelAveraging(4, waits=pl.Grouped(GROUPS)),
        )
    )
    own = run(pl.Grouped(GROUPS, inside=Together(local_steps(4))), on=fastest, updates=9)
    for each in (outside, own):
        assert torch.equal(weights(each.model), weights(inside.model))
        assert [row.seconds for row in each.history] == [row.seconds for row in inside.history]


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (pl.EnsembleCompression(4), "local_steps.*an ensemble is made of models of one round"),
        (Together(distilled_steps(4)), "distilled_steps.*an ensemble is made of models of one round"),
        (pl.ModelAveraging(4, steps=16), "steps= counts the local steps of common rounds"),
        (pl.ModelAveraging(4, momentum="averaged"), "momentum='averaged' is that of one round's models"),
    ],
    ids=repr,
)
def test_models_of_one_round_are_refused_in_groups_with_the_reason(inside: Strategy, reason: str) -> None:
    for outer in (pl.Grouped(GROUPS, inside=inside), pl.Regrouped(inside=inside)):
        nested = pl.Grouped([[0, 1, 2, 3]], inside=outer) if isinstance(outer, pl.Grouped) else outer
        for strategy in (outer, nested):
            with pytest.raises(pl.ConfigError, match=f"{type(strategy).__name__} lets groups hand in.*{reason}"):
                run(strategy, updates=3)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Changing((gradient(), local_steps(4))), "assigns local_steps to worker 0, and its first work was gradient"),
        (Changing((local_steps(4), gradient())), "assigns gradient to worker 0, and its first work was local_steps"),
        (
            Wrapped(pl.EnsembleCompression(4)),
            "assigns distilled_steps to worker 0, and its first work was local_steps",
        ),
        (Unlike(), "Unlike assigns gradient and local_steps at once: a run has one kind of work"),
        (Together(Work("dreams", 2)), "Together assigns dreams, which no worker can do"),
    ],
    ids=repr,
)
def test_another_kind_of_work_is_refused_in_one_line(strategy: Strategy, said: str) -> None:
    with pytest.raises(pl.ConfigError, match=said) as refused:
        run(strategy, on=fleet(2), updates=6)
    assert "\n" not in str(refused.value)


def test_a_rule_that_assigns_nothing_at_first_hands_in_gradients() -> None:
    @dataclass(frozen=True)
    class Late(Strategy):
        def decide(self, ledger: Ledger) -> Sequence[Decision]:
            if ledger.now < 1:
                return [] if ledger.alarms or not ledger.workers else [WakeAt(1.0)]
            done = list(ledger.fresh)
            if len(done) == len(ledger.workers):
                return [Step(dict.fromkeys(done, Fraction(1, len(done))))]
            return [Assign(worker) for worker in ledger.idle]

    assert first_work(Late(), 3) == ("gradient", ())
    assert run(Late(), updates=2).history[-1].updates == 2
