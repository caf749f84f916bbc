"""A run trains a copy of the task's model: what belongs to the model goes with it, or is refused. Nothing is silent."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.fleets.base import Fleet
from paceline.learning.optimizers import MakeOptimizer
from paceline.learning.workload import workload_of
from support.noted import Noted, steps_of

GENERATOR = torch.Generator().manual_seed(6)
X = torch.randn(64, 6, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(2, (64,), generator=GENERATOR)


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Linear(6, 2).double()


def sim(workers: int = 2, **how: Any) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, **how)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(
    model: nn.Module, loss: Any, fleet: Fleet | None = None, strategy: pl.strategy.Strategy | None = None, *,
    optimizer: MakeOptimizer = sgd, updates: int = 5, **more: Any,
) -> pl.Run:  # fmt: skip
    return pl.train(
        pl.Task(model, loss, train=(X, Y)), strategy=strategy or pl.Synchronous(), fleet=fleet or sim(),
        optimizer=optimizer, stop=pl.Stop(updates=updates), every=pl.Every(updates=100), batch_size=4, progress=False,
        **more,
    )  # fmt: skip


FLEETS: list[Callable[[], Fleet]] = [sim, lambda: sim(evaluation="exact"), lambda: pl.ProcessFleet(2)]
IDS = ["fused", "exact", "processes"]


# Optimizers and schedulers


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(2)], ids=repr)
def test_an_optimizer_of_other_parameters_is_refused(strategy: pl.strategy.Strategy) -> None:
    model = linear()
    with pytest.raises(ConfigError, match=r"other parameters than it was handed.*lambda p: torch.optim.AdamW\(p\)"):
        train(model, cross_entropy, None, strategy, optimizer=lambda p: torch.optim.AdamW(model.parameters()))


def test_an_optimizer_of_some_of_the_parameters_is_not_refused() -> None:
    trained = train(linear(), cross_entropy, optimizer=lambda p: sgd(list(p)[:1])).model
    assert not torch.equal(trained.get_parameter("weight"), linear().weight)
    assert torch.equal(trained.get_parameter("bias"), linear().bias)


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    other = sgd(linear().parameters())
    with pytest.raises(ConfigError, match="another optimizer than it was handed"):
        train(linear(), cross_entropy, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(other, 2))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda optimizer: torch.optim.lr_scheduler.StepLR, "the class StepLR"),
        (lambda optimizer: None, "a NoneType"),
        (lambda optimizer: lambda epoch: 0.1, "a function"),
    ],
)
@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(2)], ids=repr)
def test_what_is_no_scheduler_is_refused(make: Any, what: str, strategy: pl.strategy.Strategy) -> None:
    with pytest.raises(ConfigError, match=f"scheduler= made {what}, which is no torch scheduler: let it return one"):
        train(linear(), cross_entropy, None, strategy, scheduler=make)


# Losses that refer to the model


def penalised(outputs: Tensor, targets: Tensor, model: nn.Linear) -> Tensor:
    return cross_entropy(outputs, targets) + 0.1 * model.weight.square().sum()


class Penalised(nn.Module):
    """Holds the model, and has nothing of its own."""

    def __init__(self, model: nn.Linear) -> None:
        super().__init__()
        self.model = model

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return penalised(outputs, targets, self.model)


class Holder:
    """No module: an object with a method, and with data that need no copy."""

    def __init__(self, model: nn.Linear) -> None:
        self.model, self.data = model, X

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert self.data.data_ptr() == X.data_ptr() or self.data is not X
        return penalised(outputs, targets, self.model)


def penalised_by_hand(run: pl.Run, noted: Noted) -> nn.Linear:
    model = linear()
    optimizer = sgd(model.parameters())
    for step in steps_of(run, noted.drawn):
        optimizer.zero_grad()
        for weight, batches, _ in step:
            torch.autograd.backward(float(weight) * penalised(model(X[batches[0]]), Y[batches[0]], model))
        optimizer.step()
    return model


MADE: dict[str, Callable[[nn.Linear], Any]] = {
    "partial": lambda model: functools.partial(penalised, model=model),
    "module": Penalised,
    "method": lambda model: Holder(model).loss,
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("fleet", FLEETS[:2], ids=IDS[:2])
def test_a_penalty_on_the_model_follows_its_copy(made: str, fleet: Callable[[], Fleet]) -> None:
    model, noted = linear(), Noted()
    run = train(model, MADE[made](model), fleet(), sampling=noted)
    expected = penalised_by_hand(run, noted)
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)
    assert torch.equal(model.weight, linear().weight)
    assert run.loss is None


def test_a_penalty_on_the_model_follows_its_copy_on_processes() -> None:
    model, noted = linear(), Noted()
    run = train(model, functools.partial(penalised, model=model), pl.ProcessFleet(2), sampling=noted)
    expected = penalised_by_hand(run, noted)
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)


def test_every_worker_s_own_model_is_the_one_that_is_penalised() -> None:
    model, noted = linear(), Noted()
    run = train(model, Penalised(model), sim(1), pl.ModelAveraging(1), sampling=noted)
    expected = penalised_by_hand(run, noted)
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)


GLOBAL_MODEL = linear()


def by_a_global(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) + sum(each.square().sum() for each in GLOBAL_MODEL.parameters())


def by_another_function(outputs: Tensor, targets: Tensor) -> Tensor:
    return by_a_global(outputs, targets)


def test_functions_that_refer_to_the_task_s_own_model_are_refused() -> None:
    model = linear()
    weight = model.weight
    losses: list[tuple[nn.Module, Any]] = [
        (model, lambda o, y: penalised(o, y, model)),
        (model, lambda o, y: cross_entropy(o, y) + weight.norm()),
        (model, lambda o, y, held=[model]: penalised(o, y, held[0])),
        (GLOBAL_MODEL, by_a_global),
        (GLOBAL_MODEL, by_another_function),
    ]
    for own, loss in losses:
        with pytest.raises(ConfigError, match=r"refers to the task's own model .*functools.partial"):
            train(own, loss)


def test_functions_that_refer_to_a_copy_or_use_its_name_are_not_refused() -> None:
    model, before = linear(), linear()
    train(model, lambda o, y: cross_entropy(o, y) + before.weight.detach().sum())

    class Named:
        GLOBAL_MODEL = 2.0

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(outputs, targets) * self.GLOBAL_MODEL  # an attribute, not the global variable

    train(GLOBAL_MODEL, Named())


# Losses with parameters of their own


class Scaled(nn.Module):
    """Learns a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs / self.temperature, targets, reduction="none")


