"""How far a run is: by whatever limits it, with the metrics that there are."""

import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.callbacks import display, progress
from paceline.callbacks.display import LogDisplay, Status, TimeLeft, open_display
from support.digits import TRAINING_SAMPLES, digits_task

FLEET = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(3.0)])
BATCH = 50


class Kept:
    """A display that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Status] = []
        self.last: Status | None = None

    def due(self) -> bool:
        return True

    def show(self, status: Status) -> None:
        self.shown.append(status)

    def close(self, last: Status | None) -> None:
        self.last = last


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    display = Kept()
    monkeypatch.setattr(progress, "open_display", lambda: display)
    return display


def train(stop: pl.Stop, task: pl.Task | None = None, **more: Any) -> pl.Run:
    return pl.train(
        task or digits_task(),
        strategy=pl.Asynchronous(),
        fleet=FLEET,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=stop,
        batch_size=BATCH,
        **more,
    )


def test_updates_are_a_limit(kept: Kept) -> None:
    train(pl.Stop(updates=8))
    assert [status.share for status in kept.shown] == [number / 8 for number in range(1, 9)]
    assert [status.parts[0] for status in kept.shown][-1] == "update 8/8"
    assert all(status.label == "Asynchronous" and status.left is not None for status in kept.shown)
    assert kept.last is not None
    assert (kept.last.share, kept.last.left) == (1.0, None)


def test_seconds_are_a_limit_whichever_comes_first(kept: Kept) -> None:
    run = train(pl.Stop(updates=1_000, seconds=9.0))
    times = [number for number in range(1, 10) for _ in range(2 if number % 3 == 0 else 1)]
    assert run.ended == "seconds"
    assert [status.share for status in kept.shown] == [time / 9 for time in times]
    assert kept.shown[-1].parts[:2] == ["update 12/1,000", "time 9/9"]


def test_epochs_are_a_limit(kept: Kept) -> None:
    train(pl.Stop(epochs=0.5))
    assert kept.shown[0].share == pytest.approx(BATCH / (0.5 * TRAINING_SAMPLES))
    assert kept.shown[-1].share == 1.0


def test_a_target_alone_is_no_limit(kept: Kept) -> None:
    train(pl.Stop(target=0.2), every=pl.Every(updates=1))
    assert {(status.share, status.left) for status in kept.shown} == {(None, None)}
    assert any(part.startswith("accuracy ") and part.endswith("/20.0%") for part in kept.shown[-1].parts)


def test_metrics_of_any_name_are_shown_with_what_they_are_to_reach(kept: Kept) -> None:
    def evaluate(model: torch.nn.Module) -> Mapping[str, float]:
        return {"perplexity": 30.0, "f1": 0.25}

    task = digits_task()
    own = pl.Task(task.model, task.loss, train=task.train, evaluate=evaluate)
    train(pl.Stop(updates=3, metric="perplexity", below=20.0), own, every=pl.Every(updates=1))
    assert kept.shown[-1].parts[2:4] == ["perplexity 30.0000/20", "f1 0.2500"]
    assert kept.shown[-1].parts[-1].startswith("waiting for ")


def test_a_resumed_run_begins_where_it_was(kept: Kept, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train(pl.Stop(updates=4), directory=tmp_path / "run")
    begun: list[float | None] = []
    monkeypatch.setattr(TimeLeft, "estimate", lambda self, share: begun.append(share))
    train(pl.Stop(updates=8), directory=tmp_path / "run", resume=True)
    assert begun[:2] == [0.5, 0.625]


def test_nothing_is_shown_if_not_asked_for(kept: Kept) -> None:
    train(pl.Stop(updates=2), progress=False)
    assert kept.shown == []


def test_without_a_standard_error_a_run_is_as_quiet_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ``pythonw``, or where whoever started Python has closed it."""
    monkeypatch.setattr(sys, "stderr", None)
    display = open_display()
    assert isinstance(display, LogDisplay)
    display.show(Status("a run", 0.5, 1.0, ("update 1/2",)))
    assert train(pl.Stop(updates=2)).history[-1].updates == 2


def test_a_line_comes_each_minute_also_where_no_update_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "MINUTE", 0.3)
    fleet = pl.ProcessFleet(2, slow=dict.fromkeys(range(2), pl.delays.Constant(60.0)))
    run = pl.train(
        digits_task(),
        strategy="ssgd",
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(seconds=2.0),
        batch_size=BATCH,
    )
    assert run.history[-1].updates == 0
    waiting = [line for line in capsys.readouterr().err.splitlines() if "update 0, time" in line]
    assert len(waiting) >= 3
    assert waiting[-1].startswith("Synchronous: ")
    assert waiting[-1].endswith("waiting for 0, 1")
    assert not waiting[-1].startswith("Synchronous: 0%")
