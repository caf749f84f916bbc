"""What of torch works, and what is refused: the rows of docs/models.md.

The truth is a plain loop of torch over the same mini-batches. One worker is enough for that: its gradients, or its
models, are then those of the loop, on every fleet and in both ways of the simulator.
"""

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.config.experiment import make_scheduler
from paceline.config.file import Chosen
from paceline.core.errors import ConfigError
from paceline.data.samples import samples
from paceline.fleets.base import Fleet
from paceline.learning.copies import copied
from paceline.learning.models.averaging import recalibrate
from paceline.learning.models.ensemble import Ensemble
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler
from support.digits import Noted

UPDATES = 6


def table(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(64, 6, generator=generator), torch.randint(0, 2, (64,), generator=generator)


def words() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 20, (64, 3), generator=generator), torch.randint(0, 2, (64,), generator=generator)


class Autocast(nn.Module):
    """Computes in bfloat16, and keeps its weights in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs: Tensor = self.inner(x)
        return outputs


class Mixed(nn.Module):
    """A body in bfloat16, a head in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8).bfloat16()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x.bfloat16()).relu().float())
        return outputs


class Complex(nn.Module):
    """A complex layer between two real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(6, 4), nn.Linear(4, 2)
        self.turned = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64) / 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.after((self.before(x).to(torch.complex64) @ self.turned).abs())
        return outputs


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def half(dtype: torch.dtype) -> nn.Module:
    return mlp().to(dtype)


def embedded(*, alone: bool = False) -> nn.Module:
    bag = nn.EmbeddingBag(20, 2 if alone else 4, mode="mean", sparse=True)
    return bag if alone else nn.Sequential(bag, nn.Linear(4, 2))


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is the old one that is tried
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2))


def new_weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2))


def old_spectral_norm() -> nn.Module:
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2)).eval().train()


def pruned() -> nn.Module:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    return model


def frozen_norm() -> nn.Module:
    """A backbone whose statistics are to stay as they are."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    model[:2].eval()
    return model


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2)


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    data: tuple[Any, Any] = table()
    optimizer: MakeOptimizer = sgd
    within: float = 1e-5
    clip_norm: float | None = None


FEATURES: dict[str, Case] = {
    "bfloat16": Case(lambda: half(torch.bfloat16), (table()[0].bfloat16(), table()[1]), within=0.02),
    "float16": Case(lambda: half(torch.float16), (table()[0].half(), table()[1]), within=0.01),
    "mixed types": Case(Mixed, within=0.02),
    "autocast": Case(Autocast, within=0.02),
    "sparse gradients": Case(embedded, words()),
    "sparse gradients, momentum and clipping": Case(
        embedded, words(), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9), clip_norm=0.05
    ),
    "SparseAdam": Case(lambda: embedded(alone=True), words(), lambda p: torch.optim.SparseAdam(list(p), lr=0.05)),
    "complex": Case(Complex),
    "complex, Adam": Case(Complex, optimizer=lambda p: torch.optim.Adam(p, lr=0.05)),
    "weight_norm": Case(old_weight_norm),
    "parametrized": Case(new_weight_norm),
    "spectral_norm": Case(old_spectral_norm),
    "pruning masks": Case(pruned, optimizer=lambda p: torch.optim.Adam(p, lr=0.05)),
    "eval mode": Case(frozen_norm),
    "numpy": Case(mlp, (table()[0].numpy(), table()[1].numpy())),
}


def made(case: Case) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return case.model()


def by_hand(case: Case, batches: list[list[int]]) -> nn.Module:
    """Plain torch."""
    model = made(case)
    optimizer = case.optimizer(p for p in model.parameters() if p.requires_grad)
    x, y = (torch.as_tensor(part) for part in case.data)
    for batch in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        if case.clip_norm is not None:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.to_dense()
            nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        optimizer.step()
    return model


def trained(case: Case, strategy: pl.strategy.Strategy, fleet: Fleet, sampling: Any) -> pl.Run:
    return pl.train(
        pl.Task(made(case), functional.cross_entropy, train=case.data),
        strategy=strategy,
        fleet=fleet,
        optimizer=case.optimizer,
        clip_norm=case.clip_norm,
        stop=pl.Stop(updates=UPDATES if isinstance(strategy, pl.Synchronous) else UPDATES // 2),
        sampling=sampling,
        batch_size=4,
        progress=False,
    )


def simulated(evaluation: str = "fused", workers: int = 1) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation=evaluation)  # type: ignore[arg-type]


