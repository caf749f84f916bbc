"""Workers on devices. Without one at hand: the path with copies gives the bits of that without, on the CPU."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import paceline as pl
from paceline.cli.main import main
from paceline.core.errors import ConfigError
from paceline.data.samples import TensorSamples
from paceline.learning import devices
from paceline.learning.arena.arena import Layout, ParameterArena, StagedSlot
from paceline.learning.devices import Transfers, accelerators, checked, devices_of, open_device
from paceline.learning.gradients.placement import Staged
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import SampleLoss
from paceline.learning.model_state import ModelState
from paceline.learning.workload import workload_of
from support.digits import digits, digits_task
from support.ranks import Tied, half_precision, layers, mean_and_more

FLEET = pl.ProcessFleet(2, threads=1)
STAGED = pl.ProcessFleet(2, threads=1, staging=True)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def train(task: pl.Task, fleet: Any, strategy: Any, updates: int = 6, **options: Any) -> pl.Run:
    return pl.train(
        task, strategy=strategy, fleet=fleet, optimizer=adam, stop=pl.Stop(updates=updates), batch_size=16,
        progress=False, **options,
    )  # fmt: skip


def in_floats(model: nn.Module, **options: Any) -> pl.Task:
    (inputs, targets), test = digits()
    return pl.Task(model, nn.CrossEntropyLoss(), (inputs.float(), targets), (test[0].float(), test[1]), **options)


TASKS: dict[str, tuple[Callable[[], pl.Task], pl.strategy.Strategy]] = {
    "buffers, dropout and bfloat16, in blocks": (lambda: in_floats(half_precision()), pl.LiveCompensation(2, blocks=4)),
    "tied and unused": (lambda: digits_task(Tied()), pl.Synchronous()),
    "a step that logs": (
        lambda: pl.Task(layers(), step=mean_and_more, train=digits()[0], test=digits()[1]),
        pl.LiveCompensation(2, blocks=2),
    ),
    "models": (
        lambda: digits_task(layers(nn.BatchNorm1d(20, dtype=torch.float64), nn.Dropout(0.2))),
        pl.ModelAveraging(3),
    ),
    "ensembles": (lambda: digits_task(layers()), pl.EnsembleCompression(3, compression_steps=1)),
}


@pytest.mark.parametrize("name", TASKS)
def test_copies_change_no_bit(name: str, tmp_path: Path) -> None:
    """The same weights, buffers, losses and metrics; and a run with copies is replayed bit for bit."""
    make, strategy = TASKS[name]
    plain, staged = train(make(), FLEET, strategy), train(make(), STAGED, strategy, directory=tmp_path)
    assert plain.model.state_dict().keys() == staged.model.state_dict().keys()
    for key, values in plain.model.state_dict().items():
        assert torch.equal(values, staged.model.state_dict()[key]), key
    metrics = [[(row.loss, row.training_loss, dict(row.metrics)) for row in run.history] for run in (plain, staged)]
    assert repr(metrics[0]) == repr(metrics[1])
    found = pl.replay(tmp_path, make(), strategy=strategy, fleet=STAGED, optimizer=adam, batch_size=16)
    assert (found.differences, found.compared) == ({}, True)


def test_asynchronous_workers_compute_on_the_version_of_their_ticket(tmp_path: Path) -> None:
    """Weights are copied once a version: a replay, which is told each ticket's version, finds the same weights."""
    fleet = pl.ProcessFleet(3, threads=1, staging=True, slow={2: 4.0})
    task = digits_task(layers(nn.Dropout(0.2)))
    train(task, fleet, pl.Asynchronous(), updates=40, directory=tmp_path)
    plain = pl.ProcessFleet(3, threads=1, slow={2: 4.0})
    found = pl.replay(tmp_path, task, strategy=pl.Asynchronous(), fleet=plain, optimizer=adam, batch_size=16)
    assert (found.differences, found.compared) == ({}, True)


def test_a_worker_that_is_spawned_is_a_worker() -> None:
    """It loads Python anew, and computes the same."""
    task = digits_task()
    forked = train(task, pl.ProcessFleet(1, threads=1), pl.Synchronous())
    spawned = train(task, pl.ProcessFleet(1, threads=1, start="spawn"), pl.Synchronous())
    assert all(map(torch.equal, forked.model.state_dict().values(), spawned.model.state_dict().values()))


# Which devices there are.


