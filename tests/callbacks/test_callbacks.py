"""Callbacks: what they are told on every fleet, how they end a run, and what happens when they raise."""

import json
import traceback
from dataclasses import FrozenInstanceError, replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.callbacks import Update, WorkerEvent
from paceline.storage.metrics import read_rows
from support.digits import digits_task, rows, weights
from support.told import SIMULATED, Told, sgd, told_and_replayed, train


def test_a_callback_is_told_all_in_order(tmp_path: Path) -> None:
    told = Told()
    run = train(told, directory=tmp_path / "run", checkpoint=pl.Every(updates=4))
    pair = ["on_update", "on_update", "on_evaluate"]
    assert told.hooks == [
        "on_start", "on_evaluate", "on_worker", "on_worker", *pair, *pair, "on_checkpoint", *pair, "on_checkpoint",
        "on_end",
    ]  # fmt: skip
    assert told.of("on_evaluate") == list(run.history)
    assert told.of("on_end") == [run]
    assert told.of("on_checkpoint") == [tmp_path / "run" / "checkpoint.safetensors"] * 2
    assert told.of("on_worker") == [WorkerEvent("joined", 0, 0.0), WorkerEvent("joined", 1, 0.0)]
    assert told.closed == 1


def test_an_update_says_what_it_used() -> None:
    told = Told()
    train(told)
    updates: list[Update] = told.of("on_update")
    assert [(each.updates, each.seconds, each.samples) for each in updates] == [
        (i, 1.5 * i, 16 * i) for i in range(1, 7)
    ]
    assert {each.workers for each in updates} == {(0, 1)}
    assert {each.staleness for each in updates} == {0.0}
    assert all(sum(each.weights.values()) == 1 for each in updates)
    stale = Told()
    train(stale, strategy=pl.Asynchronous())
    assert {each.workers for each in stale.of("on_update")} == {(0,), (1,)}
    assert {each.staleness for each in stale.of("on_update")} == {0.0, 1.0, 2.0}


def test_the_beginning_says_what_the_run_is(tmp_path: Path) -> None:
    told = Told()
    train(told, directory=tmp_path / "run", seed=4)
    (info,) = told.of("on_start")
    assert (info.strategy, info.fleet, info.stop) == (pl.Synchronous(), SIMULATED, pl.Stop(updates=6))
    assert (info.directory, info.resumed, info.updates, info.history) == (tmp_path / "run", False, 0, ())
    assert {*info.ledger.workers} == {0, 1}
    expected = {
        "strategy": "Synchronous()", "workers": 2, "optimizer": "SGD", "learning_rate": 0.1, "optimizer.momentum": 0.5,
        "batch_size": 8, "seed": 4, "scheduler": None, "training_samples": 1500,
    }  # fmt: skip
    assert expected.items() <= info.config.items()
    assert info.config["fleet"].startswith("SimulatedFleet(")
    assert all(value is None or isinstance(value, int | float | str) for value in info.config.values())


def test_values_cannot_be_changed() -> None:
    told = Told()
    train(told, stop=pl.Stop(updates=1))
    for hook, name in (("on_start", "config"), ("on_update", "updates"), ("on_worker", "worker"), ("on_end", "ended")):
        with pytest.raises(FrozenInstanceError):
            setattr(told.of(hook)[0], name, None)
    with pytest.raises(TypeError):
        told.of("on_update")[0].weights[0] = 1
    with pytest.raises(TypeError):
        told.of("on_start")[0].config["seed"] = 1


# Workers


def test_workers_come_go_and_are_late() -> None:
    fleet = pl.SimulatedFleet(
        [pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(3.5)],
        changes=[pl.Left(4.25, 1), pl.Joined(6.25, 1)],
    )

    def late(strategy: pl.strategy.Strategy) -> list[tuple[str, int, float]]:
        told = Told()
        train(told, fleet=fleet, strategy=strategy, stop=pl.Stop(seconds=8.0))
        return [(each.kind, each.worker, each.seconds) for each in told.of("on_worker")]

    came = [("joined", worker, 0.0) for worker in range(3)]
    changes = [("left", 1, 4.25), ("joined", 1, 6.25)]
    assert late(pl.Synchronous()) == [*came, *changes]
    assert late(pl.Asynchronous()) == [*came, *changes]
    assert late(pl.Grouped([[0, 1], [2]])) == [*came, *changes]
    stopped = late(pl.FastestK(2))
    assert [each for each in stopped if each[0] != "late"] == [*came, *changes]
    assert [each for each in stopped if each[0] == "late"][:4] == [("late", 2, float(i)) for i in range(1, 5)]
    thrown_away = late(pl.FastestK(2, stop_late=False))
    assert [each for each in thrown_away if each[0] == "late"][:1] == [("late", 2, 3.5)]
    recalled = late(pl.LiveCompensation(2, blocks=4))
    assert [each for each in recalled if each[0] == "late"][:2] == [("late", 2, 1.0), ("late", 2, 2.0)]
    used_later = late(pl.LiveCompensation(2, blocks=4, recall=False))
    assert [each for each in used_later if each[0] == "late"][:1] == [("late", 2, 3.5)]


