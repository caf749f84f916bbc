"""A loss, a step or a hook that comes to the task's own model in a roundabout way is found, or shown by a batch."""

import functools
import importlib
import logging
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.fleets.base import Fleet
from paceline.learning import copies
from paceline.learning.copies import Search

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(6))
Y = torch.randint(2, (64,), generator=torch.Generator().manual_seed(7))
MODEL = nn.Linear(6, 2)
SETTINGS = types.ModuleType("settings")
SETTINGS.net = MODEL  # type: ignore[attr-defined]
SETTINGS.inner = types.ModuleType("settings.inner")  # type: ignore[attr-defined]
SETTINGS.inner.net = MODEL
WEAK = weakref.ref(MODEL)


def sim(workers: int = 2, **how: Any) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, **how)


def train(task: pl.Task, fleet: Fleet | None = None, strategy: pl.strategy.Strategy | None = None) -> pl.Run:
    return pl.train(
        task, strategy=strategy or pl.Synchronous(), fleet=fleet or sim(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), stop=pl.Stop(updates=2),
        every=pl.Every(updates=100), batch_size=4, progress=False,
    )  # fmt: skip


def squares(model: Any) -> Tensor:
    total: Tensor = sum(each.square().sum() for each in model.parameters())
    return total


def penalty() -> Tensor:
    return squares(MODEL)


class Helping(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + self.penalty()

    def penalty(self) -> Tensor:
        return penalty()


class Inheriting(Helping):
    pass


class WithAttribute:
    net = MODEL

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + squares(self.net)


class Static:
    @staticmethod
    def static() -> Tensor:
        return penalty()

    @classmethod
    def of_class(cls) -> Tensor:
        return cls.static()


class WithProperty:
    @property
    def penalty(self) -> Tensor:
        return penalty()

    @functools.cached_property
    def cached(self) -> Tensor:
        return penalty()

    def by_property(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + self.penalty

    def by_cache(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + self.cached


class Trainer:
    def penalty(self) -> Tensor:
        return penalty()

    def step(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1]) + self.penalty()

    def plain_step(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])


LOSSES: dict[str, Any] = {
    "method of a module": Helping(),
    "inherited": Inheriting(),
    "attribute of a class": WithAttribute(),
    "attribute of a module": lambda o, y: cross_entropy(o, y) + squares(SETTINGS.net),
    "attribute of a module in a module": lambda o, y: cross_entropy(o, y) + squares(SETTINGS.inner.net),
    "static method": lambda o, y: cross_entropy(o, y) + Static.static(),
    "class method": lambda o, y: cross_entropy(o, y) + Static.of_class(),
    "property": WithProperty().by_property,
    "cached property": WithProperty().by_cache,
    "weak reference": lambda o, y: cross_entropy(o, y) + squares(WEAK()),
}
STEPS: dict[str, Any] = {
    "method": Trainer().step,
    "partial": functools.partial(lambda trainer, model, batch: trainer.step(model, batch), Trainer()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_comes_to_the_model_somehow_is_refused_before_a_run(name: str) -> None:
    with pytest.raises(ConfigError, match=r"the loss refers to the task's own model .*functools.partial"):
        train(pl.Task(MODEL, LOSSES[name], train=(X, Y)), pl.ProcessFleet(2))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_comes_to_the_model_somehow_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"the step refers to the task's own model .*handed as its first argument"):
        train(pl.Task(MODEL, step=STEPS[name], train=(X, Y)), pl.ProcessFleet(2))


def test_methods_that_nobody_asks_for_may_do_what_they_like() -> None:
    train(pl.Task(MODEL, step=Trainer().plain_step, train=(X, Y)))


class Holding:
    """Holds the model behind very many words."""

    def __init__(self, model: nn.Module, words: int) -> None:
        self.words = {f"word {number}": number for number in range(words)}
        self.pairs = [(f"word {number}", number) for number in range(words)]
        self.model = model

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + 10 * squares(self.model)


def test_texts_and_numbers_are_not_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert Search(MODEL, "loss", Holding(MODEL, 30_000)).by_objects == {"loss.model": None}
    monkeypatch.setattr(copies, "MOST_LOOKED_AT", 100)
    with caplog.at_level(logging.WARNING, "paceline"):
        train(pl.Task(MODEL, Holding(nn.Linear(1, 1).requires_grad_(False), 10), train=(X, Y)))
        assert not caplog.text
        train(pl.Task(MODEL, Holding(nn.Linear(1, 1).requires_grad_(False), 200), train=(X, Y)))
    assert "the loss refers to more than 100 objects, and not all were looked at" in caplog.text


# What no search can see


def hidden_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) + squares(globals()["MOD" + "EL"])


class Straying(nn.Linear):
    """Its forward uses a model that is not itself."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * squares(globals()["STRAYING"])


STRAYING = Straying(6, 2)
RULES: list[Callable[[], pl.strategy.Strategy]] = [pl.Synchronous, lambda: pl.ModelAveraging(2)]


@pytest.mark.parametrize("rule", RULES, ids=["gradients", "models"])
@pytest.mark.parametrize("evaluation", ["fused", "exact"])
def test_a_loss_that_depends_on_the_task_s_own_model_is_refused(
    evaluation: str, rule: Callable[[], pl.strategy.Strategy]
) -> None:
    assert not Search(MODEL, "loss", hidden_loss).by_functions
    with pytest.raises(ConfigError, match=r"the loss depends on '(weight|bias)' of the task's own model"):
        train(pl.Task(MODEL, hidden_loss, train=(X, Y)), sim(evaluation=evaluation), rule())
    with pytest.raises(ConfigError, match=r"the loss depends on '(weight|bias)' of the task's own model"):
        train(pl.Task(STRAYING, cross_entropy, train=(X, Y)), sim(evaluation=evaluation), rule())


def test_a_step_that_depends_on_the_task_s_own_model_is_refused_on_all_fleets() -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        return hidden_loss(model(batch[0]), batch[1])

    for fleet in (sim(), pl.ProcessFleet(2)):
        with pytest.raises(ConfigError, match=r"the step depends on '(weight|bias)' of the task's own model"):
            train(pl.Task(MODEL, step=step, train=(X, Y)), fleet)


def test_the_task_s_own_weights_as_constants_are_not_refused() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + squares(globals()["MOD" + "EL"]).detach()

    train(pl.Task(MODEL, loss, train=(X, Y)))


def test_a_file_of_one_s_own_may_have_the_name_of_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "this.py").write_text(
        "from torch.nn import Linear\nfrom torch.nn.functional import cross_entropy\n\nnet = Linear(6, 2)\n\n\n"
        "def loss(outputs, targets):\n    return cross_entropy(outputs, targets) + net.weight.square().sum()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "this", raising=False)
    own = importlib.import_module("this")
    try:
        with pytest.raises(pl.ConfigError, match="the loss refers to the task's own model"):
            train(pl.Task(own.net, own.loss, (X, Y)))
    finally:
        del sys.modules["this"]
