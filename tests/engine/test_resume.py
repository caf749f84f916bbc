"""A run that ends somewhere and is resumed is, to the bit, the run that went on."""

import json
import logging
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import paceline as pl
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Remember, Step, WakeAt
from support.digits import Noted, digits, linear, rows, weights
from support.resumable import CASES, FLEET, GROUPS, Case, sgd

FILES = (
    "checkpoint.safetensors",
    "config.json",
    "metrics.jsonl",
    "model.safetensors",
    "summary.json",
    "trace.jsonl",
)
UPDATES = 8


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", CASES)
def test_a_run_resumed_after_any_update_has_the_bytes_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    """Weights, history, trace and metrics, with a break at every other update."""
    case = CASES[name]
    straight = case.run(tmp_path / "straight", pl.Stop(updates=UPDATES))
    expected = files(tmp_path / "straight")
    assert sorted(expected.keys() - {"pruning.safetensors"}) == sorted(FILES)
    for updates in (*range(1, UPDATES, 2), UPDATES):
        resumed = case.run(tmp_path / "broken", pl.Stop(updates=updates), resume=True)
    assert rows(resumed) == rows(straight)
    assert torch.equal(weights(resumed.model), weights(straight.model))
    assert resumed.summary() == straight.summary()
    found = files(tmp_path / "broken")
    for file in expected:
        assert found[file] == expected[file], file


@pytest.mark.parametrize(
    "name", ["compensation", "grouped compensation", "busy server", "every delay", "batch norm", "pruned"]
)
def test_a_run_resumed_after_any_time_has_the_bytes_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    """The event that came too late for the first run is the first of the second."""
    case = CASES[name]
    case.run(tmp_path / "straight", pl.Stop(seconds=0.6))
    for seconds in (0.07, 0.2, 0.31, 0.6):
        case.run(tmp_path / "broken", pl.Stop(seconds=seconds), resume=True)
    assert files(tmp_path / "broken") == files(tmp_path / "straight")


@pytest.mark.parametrize("name", ["grouped compensation", "batch norm", "every delay, asynchronous", "pruned"])
def test_a_checkpoint_on_the_way_changes_nothing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.run(tmp_path / "without", pl.Stop(updates=7))
    case.run(tmp_path / "with", pl.Stop(updates=7), checkpoint=pl.Every(updates=1))
    assert files(tmp_path / "with") == files(tmp_path / "without")


