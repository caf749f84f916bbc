"""Lightning's trainer is recorded in one line, under both names of the framework; its modules train."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from torch.optim.lr_scheduler import ExponentialLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.integrations.lightning import (
    RecorderCallback,
    _samples,
    optimizer_and_scheduler_from,
    optimizer_from,
    task_from,
)
from paceline.trace.recordings import WorkerRecording, read_recording
from support.forks import all_well, forked

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore::pytorch_lightning.utilities.rank_zero.LightningDeprecationWarning"),
]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Under DDP the trainer leaves a process group, environment variables and another SIGINT handler behind."""
    before, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)
    os.environ.clear()
    os.environ.update(before)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Tiny(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fails_at:
            raise RuntimeError("out of luck")
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.layer(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(directory: Path, module: Tiny | None = None, **options: Any) -> None:
    data = TensorDataset(torch.rand(24, 4), torch.randint(2, (24,)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[RecorderCallback(directory)], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, **options,
    )  # fmt: skip
    trainer.fit(module or Tiny(), DataLoader(data, batch_size=4))


def recorded(directory: Path) -> WorkerRecording:
    (one,) = read_recording(directory).workers
    return one


def test_steps_are_recorded(tmp_path: Path) -> None:
    fit(tmp_path / "job")
    one = recorded(tmp_path / "job")
    assert (one.steps, one.workers, one.last) == (12, 1, "closed")
    assert {update.samples for update in one.updates} == {4}
    assert not one.tells_waiting


def test_under_ddp_waiting_is_told_and_gradients_are_accumulated(tmp_path: Path) -> None:
    fit(tmp_path / "job", strategy="ddp", accumulate_grad_batches=2)
    one = recorded(tmp_path / "job")
    assert one.tells_waiting
    assert one.steps == 12
    assert [update.samples for update in one.updates] == [8] * 5


def test_what_was_recorded_before_an_error_is_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(tmp_path / "job", Tiny(fails_at=3))
    assert (recorded(tmp_path / "job").steps, recorded(tmp_path / "job").last) == (3, "closed")


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(3, 2), 3),
        ({"name": "x", "ids": torch.zeros(5)}, 5),
        ([("a", "b"), torch.zeros(2)], 2),
        (torch.zeros(()), None),
        ("text", None),
        ({}, None),
        (3, None),
    ],
)
def test_samples_of_any_batch(batch: object, samples: int | None) -> None:
    assert _samples(batch) == samples


OTHER_NAME = """
import sys, types
import pytorch_lightning
package = types.ModuleType("lightning")
package.pytorch = pytorch_lightning
sys.modules["lightning"], sys.modules["lightning.pytorch"] = package, pytorch_lightning
del sys.modules["pytorch_lightning"]
from paceline.integrations.lightning import RecorderCallback
assert RecorderCallback.__mro__[1] is pytorch_lightning.Callback
"""
MISSING = """
import sys
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = sys.modules["transformers"] = None
import paceline
for name in ("lightning", "huggingface"):
    try:
        getattr(paceline.integrations, name)
    except paceline.ConfigError as error:
        print(error)
"""


def test_the_other_name_of_the_framework_works() -> None:
    all_well(forked(lambda: exec(OTHER_NAME, {})))


def test_a_missing_framework_is_named() -> None:
    (said,) = forked(lambda: exec(MISSING, {}))
    all_well([said])
    assert said.out.splitlines() == [
        "paceline.integrations.lightning needs Lightning: pip install 'paceline[lightning]'",
        "paceline.integrations.huggingface needs transformers: pip install 'paceline[huggingface]'",
    ]


def test_frameworks_are_loaded_when_they_are_first_used() -> None:
    code = (
        "import paceline, sys; paceline.integrations; assert not {'transformers', 'pytorch_lightning'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'keras'"):
        _ = pl.integrations.keras


class Grouped(Tiny):
    """Logs, has groups of parameters, and asks for no number of the batch."""

    def training_step(self, batch: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        loss = super().training_step(batch, 0)
        self.log("half", loss / 2, on_step=True)
        return {"loss": loss, "outputs": torch.zeros(7)}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.log_dict({"one": 1.0, "two": torch.tensor(2.0)}, sync_dist=True)
        return {"three": 3, "loss": torch.tensor(9.0), "names": ["x"]}

    def configure_optimizers(self) -> Any:
        weight, bias = self.parameters()
        groups: list[dict[str, Any]] = [{"params": [bias], "lr": 0.01}, {"params": [weight]}]
        return {"optimizer": torch.optim.SGD(groups, lr=0.1, momentum=0.9)}


def data(count: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 4, generator=generator), torch.randint(2, (count,), generator=generator)


def train(task: pl.Task, module: Any, fleet: Any = None) -> pl.Run:
    return pl.train(
        task, strategy=pl.Synchronous(), fleet=fleet or pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2),
        optimizer=optimizer_from(module), batch_size=4, stop=pl.Stop(updates=6), progress=False,
    )  # fmt: skip


def test_a_module_trains_as_its_training_step_says() -> None:
    torch.manual_seed(0)
    module = Tiny()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = train(task_from(module, data()), module)
    plain = pl.Task(module.layer, torch.nn.functional.cross_entropy, data())
    same = pl.train(
        plain, strategy=pl.Synchronous(), fleet=pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch_size=4, stop=pl.Stop(updates=6),
        progress=False,
    )  # fmt: skip
    torch.testing.assert_close(run.model.state_dict()["layer.weight"], same.model.state_dict()["weight"])
    assert run.history[-1].loss == pytest.approx(same.history[-1].loss)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_what_steps_log_are_metrics() -> None:
    module = Grouped()
    run = train(task_from(module, data(), test=data(8)), module)
    metrics = run.history[-1].metrics
    assert metrics["half"] == pytest.approx(metrics["loss"] / 2)
    assert {name: metrics[name] for name in ("one", "two", "three")} == {"one": 1.0, "two": 2.0, "three": 3.0}
    assert "log" not in vars(run.model)