def scaled_by_hand(run: pl.Run, noted: Noted) -> tuple[nn.Module, nn.Module]:
    model, loss = linear(), Scaled()
    optimizer = sgd([*model.parameters(), *loss.parameters()])
    for step in steps_of(run, noted.drawn):
        optimizer.zero_grad()
        for weight, batches, _ in step:
            torch.autograd.backward(float(weight) * loss(model(X[batches[0]]), Y[batches[0]]).mean())
        optimizer.step()
    return model, loss


@pytest.mark.parametrize("fleet", FLEETS, ids=IDS)
def test_a_loss_with_parameters_is_trained(fleet: Callable[[], Fleet], tmp_path: Path) -> None:
    own, noted = Scaled(), Noted()
    run = train(linear(), own, fleet(), sampling=noted, directory=tmp_path / "run")
    model, loss = scaled_by_hand(run, noted)
    assert run.loss is not None
    assert run.loss.get_parameter("temperature").item() == pytest.approx(
        loss.get_parameter("temperature").item(), 1e-12
    )
    assert own.temperature.item() == 2.0
    assert loss.get_parameter("temperature").item() != 2.0
    torch.testing.assert_close(dict(run.model.state_dict()), dict(model.state_dict()), rtol=0, atol=1e-12)
    saved = load_file(tmp_path / "run" / "loss.safetensors")
    assert torch.equal(saved["temperature"], run.loss.get_parameter("temperature").detach())
    with torch.no_grad():
        evaluated_loss = loss(model(X), Y).mean().item()
    assert run.history[-1].loss == pytest.approx(evaluated_loss, rel=1e-9)