def close(model: nn.Module, expected: nn.Module, within: float) -> None:
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=within, atol=within)


@pytest.mark.parametrize("how", ["fused", "exact", "models"])
@pytest.mark.parametrize("name", FEATURES)
def test_trains_as_in_a_plain_loop(name: str, how: str) -> None:
    case, recorded = FEATURES[name], Noted()
    strategy: pl.strategy.Strategy = pl.ModelAveraging(every=2) if how == "models" else pl.Synchronous()
    run = trained(case, strategy, simulated("exact" if how == "exact" else "fused"), recorded)
    assert run.problem is None
    close(run.model, by_hand(case, recorded.draws[0][:UPDATES]), case.within)


def on_a_process(name: str, strategy: pl.strategy.Strategy) -> None:
    case, recorded = FEATURES[name], Noted()
    run = trained(case, strategy, pl.ProcessFleet(workers=1), recorded)
    assert run.problem is None
    close(run.model, by_hand(case, recorded.draws[0][:UPDATES]), case.within)


@pytest.mark.parametrize(
    "name",
    ["bfloat16", "float16", "mixed types", "sparse gradients", "SparseAdam", "complex", "weight_norm", "parametrized"],
)
def test_gradients_of_a_process_are_those_of_a_plain_loop(name: str) -> None:
    on_a_process(name, pl.Synchronous())


@pytest.mark.parametrize("name", ["bfloat16", "complex", "parametrized", "pruning masks", "eval mode", "SparseAdam"])
def test_a_process_trains_a_model_as_a_plain_loop_does(name: str) -> None:
    on_a_process(name, pl.ModelAveraging(every=2))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "complex", "sparse gradients", "weight_norm", "eval mode"])
def test_all_rules_take_it(name: str) -> None:
    """Rules that keep gradients for later, average models, or make an ensemble of them."""
    for strategy in (
        pl.Asynchronous(),
        pl.LiveCompensation(quorum=2, blocks=2),
        pl.ModelAveraging(every=2, momentum="averaged", recalibrate=2),
        pl.EnsembleCompression(every=4, steps=8, weights="regression"),
    ):
        run = pl.train(
            pl.Task(made(FEATURES[name]), functional.cross_entropy, train=FEATURES[name].data),
            strategy=strategy,
            fleet=pl.SimulatedFleet(delays=[pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(1.7)]),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
            stop=pl.Stop(updates=3),
            batch_size=4,
            progress=False,
        )
        assert run.problem is None
        assert np.isfinite(run.history[-1].loss)


def test_a_mean_of_half_precision_is_not_off_by_its_rounded_weight() -> None:
    """A third is 0.4 % too large in bfloat16: after 40 steps along a constant gradient one would see it."""
    x, y = torch.ones(96, 1, dtype=torch.bfloat16), torch.zeros(96)
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.constant_(model.weight, 1.0)

    def trained_on(fleet: Fleet) -> float:
        run = pl.train(
            pl.Task(model, lambda outputs, targets: outputs.float().flatten(), train=(x, y)),
            strategy=pl.Synchronous(),
            fleet=fleet,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=2.0**-4),
            stop=pl.Stop(updates=4),
            batch_size=4,
            progress=False,
        )
        return float(run.model.state_dict()["weight"])

    assert trained_on(pl.ProcessFleet(workers=3)) == pytest.approx(1.0 - 4 * 2.0**-4, abs=1e-6)


def test_an_overflow_of_half_precision_is_no_result() -> None:
    """The step is finite in floats, and too long for float16: the last good weights are kept."""
    x, y = torch.full((64, 1), 200.0).half(), torch.zeros(64)
    model = nn.Linear(1, 1, bias=False).half()
    run = pl.train(
        pl.Task(model, lambda outputs, targets: outputs.flatten(), train=(x, y)),
        strategy=pl.Synchronous(),
        fleet=simulated(workers=2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1000.0),
        stop=pl.Stop(updates=3),
        batch_size=4,
        progress=False,
    )
    assert run.ended == "diverged"
    assert bool(run.model.state_dict()["weight"].isfinite().all())