def test_worker_processes_train_a_module() -> None:
    module = Grouped()
    run = train(task_from(module, data(), test=data(8)), module, pl.ProcessFleet(2, threads=1))
    assert run.history[-1].updates == 6


def test_the_optimizer_keeps_its_groups_and_is_made_of_other_parameters() -> None:
    module = Grouped()
    make, other = optimizer_from(module), Grouped()
    optimizer = make(other.parameters())
    bias, weight = optimizer.param_groups
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.1]
    assert (bias["params"][0] is other.layer.bias, weight["params"][0] is other.layer.weight) == (True, True)
    with pytest.raises(pl.ConfigError, match="is one of 2 parameters, and is to be made of 1"):
        make([other.layer.bias])


def with_optimizers(returned: Any) -> Tiny:
    module = Tiny()
    module.configure_optimizers = lambda: returned  # type: ignore[method-assign]
    return module


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ([sgd(), sgd()], "configure_optimizers of Tiny returns 2 optimizers: a task has one"),
        (([sgd()], [object()]), "returns object as a scheduler of torch"),
        (([sgd()], [object(), object()]), "returns 2 schedulers: a task has one"),
        ({"optimizer": sgd(), "lr_scheduler": StepLR(sgd(), 2)}, "for every epoch, and here it is stepped at each"),
        (([sgd()], [{"scheduler": ReduceLROnPlateau(sgd()), "interval": "step"}]), "returns a learning rate scheduler"),
        (None, "returns NoneType: one torch optimizer is needed"),
        ([], "returns NoneType: one torch optimizer is needed"),
    ],
)
def test_optimizers_that_cannot_be_taken_over_are_refused(returned: Any, why: str) -> None:
    with pytest.raises(pl.ConfigError, match=why):
        optimizer_from(with_optimizers(returned))


class Scheduled(Grouped):
    """Warms up for two updates, then halves its rates at each one."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()["optimizer"]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warming_up(optimizer), "interval": "step"}}


def warming_up(optimizer: torch.optim.Optimizer) -> SequentialLR:
    schedules = [LinearLR(optimizer, 0.25, total_iters=2), ExponentialLR(optimizer, 0.5)]
    return SequentialLR(optimizer, schedules, milestones=[2])


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(every=2)], ids=["gradients", "models"])
def test_a_scheduler_sets_the_rates_of_a_run(strategy: pl.strategy.Strategy) -> None:
    """As one that is made by hand for the optimizer of the run; on simulated workers, and on processes."""
    runs = []
    for kind in (Scheduled, Grouped):
        for fleet in (pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2), pl.ProcessFleet(2, threads=1)):
            torch.manual_seed(0)
            module = kind()
            optimizer, scheduler = optimizer_and_scheduler_from(module)
            assert (scheduler is None) == (kind is Grouped)
            runs.append(
                pl.train(
                    task_from(module, data()), strategy=strategy, fleet=fleet, optimizer=optimizer,
                    scheduler=scheduler or warming_up, batch_size=4, stop=pl.Stop(updates=5), progress=False,
                )
            )  # fmt: skip
    states = [run.model.state_dict() for run in runs]
    for name, value in states[2].items():
        assert torch.equal(states[0][name], value)
        assert torch.equal(states[1][name], states[3][name])
        torch.testing.assert_close(states[1][name], value)
    with pytest.raises(
        pl.ConfigError, match=r"give train\(\) both, optimizer, scheduler = optimizer_and_scheduler_from"
    ):
        optimizer_from(Scheduled())


def test_one_optimizer_in_a_list_is_one() -> None:
    ways: list[Any] = [([sgd()], []), [sgd()]]
    assert all(callable(optimizer_from(with_optimizers(returned))) for returned in ways)


class Clips(Tiny):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """It would not be called."""


class Silent(lightning.LightningModule):  # type: ignore[misc]
    """It has no training step."""


class Manual(Tiny):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Manual(), "Manual optimizes by hand"),
        (Clips(), "Clips has a hook on_before_optimizer_step of its own, which would not be called"),
        (Silent(), "Silent has no training_step"),
        (torch.nn.Linear(2, 2), "a LightningModule is needed, not Linear"),
        (Tiny, "a LightningModule is needed, not the class Tiny"),
    ],
)
def test_modules_that_update_otherwise_are_refused(module: Any, why: str) -> None:
    with pytest.raises(pl.ConfigError, match=why):
        task_from(module, data())


class Skips(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        return None


class Asks(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx) * self.trainer.global_step  # type: ignore[no-any-return]


class LogsAnObject(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("metric", object())
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Skips, "training_step of Skips returned None"),
        (Asks, "training_step of Asks uses self.trainer, and there is none"),
        (LogsAnObject, "training_step logs metric as a object"),
    ],
)
def test_steps_that_need_a_trainer_are_refused(kind: type[Tiny], why: str) -> None:
    module = kind()
    with pytest.raises(pl.ConfigError, match=why):
        train(task_from(module, data()), module)


class Listens(Tiny):
    def on_train_epoch_end(self) -> None:
        """It is not called."""


def test_hooks_that_are_not_called_are_named(caplog: pytest.LogCaptureFixture) -> None:
    task_from(Listens(), data())
    assert caplog.messages == ["Listens: these hooks are not called: on_train_epoch_end"]