def test_a_loss_with_parameters_is_averaged_with_the_models() -> None:
    noted = Noted()
    run = train(linear(), Scaled(), sim(1), pl.ModelAveraging(1), sampling=noted)
    _, loss = scaled_by_hand(run, noted)
    assert run.loss is not None
    assert run.loss.get_parameter("temperature").item() == pytest.approx(
        loss.get_parameter("temperature").item(), 1e-12
    )


def test_a_loss_with_parameters_is_in_checkpoints(tmp_path: Path) -> None:
    for strategy in (pl.Synchronous(), pl.ModelAveraging(2)):
        directory = tmp_path / type(strategy).__name__
        whole = train(linear(), Scaled(), None, strategy, updates=6)
        train(linear(), Scaled(), None, strategy, updates=3, directory=directory)
        resumed = train(linear(), Scaled(), None, strategy, updates=6, directory=directory, resume=True)
        assert whole.loss is not None
        assert resumed.loss is not None
        assert torch.equal(whole.loss.get_parameter("temperature"), resumed.loss.get_parameter("temperature"))


def test_ensembles_refuse_a_loss_with_parameters() -> None:
    with pytest.raises(ConfigError, match="EnsembleCompression cannot train the parameters of a loss"):
        train(linear(), Scaled(), None, pl.EnsembleCompression(every=2, steps=4))


def test_parameters_that_a_loss_function_refers_to_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    scaled = Scaled()
    with caplog.at_level(logging.WARNING, "paceline"):
        train(linear(), lambda o, y: 2 * scaled(o, y))
    assert "parameters (loss.scaled.temperature) that are not trained" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "paceline"):
        scaled.requires_grad_(False)
        train(linear(), lambda o, y: 2 * scaled(o, y))
    assert not caplog.text


class Centred(nn.Module):
    """Weighs classes by constants, and follows the mean of the outputs: in place, or with a new tensor each time."""

    def __init__(self, follows: str, *, trained: bool = False) -> None:
        super().__init__()
        self.follows = follows
        self.register_buffer("weights", torch.ones(2, dtype=torch.float64))
        self.register_buffer("centre", torch.zeros(2, dtype=torch.float64))
        if trained:
            self.temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.follows == "in place":
            self.get_buffer("centre").lerp_(outputs.detach().mean(0), 0.1)
        elif self.follows == "anew":
            self.centre = 0.9 * self.get_buffer("centre") + 0.1 * outputs.detach().mean(0)
        temperature = getattr(self, "temperature", 1.0)
        return cross_entropy((outputs - self.get_buffer("centre")) / temperature, targets, self.get_buffer("weights"))


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda: Centred("in place"), True),
        (lambda: Centred("anew"), True),
        (lambda: Centred("never"), False),
        (lambda: Centred("in place", trained=True), False),
        (lambda: nn.CrossEntropyLoss(weight=torch.ones(2, dtype=torch.float64)), False),
    ],
    ids=["in place", "anew", "never", "with a parameter", "class weights"],
)
def test_buffers_that_a_loss_without_parameters_changes_are_told_of(
    loss: Callable[[], nn.Module], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "paceline"):
        train(linear(), loss(), updates=2)
    expected = (
        "the loss changes its buffers (centre) in training, which are neither exchanged between workers nor saved"
    )
    assert [expected in record.getMessage() for record in caplog.records] == [True] * told