# The same on every fleet: on a Ray cluster in tests/fleets/ray/test_ray_rules.py


def test_simulated_workers_and_a_replay_tell_the_same(tmp_path: Path) -> None:
    first, again = Told(), Told()
    strategy = pl.LiveCompensation(1, blocks=4)
    train(first, strategy=strategy, directory=tmp_path / "run")
    found = pl.replay(
        tmp_path / "run",
        digits_task(),
        strategy=strategy,
        fleet=SIMULATED,
        optimizer=sgd,
        batch_size=8,
        callbacks=[again],
    )
    assert found.same
    assert again.of("on_update") == first.of("on_update")
    assert again.of("on_worker") == first.of("on_worker")
    assert again.of("on_evaluate")[-1][:5] == first.of("on_evaluate")[-1][:5]
    assert {event.kind for event in again.of("on_worker")} == {"joined", "late"}


def test_a_replay_that_a_callback_ends_compares_nothing(tmp_path: Path) -> None:
    train(directory=tmp_path / "run")
    found = pl.replay(
        tmp_path / "run", digits_task(), strategy=pl.Synchronous(), fleet=SIMULATED, optimizer=sgd, batch_size=8,
        callbacks=[Told(on_update=[None, "seen enough"])],
    )  # fmt: skip
    assert (found.run.ended, found.compared, found.differences, found.departure) == ("seen enough", False, {}, None)


def test_real_workers_tell_what_simulated_ones_do(tmp_path: Path) -> None:
    told_and_replayed(pl.ProcessFleet(2), tmp_path)


def test_real_workers_need_not_finish_when_a_callback_ends_the_run(tmp_path: Path) -> None:
    told = Told(on_worker=["nobody else"])
    run = train(told, fleet=pl.ProcessFleet(2), directory=tmp_path / "run", stop=pl.Stop(updates=10**6))
    assert run.ended == "nobody else"
    assert run.history[-1].updates < 10


# Ending a run


@pytest.mark.parametrize(
    ("hook", "calls", "updates"),
    [("on_start", 1, 0), ("on_evaluate", 1, 0), ("on_update", 3, 3), ("on_evaluate", 3, 4), ("on_checkpoint", 1, 3),
     ("on_worker", 1, 1)],
)  # fmt: skip
def test_a_text_ends_the_run_for_that_reason(hook: str, calls: int, updates: int, tmp_path: Path) -> None:
    told, other = Told(**{hook: [None] * (calls - 1) + ["seen\n enough"]}), Told()
    run = train(told, other, directory=tmp_path / "run", checkpoint=pl.Every(updates=3))
    assert (run.ended, run.problem, run.history[-1].updates) == ("seen enough", None, updates)
    assert other.hooks == told.hooks
    assert told.hooks[-1] == "on_end"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended"] == "seen enough"
    straight = train(directory=tmp_path / "straight")
    resumed = train(directory=tmp_path / "run", resume=True)
    assert torch.equal(weights(resumed.model), weights(straight.model))


def test_a_text_may_be_any_word() -> None:
    for word in ("seconds", "diverged", "interrupted", "evaluation failed"):
        run = train(Told(on_update=[None, word]))
        assert (run.ended, run.history[-1].updates, run.history[-1].seconds) == (word, 2, 3.0)
        assert not isnan(run.history[-1].loss)


def test_the_first_text_counts_and_one_at_the_end_changes_nothing() -> None:
    assert train(Told(on_update=["one"]), Told(on_update=["two"])).ended == "one"
    assert train(Told(on_end=["too late"], on_evaluate=[None, None, None, "too late"])).ended == "too late"
    assert train(Told(on_end=["too late"])).ended == "updates"


def test_a_callback_ends_a_run_at_its_first_update_again_when_it_is_resumed(tmp_path: Path) -> None:
    train(Told(on_update=[None, "stop"]), directory=tmp_path / "run")
    told = Told()
    train(told, directory=tmp_path / "run", resume=True)
    (info,) = told.of("on_start")
    assert (info.resumed, info.updates, [row.updates for row in info.history]) == (True, 2, [0, 2])
    assert [row.updates for row in told.of("on_evaluate")] == [4, 6]