@dataclass(frozen=True)
class Waiting(pl.strategy.Strategy):
    """Steps on what there is when its alarm rings, and remembers how often it did."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            return [Assign(worker) for worker in ledger.idle]
        if not ledger.alarms and (ready := [*ledger.late, *ledger.fresh]):
            counted = Remember("steps", ledger.memory.get("steps", 0) + 1)
            return [Step(dict.fromkeys(ready, Fraction(1, len(ready)))), counted, WakeAt(ledger.now + 0.06)]
        return []


@pytest.mark.parametrize("strategy", [Waiting(), pl.Grouped(GROUPS, inside=Waiting())], ids=repr)
def test_alarms_and_what_a_strategy_remembers_are_kept(strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    case = Case(strategy)
    case.run(tmp_path / "straight", pl.Stop(updates=9))
    for updates in range(1, 10):
        case.run(tmp_path / "broken", pl.Stop(updates=updates), resume=True)
    assert files(tmp_path / "broken") == files(tmp_path / "straight")
    trace = (tmp_path / "straight" / "trace.jsonl").read_text()
    assert '"rang"' in trace
    assert '"remember"' in trace


def test_a_finished_run_that_is_resumed_is_finished(tmp_path: Path) -> None:
    case = CASES["grouped compensation"]
    for stop in (pl.Stop(updates=6), pl.Stop(seconds=0.3), pl.Stop(epochs=0.5), pl.Stop(updates=50, target=0.3)):
        directory = tmp_path / repr(stop)
        first = case.run(directory, stop)
        before = files(directory)
        again = case.run(directory, stop, resume=True)
        assert files(directory) == before
        assert again.ended == first.ended != "no workers"
        assert rows(again) == rows(first)


def test_a_run_that_was_stopped_before_its_first_checkpoint_is_begun_again(tmp_path: Path) -> None:
    case = CASES["compensation"]
    case.run(tmp_path / "straight", pl.Stop(updates=4))
    case.run(tmp_path / "killed", pl.Stop(updates=4))
    for name in ("checkpoint.safetensors", "model.safetensors", "summary.json"):
        (tmp_path / "killed" / name).unlink()
    with (tmp_path / "killed" / "trace.jsonl").open("a") as file:
        file.write('["arr')
    (tmp_path / "killed" / ".checkpoint.safetensors.17.partial").write_bytes(b"half")
    case.run(tmp_path / "killed", pl.Stop(updates=4), resume=True)
    assert files(tmp_path / "killed") == files(tmp_path / "straight")


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGINT, signal.SIG_DFL),  # as some frameworks leave it
        (signal.SIGTERM, signal.SIG_DFL),
    ],
)
def test_a_run_that_a_signal_ended_goes_on_as_if_nothing_had_been(
    number: signal.Signals, handler: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, handler)))
    armed = True

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
        steps = 0

        def after_step(*arguments: object) -> None:
            nonlocal steps
            steps += 1
            if armed and steps == 5:
                signal.raise_signal(number)

        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer.register_step_post_hook(after_step)
        return optimizer

    case = replace(CASES["dropout"], optimizer=make)
    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        case.run(tmp_path / "ended", pl.Stop(updates=9))
    expected: object = None if number == signal.SIGINT else 128 + signal.SIGTERM
    assert getattr(ended.value, "code", None) == expected
    summary = json.loads((tmp_path / "ended" / "summary.json").read_text())
    assert (summary["ended"], summary["updates"]) == ("interrupted", 5)
    armed = False
    case.run(tmp_path / "ended", pl.Stop(updates=9), resume=True)
    case.run(tmp_path / "straight", pl.Stop(updates=9))
    assert files(tmp_path / "ended") == files(tmp_path / "straight")


# What is asked for, and what cannot be


def test_checkpoints_are_written_as_often_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def count(path: Path, state: dict[str, Any]) -> None:
        made.append(state["server"]["counts"][0])

    monkeypatch.setattr("paceline.engine.checkpoints.write_checkpoint", count)
    case = CASES["asynchronous"]
    case.run(tmp_path / "never", pl.Stop(updates=10))
    assert made == [10]
    made.clear()
    case.run(tmp_path / "by updates", pl.Stop(updates=10), checkpoint=pl.Every(updates=4))
    assert made == [4, 8, 10]
    made.clear()
    case.run(tmp_path / "by seconds", pl.Stop(updates=40), checkpoint=pl.Every(seconds=0.1))
    assert made == sorted(made)
    assert 4 <= len(made) <= 8


def test_what_has_no_state_is_refused_where_a_checkpoint_is_asked_for(tmp_path: Path) -> None:
    case = Case(sampling=Noted())
    said = "its sampling \\(_Recording\\) has no state\\(\\) and restore\\(\\)"
    with pytest.raises(pl.ConfigError, match=said):
        case.run(tmp_path / "asked", pl.Stop(updates=3), checkpoint=pl.Every(updates=1))
    assert not (tmp_path / "asked").exists()
    case.run(tmp_path / "not asked", pl.Stop(updates=3))
    assert "checkpoint.safetensors" not in files(tmp_path / "not asked")
    with pytest.raises(pl.ConfigError, match=said):
        case.run(tmp_path / "not asked", pl.Stop(updates=5), resume=True)


def test_an_optimizer_with_a_state_of_its_own_kind_does_not_spoil_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "odd": object()}

    case = Case(optimizer=lambda parameters: Odd(parameters, lr=0.1))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert case.run(tmp_path / "run", pl.Stop(updates=3)).history[-1].updates == 3
    assert "the run cannot be resumed: Odd cannot be kept in a checkpoint" in caplog.text
    with pytest.raises(pl.ConfigError, match="besides torch's own state it has 'odd'"):
        case.run(tmp_path / "asked", pl.Stop(updates=3), checkpoint=pl.Every(updates=1))


@pytest.mark.parametrize("settings", [{"checkpoint": pl.Every(updates=2)}, {"resume": True}])
def test_checkpoints_need_a_directory(settings: dict[str, Any]) -> None:
    with pytest.raises(pl.ConfigError, match="needs a directory"):
        Case().run(None, pl.Stop(updates=3), **settings)  # type: ignore[arg-type]


def test_curves_for_tensorboard_go_on_without_a_double_point(tmp_path: Path) -> None:
    (x, y), test = digits()
    task = pl.Task(linear(), nn.functional.cross_entropy, (x[:400], y[:400]), test)
    for updates in (7, 12):
        pl.train(
            task, strategy=pl.Synchronous(), fleet=FLEET, optimizer=sgd(), stop=pl.Stop(updates=updates), batch_size=8,
            every=pl.Every(updates=5), directory=tmp_path, tensorboard=True, resume=True,
        )  # fmt: skip
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("loss")] == [0, 5, 10, 12]