def test_modules_in_eval_mode_stay_in_it() -> None:
    model = frozen_norm()
    modes = [module.training for module in model.modules()]
    for strategy in (pl.Synchronous(), pl.ModelAveraging(every=2, recalibrate=2), pl.EnsembleCompression(2, steps=4)):
        run = pl.train(
            pl.Task(model, functional.cross_entropy, train=table()),
            strategy=strategy,
            fleet=simulated(workers=2),
            optimizer=sgd,
            stop=pl.Stop(updates=2),
            batch_size=4,
            progress=False,
        )
        member = run.model.get_submodule("members.0") if isinstance(run.model, Ensemble) else run.model
        assert [module.training for module in member.modules()] == modes
        assert torch.equal(member.state_dict()["0.running_mean"], torch.zeros(6))
        assert [module.training for module in model.modules()] == modes


def test_a_model_that_is_in_eval_mode_as_a_whole_is_trained(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)).eval()
    with caplog.at_level(logging.WARNING, "paceline"):
        run = trained(Case(lambda: model), pl.Synchronous(), simulated(), pl.Shuffled())
    assert "eval mode" in caplog.text
    assert run.model.training
    assert not torch.equal(run.model.state_dict()["0.running_mean"], torch.zeros(6))


def test_recalibration_is_that_of_torch() -> None:
    """Where every layer is in training mode."""
    batches = [table(seed)[0] for seed in range(3)]
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2), nn.BatchNorm1d(2))
    other = copied(model)
    recalibrate(model, batches, lambda model, batch: model(batch))
    torch.optim.swa_utils.update_bn(batches, other)
    for own, expected in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(own, expected)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("how", ["gradients", "models"])
def test_a_scheduler_that_waits_for_a_metric_sees_every_evaluation(how: str, mode: str) -> None:
    """As in a loop that evaluates after every second update and steps the scheduler with what it found."""
    recorded = Noted()
    case = Case(mlp)

    def scheduler(optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau:
        return ReduceLROnPlateau(optimizer, mode=mode, factor=0.3, patience=0, threshold=0.2)  # type: ignore[arg-type]

    x, y = case.data
    run = pl.train(
        pl.Task(made(case), functional.cross_entropy, train=(x, y)),
        strategy=pl.Synchronous() if how == "gradients" else pl.ModelAveraging(every=1),
        fleet=simulated(),
        optimizer=sgd,
        scheduler=scheduler,
        stop=pl.Stop(updates=8),
        every=pl.Every(updates=2),
        sampling=recorded,
        batch_size=4,
        progress=False,
    )
    model = made(case)
    optimizer = sgd(model.parameters())
    pace = scheduler(optimizer)
    for number, batch in enumerate(recorded.draws[0][:8], start=1):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number % 2 == 0:
            with torch.no_grad():
                right = float((model(x).argmax(dim=1) == y).float().mean())
                pace.step(float(functional.cross_entropy(model(x), y)) if mode == "min" else right)
    assert optimizer.param_groups[0]["lr"] < 0.2
    close(run.model, model, 1e-5)


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(every=2)])
def test_a_run_with_such_a_scheduler_is_resumed_and_replayed_to_the_bit(
    strategy: pl.strategy.Strategy, tmp_path: Path
) -> None:
    """The learning rate falls at update 4: before the run is interrupted, and in the replay where it did."""
    task = pl.Task(made(Case(mlp)), functional.cross_entropy, train=table())
    asked: dict[str, Any] = {
        "strategy": strategy, "fleet": simulated(workers=2), "optimizer": sgd, "batch_size": 4,
        "scheduler": lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.9),
    }  # fmt: skip

    def run(name: str, updates: int, *, resume: bool = False) -> pl.Run:
        stop, every = pl.Stop(updates=updates), pl.Every(updates=2)
        return pl.train(
            task, stop=stop, every=every, directory=tmp_path / name, resume=resume, progress=False, **asked
        )  # fmt: skip

    whole = run("whole", 7)
    run("parts", 5)
    parts = run("parts", 7, resume=True)
    close(parts.model, whole.model, 0.0)
    replayed = pl.replay(tmp_path / "whole", task, **asked)
    assert replayed.same
    assert replayed.compared