# Raising


@pytest.mark.parametrize("hook", ["on_update", "on_evaluate", "on_checkpoint", "on_worker", "on_end"])
def test_one_that_raises_ends_the_run_with_all_on_disk(hook: str, tmp_path: Path) -> None:
    error = ValueError("my\nmistake")
    broken, other = Told(**{hook: [error]}), Told()
    with pytest.raises(ValueError, match="mistake") as raised:
        train(broken, other, directory=tmp_path / "run", checkpoint=pl.Every(updates=3))
    assert raised.value is error
    text = "".join(traceback.format_exception(error))
    assert f"in {hook}" in text  # where it was raised
    (note,) = error.__notes__
    assert note.startswith(f"Told.{hook} raised ValueError: my mistake: the run ended after ")
    assert "has its weights" in note
    assert other.hooks[-1] == "on_end"
    assert other.closed == broken.closed == 1
    (ended,) = other.of("on_end")
    assert ended.ended == ("updates" if hook == "on_end" else "callback failed")
    assert repr(read_rows(tmp_path / "run" / "metrics.jsonl")) == repr(list(ended.history))
    straight = train(directory=tmp_path / "straight")
    resumed = train(directory=tmp_path / "run", resume=True)
    assert torch.equal(weights(resumed.model), weights(straight.model))
    if hook != "on_worker":
        assert rows(resumed)[-1] == rows(straight)[-1]


def test_one_that_raises_is_not_called_again_but_the_others_are(tmp_path: Path) -> None:
    broken, other = Told(on_update=[None, OSError("no disk")], on_end=[KeyError("never")]), Told()
    with pytest.raises(OSError, match="no disk"):
        train(broken, other)
    assert broken.hooks[-1] == "on_update"
    assert other.hooks[-3:] == ["on_update", "on_evaluate", "on_end"]


def test_all_errors_are_told() -> None:
    one, other = RuntimeError("one"), KeyError("other")
    with pytest.raises(RuntimeError) as raised:
        train(Told(on_update=[one]), Told(on_end=[other]))
    assert "then Told.on_end raised KeyError" in raised.value.__notes__[0]


def test_one_that_raises_at_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    broken, other = Told(on_start=[ValueError("no")]), Told()
    with pytest.raises(ValueError, match="no"):
        train(other, broken, directory=tmp_path / "run")
    assert other.hooks == ["on_start"]
    assert other.closed == 1


def test_an_evaluation_that_raises_closes_the_callbacks() -> None:
    told = Told()
    with pytest.raises(ZeroDivisionError):
        pl.train(
            replace(digits_task(), evaluate=lambda model: {"loss": 1 / 0}), strategy="ssgd", fleet=SIMULATED,
            optimizer=sgd,
            stop=pl.Stop(updates=3), callbacks=[told],
        )  # fmt: skip
    assert (told.hooks, told.closed) == (["on_start"], 1)


# Bad input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([3], r"callbacks\[0\]=3 is no callback: derive int from paceline.Callback"),
        ([Told(), print], r"callbacks\[1\]=<built-in function print> is no callback"),
        ([pl.Progress], r"callbacks\[0\] is the class Progress: give Progress\(\.\.\.\)"),
        (Told(), r"callbacks=.* is no list of callbacks: give a list of them"),
        ("EarlyStopping", r"callbacks='EarlyStopping' is no list of callbacks"),
        (None, r"callbacks=None is no list of callbacks"),
        ([one := Told(), one], r"callbacks\[1\] is the same Told as one before it: give it once"),
    ],
)
def test_what_is_no_callback_is_refused(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match=f"^{said}") as error:
        pl.train(
            digits_task(), strategy="ssgd", fleet=SIMULATED, optimizer=sgd, stop=pl.Stop(updates=3), callbacks=given,
            directory=tmp_path / "run",
        )  # fmt: skip
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("returned", [3, "", " ", False, {}])
def test_a_callback_returns_nothing_or_a_text(returned: Any) -> None:
    with pytest.raises(pl.ConfigError, match=r"^Told.on_update returned .*: return None, or a text to end the run"):
        train(Told(on_update=[returned]))


class Waiting(pl.Callback):
    needs = ("perplexity",)


def test_a_callback_that_needs_a_metric_which_nobody_reports_is_refused(tmp_path: Path) -> None:
    said = r"^Waiting waits for 'perplexity', which the evaluation does not return: choose from loss, accuracy$"
    with pytest.raises(pl.ConfigError, match=said):
        train(Waiting(), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