def test_a_loss_that_has_buffers_is_tried_without_a_trace() -> None:
    """The trial draws, changes and counts nothing that the run would see."""
    own, model = Centred("in place"), nn.Sequential(linear(), nn.BatchNorm1d(2).double(), nn.Dropout(0.5))
    before = torch.get_rng_state()
    workload = workload_of(pl.Task(model, own, train=(X, Y)), [np.arange(64)], 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(own.get_buffer("centre"), torch.zeros(2, dtype=torch.float64))
    assert int(workload.state.model.get_buffer("1.num_batches_tracked")) == 0


# Hooks


def hooked_by_hand(run: pl.Run, noted: Noted, hook: Callable[[nn.Linear], None]) -> nn.Linear:
    """Every worker's own gradient goes through the hooks; then they are combined."""
    model = linear()
    optimizer = sgd(model.parameters())
    for step in steps_of(run, noted.drawn):
        sums = [torch.zeros_like(each) for each in model.parameters()]
        for weight, batches, _ in step:
            own = linear()
            own.load_state_dict(model.state_dict())
            hook(own)
            torch.autograd.backward(cross_entropy(own(X[batches[0]]), Y[batches[0]]))
            for total, parameter in zip(sums, own.parameters(), strict=True):
                assert parameter.grad is not None
                total.add_(parameter.grad, alpha=float(weight))
        for parameter, total in zip(model.parameters(), sums, strict=True):
            parameter.grad = total
        optimizer.step()
    return model


def clamp(gradient: Tensor) -> Tensor:
    return gradient.clamp(-0.01, 0.01)


def sign(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.sign_()


def signs_back(module: nn.Module, outputs: Any) -> Any:
    return (outputs[0].sign(),)


HOOKS: dict[str, Callable[[nn.Linear], Any]] = {
    "parameter": lambda model: model.weight.register_hook(clamp),  # type: ignore[no-untyped-call]
    "after": lambda model: model.weight.register_post_accumulate_grad_hook(sign),  # type: ignore[no-untyped-call]
    "forward": lambda model: model.register_forward_hook(lambda module, inputs, outputs: 0.5 * outputs),
    "backward": lambda model: model.register_full_backward_pre_hook(signs_back),
}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # torch's own, of a model's first layer
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("fleet", FLEETS[:2], ids=IDS[:2])
def test_hooks_are_kept(kind: str, fleet: Callable[[], Fleet]) -> None:
    model, noted = linear(), Noted()
    HOOKS[kind](model)
    run = train(model, cross_entropy, fleet(), sampling=noted)
    expected = hooked_by_hand(run, noted, HOOKS[kind])
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)


def test_hooks_are_kept_on_processes_and_in_their_replay(tmp_path: Path) -> None:
    def hook(model: nn.Linear) -> None:
        for kind in ("parameter", "forward"):
            HOOKS[kind](model)
        model.bias.register_post_accumulate_grad_hook(sign)  # type: ignore[no-untyped-call]

    model, noted = linear(), Noted()
    hook(model)
    run = train(model, cross_entropy, pl.ProcessFleet(2), sampling=noted, directory=tmp_path)
    expected = hooked_by_hand(run, noted, hook)
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)
    again = pl.replay(
        tmp_path, pl.Task(model, cross_entropy, train=(X, Y)), strategy=pl.Synchronous(), fleet=pl.ProcessFleet(2),
        optimizer=sgd, batch_size=4, sampling=Noted(),
    )  # fmt: skip
    assert again.same


def test_hooks_are_kept_where_workers_train_models() -> None:
    model, noted = linear(), Noted()
    HOOKS["parameter"](model)
    run = train(model, cross_entropy, sim(1), pl.ModelAveraging(1), sampling=noted)
    expected = hooked_by_hand(run, noted, HOOKS["parameter"])
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)


def test_hooks_that_refer_to_the_task_s_own_model_are_refused() -> None:
    model = linear()
    model.weight.register_hook(lambda gradient: gradient + 0.1 * model.weight)  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError, match=r"hook on parameter 'weight' refers to the task's own model"):
        train(model, cross_entropy)
    model = linear()
    model.register_forward_hook(lambda module, inputs, outputs: outputs * model.weight.mean())
    with pytest.raises(ConfigError, match=r"hook on module 'Linear' refers to the task's own model"):
        train(model, cross_entropy)
    model = linear()
    optimizer = sgd(model.parameters())
    model.bias.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError, match=r"hook on parameter 'bias' refers to the task's own model"):
        train(model, cross_entropy)