def with_accelerators(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


def test_auto_deals_the_accelerators_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert devices_of(None, 3) == ("cpu", "cpu", "cpu")
    if not accelerators():
        assert devices_of("auto", 2) == ("cpu", "cpu")
        assert "finds no accelerator" in caplog.text
    with_accelerators(monkeypatch, 2)
    assert devices_of("auto", 3) == ("cuda:0", "cuda:1", "cuda:0")
    assert devices_of(["cuda", "cpu", "cuda:1"], 3) == ("cuda:0", "cpu", "cuda:1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"devices": ["cpu"]}, "1 device for 2 workers: give one for each"),
        ({"devices": ["cpu"] * 3}, "3 devices for 2 workers: give one for each"),
        ({"devices": "cuda:0"}, "devices='cuda:0' are none: give \"auto\", or a list"),
        ({"devices": [0, 1]}, "devices=[0, 1] are none"),
        ({"start": "swapn"}, "start='swapn' is unknown: did you mean 'spawn'?"),
        ({"staging": "yes"}, "cannot have staging='yes': give True or False"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        pl.ProcessFleet(2, **given)


def test_a_device_that_does_not_exist_is_refused_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with_accelerators(monkeypatch, 2)
    with pytest.raises(ConfigError, match="'cuda:2' does not exist: this machine has cuda:0, cuda:1 and cpu"):
        train(digits_task(), pl.ProcessFleet(2, devices=["cuda:0", "cuda:2"]), pl.Synchronous())
    with pytest.raises(ConfigError, match="'gpux' is no name of a device: this machine has no accelerator, only cpu"):
        checked("gpux", [])


def test_a_driver_that_was_initialised_before_the_fork_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(
        ConfigError, match=r"initialised the driver of cuda in the fork server.*start=\"spawn\""
    ) as found:
        open_device("cuda:0")
    assert "\n" not in str(found.value)


def test_a_model_on_a_device_is_refused_with_what_to_do() -> None:
    workload = workload_of(digits_task(), [np.arange(100)], 16)
    workload = replace(workload, state=ModelState(nn.Linear(64, 10, device="meta")))
    with pytest.raises(ConfigError, match=r"the task's model is on meta.*ProcessFleet\(devices=\.\.\.\)"):
        FLEET.launch(workload, seed=0)


# A whole pass of a worker with tensors that are on no CPU.


def test_a_pass_finds_no_tensor_on_the_wrong_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors on another device: an operation on tensors of two devices raises, copies between them do not.

    The device is torch's "meta". A build of torch without cuda has no backward pass for fake tensors on cuda: it ends
    the process.
    """
    meta = torch.device("meta")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr("paceline.learning.gradients.work.seed_generators", lambda seed, device: None)
    monkeypatch.setattr("paceline.learning.arena.arena.norm", lambda vectors: 0.0)
    plain = layers(nn.BatchNorm1d(20, dtype=torch.float64), nn.Dropout(0.2))
    samples = TensorSamples(*digits()[0])
    layout = Layout(list(plain.parameters()), list(plain.buffers()), 16)
    arena = ParameterArena(layout, torch.zeros(2 * layout.stride, dtype=torch.uint8))
    loss = SampleLoss(nn.CrossEntropyLoss(), samples)
    source, row = arena[0], arena[1]
    seen: list[torch.device] = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        with meta:
            model = layers(nn.BatchNorm1d(20, dtype=torch.float64), nn.Dropout(0.2))
            model.get_submodule("1").num_batches_tracked = torch.empty((), dtype=torch.int64)  # no known constant
        parameters = list(model.parameters())
        model.register_forward_hook(lambda module, inputs, outputs: seen.append(inputs[0].device))
        placement = Staged(StagedSlot(layout, meta), Transfers(meta), list(model.buffers()))
        work = GradientWork(model, parameters, samples, loss, placement=placement)
        done, report = work.compute(source, row, np.arange(16), units=4, seed=0, go_on=lambda block: True, version=1)
        with pytest.raises(Exception, match="two devices"):
            model(samples.fetch(np.arange(16))[0])
    assert (done, report.losses, report.unused) == (4, 16, 0)
    assert seen[:4] == [meta] * 4
    assert {parameter.grad.device for parameter in parameters if parameter.grad is not None} == {meta}


def test_the_doctor_times_every_device(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor", "--json", str(tmp_path / "found.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    found = json.loads((tmp_path / "found.json").read_text())
    assert [each["device"] for each in found["devices"]] == ["cpu", *devices.accelerators()]
    assert all(found["devices"][0][name] > 0 for name in ("mini_batch", "copy", "step", "memory"))


def test_a_device_that_fails_is_told_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.learning.device_times import time_device

    monkeypatch.setattr("paceline.learning.device_times.described", lambda device: ("pretended", 1 << 30))
    found = time_device("cuda:7")
    assert (found.device, found.name, found.mini_batch) == ("cuda:7", "pretended", None)
    assert found.error.startswith("ConfigError: the device 'cuda:7' does not exist")