def test_a_file_may_name_a_scheduler_that_waits_for_a_metric() -> None:
    scheduler = make_scheduler(Chosen("ReduceLROnPlateau", {"mode": "max", "patience": 3}))(sgd(mlp().parameters()))
    assert isinstance(scheduler, ReduceLROnPlateau)


def names_in(module: Any, base: type) -> list[str]:
    """The public classes of a module of torch: those to come are tried as well."""
    found = [name for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)]
    return sorted(name for name in found if getattr(module, name) is not base and not name.startswith("_"))


@pytest.mark.parametrize("name", names_in(torch.optim, torch.optim.Optimizer))
def test_any_optimizer_of_torch_trains_as_in_a_plain_loop(name: str) -> None:
    if name == "LBFGS":
        assert "evaluates the loss by itself" in refused(optimizer=torch.optim.LBFGS)
        return
    of_sparse = name == "SparseAdam"
    case = Case(
        lambda: embedded(alone=True) if of_sparse else nn.Linear(6, 2, bias=False),  # Muon takes matrices alone
        words() if of_sparse else table(),
        lambda parameters: getattr(torch.optim, name)(list(parameters), lr=0.03),
    )
    for strategy in (pl.Synchronous(), pl.ModelAveraging(every=2)):
        recorded = Noted()
        run = trained(case, strategy, simulated(), recorded)
        close(run.model, by_hand(case, recorded.draws[0][:UPDATES]), case.within)


def sequence(optimizer: torch.optim.Optimizer) -> schedulers.SequentialLR:
    parts: list[schedulers.LRScheduler] = [
        schedulers.ConstantLR(optimizer, 0.5, 2),
        schedulers.ExponentialLR(optimizer, 0.9),
    ]
    return schedulers.SequentialLR(optimizer, parts, milestones=[3])


def chain(optimizer: torch.optim.Optimizer) -> schedulers.ChainedScheduler:
    return schedulers.ChainedScheduler([schedulers.ConstantLR(optimizer, 0.5, 2), schedulers.StepLR(optimizer, 2)])


SCHEDULERS: dict[str, Any] = {
    "ChainedScheduler": chain,
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 3),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.05, 0.5, step_size_up=2),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.7),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.2, total_iters=4),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4]),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.8),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=20),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 5, power=2.0),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.9),
    "SequentialLR": sequence,
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.3),
}


def rates_seen(name: str, strategy: pl.strategy.Strategy) -> list[float]:
    """The learning rate at each evaluation, which is told the same loss each time."""
    optimizers: list[torch.optim.Optimizer] = []
    found: list[float] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(torch.optim.SGD(parameters, lr=0.2, momentum=0.5))
        return optimizers[-1]

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        found.append(optimizers[-1].param_groups[0]["lr"])
        return {"loss": 1.0}

    pl.train(
        pl.Task(mlp(), functional.cross_entropy, train=table(), evaluate=evaluate),
        strategy=strategy, fleet=simulated(), optimizer=optimizer, scheduler=SCHEDULERS[name],
        stop=pl.Stop(updates=UPDATES), every=pl.Every(updates=1), batch_size=4, progress=False,
    )  # fmt: skip
    return found[1:]


@pytest.mark.filterwarnings("ignore:To get the last learning rate")  # torch's own, in SequentialLR
@pytest.mark.parametrize("name", names_in(schedulers, schedulers.LRScheduler))
def test_any_scheduler_of_torch_sets_the_rate_as_in_a_plain_loop(name: str) -> None:
    optimizer = torch.optim.SGD(mlp().parameters(), lr=0.2, momentum=0.5)
    scheduler = SCHEDULERS[name](optimizer)
    waits = name == "ReduceLROnPlateau"
    rates = []
    for _ in range(UPDATES):
        optimizer.step()
        scheduler.step(*((1.0,) if waits else ()))
        rates.append(optimizer.param_groups[0]["lr"])
    expected = [0.2, *rates[:-1]] if waits else rates  # it is stepped right after the evaluation
    assert len(set(rates)) > 1
    assert rates_seen(name, pl.Synchronous()) == expected
    assert rates_seen(name, pl.ModelAveraging(every=1)) == expected