class Recorder:
    """Counts what its hooks are shown."""

    def __init__(self, model: nn.Linear | None = None) -> None:
        self.calls, self.model = 0, model

    def forward(self, module: nn.Module, inputs: Any, outputs: Tensor) -> None:
        self.calls += 1

    def __call__(self, module: nn.Module, inputs: Any, outputs: Tensor) -> None:
        self.calls += 1

    def gradient(self, gradient: Tensor) -> None:
        self.calls += 1

    def after(self, parameter: Tensor) -> None:
        self.calls += 1

    def decay(self, gradient: Tensor) -> Tensor:
        assert self.model is not None
        return gradient + self.model.weight.detach()

    def shrink(self, module: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
        assert self.model is not None
        return outputs * self.model.weight.square().sum()


RECORDED: dict[str, Callable[[nn.Linear, Recorder], Any]] = {
    "forward": lambda model, own: model.register_forward_hook(own.forward),
    "object": lambda model, own: model.register_forward_hook(own),
    "partial": lambda model, own: model.register_forward_hook(functools.partial(Recorder.forward, own)),
    "parameter": lambda model, own: model.weight.register_hook(own.gradient),  # type: ignore[no-untyped-call]
    "after": lambda model, own: model.bias.register_post_accumulate_grad_hook(own.after),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("rule", [pl.Synchronous, lambda: pl.ModelAveraging(2)], ids=["gradients", "models"])
@pytest.mark.parametrize("kind", RECORDED)
def test_hooks_that_are_methods_keep_the_user_s_object(kind: str, rule: Callable[[], pl.strategy.Strategy]) -> None:
    model, own = linear(), Recorder()
    RECORDED[kind](model, own)
    pl.train(
        pl.Task(model, cross_entropy, train=(X, Y), evaluate=lambda _: {"loss": 0.0}), strategy=rule(),
        fleet=sim(evaluation="exact"), optimizer=sgd, stop=pl.Stop(updates=3), every=pl.Every(updates=100),
        batch_size=4, progress=False,
    )  # fmt: skip
    of_modules = kind in ("forward", "object", "partial")
    trained = 6 if rule is pl.Synchronous else 12 + 2 * of_modules  # each local model is evaluated once
    assert trained <= own.calls <= trained + of_modules  # a first batch may be tried before the run


class Recorded(nn.Linear):
    """A model that reads what its recorder has counted: the object belongs to it."""

    def __init__(self) -> None:
        super().__init__(6, 2, dtype=torch.float64)
        self.recorder = Recorder()
        self.register_forward_hook(self.recorder.forward)


def test_objects_that_belong_to_the_model_are_copied_with_it() -> None:
    model = Recorded()
    trained = train(model, cross_entropy, sim(evaluation="exact")).model
    assert isinstance(trained, Recorded)
    assert trained.recorder.calls > 0
    assert model.recorder.calls == 0


@pytest.mark.parametrize(
    "hook",
    [
        lambda model: model.weight.register_hook(Recorder(model).decay),
        lambda model: model.register_forward_hook(Recorder(model).shrink),
    ],
    ids=["parameter", "module"],
)
@pytest.mark.parametrize("fleet", FLEETS, ids=IDS)
def test_hooks_that_are_methods_of_what_holds_the_model_follow_its_copy(
    fleet: Callable[[], Fleet], hook: Callable[[nn.Linear], Any]
) -> None:
    model, noted = linear(), Noted()
    hook(model)
    run = train(model, cross_entropy, fleet(), sampling=noted)
    expected = hooked_by_hand(run, noted, hook)
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)
    assert torch.equal(model.weight, linear().weight)


def test_an_evaluation_of_the_task_s_own_model_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    model = linear()

    def evaluated(given: nn.Module) -> dict[str, float]:
        return {"loss": float(cross_entropy(given(X), Y))}

    def of_another(given: nn.Module) -> dict[str, float]:
        return {"loss": float(cross_entropy(model(X), Y))}

    for evaluate, warned in ((evaluated, False), (of_another, True)):
        caplog.clear()
        pl.train(
            pl.Task(model, cross_entropy, train=(X, Y), evaluate=evaluate), strategy=pl.Synchronous(), fleet=sim(),
            optimizer=sgd, stop=pl.Stop(updates=1), batch_size=4, progress=False,
        )  # fmt: skip
        assert ("evaluate refers to the task's own model (evaluate.model)" in caplog.text) is warned


def test_attributes_of_parameters_are_there_for_the_optimizer() -> None:
    model = linear()
    model.weight.slow = 0.01  # type: ignore[attr-defined]

    def grouped(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [p], "lr": getattr(p, "slow", 0.1)} for p in parameters])

    trained = train(model, cross_entropy, optimizer=grouped, updates=1).model
    usual = train(linear(), cross_entropy, updates=1).model
    moved, usually = ((m.get_parameter("weight") - linear().weight).norm().item() for m in (trained, usual))
    assert moved == pytest.approx(0.1 * usually)
