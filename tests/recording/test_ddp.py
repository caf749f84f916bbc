"""Waiting is told from computing in the backward pass of a DDP model, whatever else hangs on it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.recording import ddp
from paceline.trace.recordings import WorkerRecording, read_recording

LATE = 0.05  # seconds that the exchange takes


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


COMPUTED = threading.Event()  # the recorder has noticed that all gradients are there
IS_WATCHED = threading.Event()


@pytest.fixture(autouse=True)
def noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> float:
        at = time.perf_counter()
        COMPUTED.set()
        return at

    monkeypatch.setattr(ddp, "now", now)
    IS_WATCHED.set()


def exchange_late(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """A communication hook whose exchange ends some time after the backward pass, however long that takes."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    COMPUTED.clear()

    def exchange() -> None:
        if IS_WATCHED.is_set():
            COMPUTED.wait()
        time.sleep(LATE)
        future.set_result(bucket.buffer())

    threading.Thread(target=exchange).start()
    return future


def late_model(*layers: nn.Module, unused: bool = False) -> DistributedDataParallel:
    model = DistributedDataParallel(nn.Sequential(*layers), find_unused_parameters=unused)
    model.register_comm_hook(None, exchange_late)
    return model


def step(model: nn.Module) -> None:
    model(torch.ones(3, 4)).sum().backward()


def recorded(directory: Path) -> WorkerRecording:
    (one,) = read_recording(directory).workers
    return one


@pytest.mark.usefixtures("group")
def test_the_exchange_counts_as_waiting(tmp_path: Path) -> None:
    model = late_model(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pl.record(tmp_path / "job", worker=0) as recorder:
        recorder.watch(model)
        for _ in range(4):
            with recorder.step(samples=3):
                step(model)
    one = recorded(tmp_path / "job")
    assert one.workers == 1  # as the process group says
    assert one.tells_waiting
    assert len(one.updates) == 3
    assert all(update.waited >= 0.9 * LATE for update in one.updates)
    assert all(update.exchanged <= update.ended for update in one.updates)


@pytest.mark.usefixtures("group")
def test_gradients_are_accumulated_until_they_are_exchanged(tmp_path: Path) -> None:
    model = late_model(nn.Linear(4, 2))
    with pl.record(tmp_path / "job", worker=0) as recorder:
        recorder.watch(model)
        for number in range(6):
            with recorder.step(samples=3):
                if number % 2:
                    step(model)
                else:
                    with model.no_sync():
                        step(model)
    one = recorded(tmp_path / "job")
    assert one.steps == 6
    assert [update.samples for update in one.updates] == [6, 6]


@pytest.mark.usefixtures("group")
def test_unused_frozen_and_normalised_parts_do_not_disturb(tmp_path: Path) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.used, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.norm = nn.BatchNorm1d(4)
            self.frozen.requires_grad_(False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.norm(self.used(inputs)))  # type: ignore[no-any-return]

    model = late_model(Partly(), unused=True)
    with pl.record(tmp_path / "job", worker=0) as recorder:
        recorder.watch(model)
        for _ in range(3):
            with recorder.step(samples=3):
                step(model)
    one = recorded(tmp_path / "job")
    assert len(one.updates) == 2
    assert all(update.waited >= 0.9 * LATE for update in one.updates)


@pytest.mark.usefixtures("group")
def test_a_pass_that_fails_does_not_end_the_watch(tmp_path: Path) -> None:
    model = late_model(nn.Linear(4, 8), nn.Linear(8, 2), unused=True)

    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError("out of luck")

    with pl.record(tmp_path / "job", worker=0) as recorder:
        recorder.watch(model)
        hidden = model.module[0](torch.ones(3, 4))
        hidden.register_hook(fail)
        loss = model.module[1](hidden).sum()
        with pytest.raises(RuntimeError, match="out of luck"), recorder.step():
            loss.backward()
        for _ in range(3):
            with recorder.step():
                step(model)
    one = recorded(tmp_path / "job")
    assert len(one.updates) == 2
    assert one.tells_waiting


@pytest.mark.usefixtures("group")
def test_nothing_is_watched_after_the_recorder_is_closed(tmp_path: Path) -> None:
    model = late_model(nn.Linear(4, 2))
    recorder = pl.record(tmp_path / "job", worker=0).open()
    with recorder.watch(model).step():
        step(model)
    recorder.close()
    IS_WATCHED.clear()
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    step(model)


def test_only_ddp_models_are_watched(tmp_path: Path) -> None:
    with (
        pl.record(tmp_path, worker=0) as recorder,
        pytest.raises(pl.ConfigError, match="cannot watch a Linear: give the DistributedDataParallel model itself"),
    ):
        recorder.watch(nn.Linear(2, 2))  # type: ignore[arg-type]