def test_compiled_models_train_as_they_are() -> None:
    def compiled() -> nn.Module:
        model: nn.Module = torch.compile(mlp(), backend="eager")  # type: ignore[assignment]
        return model

    case, recorded = Case(compiled), Noted()
    run = trained(case, pl.Synchronous(), simulated(), recorded)
    close(run.model, by_hand(case, recorded.draws[0][:UPDATES]), case.within)


def test_data_without_an_index_or_of_other_items_are_refused() -> None:
    pair = TensorDataset(*table())
    assert "map-style dataset, not DataLoader" in refused(train=DataLoader(pair))
    assert "must be (input, target), not 3 parts" in refused(train=TensorDataset(*table(), table()[1]))


def refused(**changed: Any) -> str:
    """The one line with which a run is refused."""
    asked: dict[str, Any] = {"model": mlp(), "train": table(), "optimizer": sgd, "scheduler": None, "evaluate": None}
    asked.update(changed)
    with pytest.raises(ConfigError) as error:
        pl.train(
            pl.Task(asked["model"], functional.cross_entropy, train=asked["train"], evaluate=asked["evaluate"]),
            strategy=pl.Synchronous(),
            fleet=simulated(),
            optimizer=asked["optimizer"],
            scheduler=asked["scheduler"],
            stop=pl.Stop(updates=2),
            batch_size=4,
            progress=False,
        )
    assert "\n" not in str(error.value)
    return str(error.value)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # which is why it is refused
        module: nn.Module = torch.jit.script(mlp())
        return module


def test_what_is_no_optimizer_is_refused() -> None:
    assert "no torch optimizer" in refused(optimizer=list)
    assert "must be a function" in refused(optimizer=sgd(mlp().parameters()))


def test_a_model_without_anything_to_train_is_refused() -> None:
    assert "nothing would be trained" in refused(model=mlp().requires_grad_(False))


def test_what_is_no_model_or_no_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model must be a torch module, .* not the class Linear"):
        pl.Task(nn.Linear, functional.cross_entropy, train=table())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="loss must be a function of outputs and targets, not str"):
        pl.Task(mlp(), "cross_entropy", train=table())  # type: ignore[arg-type]


def test_a_scripted_model_is_refused() -> None:
    assert "torch.jit.ScriptModule" in refused(model=nn.Sequential(scripted()))


def test_autocast_around_a_run_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "inside the model's forward" in refused()


def test_a_metric_that_no_evaluation_tells_is_refused() -> None:
    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {"loss": 1.0}

    plateau: MakeScheduler = lambda optimizer: ReduceLROnPlateau(optimizer, mode="max")  # noqa: E731
    assert "returns no accuracy" in refused(scheduler=plateau, evaluate=evaluate)


def test_lists_are_no_tensors() -> None:
    assert "not of list and list" in refused(train=([[1.0] * 6] * 64, [0] * 64))
    assert "cannot be trained on" in refused(train=(np.array(["a"] * 64), np.zeros(64)))


def test_arrays_of_doubles_become_the_type_of_the_model(caplog: pytest.LogCaptureFixture) -> None:
    x, y = table()[0].double().numpy(), table()[1].numpy()
    with caplog.at_level(logging.WARNING, "paceline"):
        task = pl.Task(mlp(), functional.cross_entropy, train=(x, y))
        assert "float64" in caplog.text
        caplog.clear()
        doubles = pl.Task(mlp().double(), functional.cross_entropy, train=(x, y))
        assert not caplog.text
    assert task.training_samples().fetch(np.arange(2))[0].dtype is torch.float32
    assert doubles.training_samples().fetch(np.arange(2))[0].dtype is torch.float64


def test_an_array_that_must_not_be_written_to_is_no_trouble() -> None:
    x, y = table()[0].numpy().copy(), table()[1].numpy()
    x.setflags(write=False)
    found = samples((x[::-1], y)).fetch(np.arange(64))[0]
    np.testing.assert_array_equal(found.numpy(), x[::-1])
