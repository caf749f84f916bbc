"""Campaigns: runs of hours over several sessions and machines."""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch

from paceline import Callback, train
from paceline.callbacks import Update
from reproductions.datasets.cifar import Cifar10
from reproductions.lgc import training as lgc_training
from reproductions.lgc.claims import Findings, accuracy_claims
from reproductions.lgc.late import late_claims
from reproductions.lgc.plan import FULL, Chosen, Runs, choose, tuning
from reproductions.lgc.training import Case, Size, Training, run_training
from reproductions.pipeline.campaign import RESULTS, Campaign, Entry, sum_of
from reproductions.pipeline.values import plain_values

VERSION = 1


@dataclass(frozen=True)
class Settings:
    data: str
    number: int

    @property
    def name(self) -> str:
        return f"number-{self.number}"


def square(settings: Settings, scratch: Path | None = None) -> dict[str, Any]:
    place = Path(settings.data)
    with (place / "calls").open("a") as calls:
        calls.write(f"{settings.number}\n")
    if (place / "stop").exists() and settings.number == 1:
        assert scratch is not None
        scratch.mkdir(parents=True)
        raise KeyboardInterrupt
    return {"square": settings.number**2, "odd": float("nan")}


def campaign(place: Path, runs: int | None = None) -> Campaign:
    return Campaign(place / "results", place / "scratch", runs)


def calls(place: Path) -> list[int]:
    return [int(line) for line in (place / "calls").read_text().split()] if (place / "calls").exists() else []


def numbers(place: Path, count: int = 3) -> list[Settings]:
    return [Settings(str(place), number) for number in range(count)]


def test_what_is_done_is_not_done_again_wherever_the_data_are(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = campaign(tmp_path, runs=2).run(square, numbers(tmp_path), label="squares")
    assert [found["square"] for found in first.values()] == [0, 1]
    elsewhere = [replace(each, data=str(tmp_path / "other")) for each in numbers(tmp_path)]
    found = campaign(tmp_path).run(square, elsewhere, label="squares")
    assert [each["square"] for each in found.values()] == [0, 1, 4]
    assert (calls(tmp_path), calls(tmp_path / "other")) == ([0, 1], [2])
    assert campaign(tmp_path, runs=0).run(square, numbers(tmp_path), label="squares").keys() == set(numbers(tmp_path))


def test_an_interruption_costs_one_run_and_its_seconds_count(tmp_path: Path) -> None:
    (tmp_path / "stop").write_text("")
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path).run(square, numbers(tmp_path), label="squares")
    (scratch,) = [each for each in (tmp_path / "scratch").iterdir() if each.is_dir()]
    (scratch / "spent.json").write_text("[100.0, 50.0]")
    (tmp_path / "stop").unlink()
    campaign(tmp_path).run(square, numbers(tmp_path), label="squares")
    assert calls(tmp_path) == [0, 1, 1, 2]
    (file,) = (tmp_path / "results").glob("number-1-*.json")
    assert json.loads(file.read_text())["made"]["seconds"] >= 100
    assert not scratch.exists()


def test_a_result_of_another_version_is_not_used_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(tmp_path).run(square, numbers(tmp_path, 1), label="squares")
    monkeypatch.setattr("test_campaign.VERSION", 2)
    campaign(tmp_path).run(square, numbers(tmp_path, 1), label="squares")
    assert calls(tmp_path) == [0, 0]
    error = capsys.readouterr().err
    assert "is of version 1 of its experiment, and this is version 2: it is not used" in error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:30], "cannot be read, and is not used"),
        (lambda text: "[]", "is damaged, and is not used: it has no version"),
        (lambda text: text.replace('"made": {', '"made": null, "other": {'), "is damaged, and is not used: it has no"),
        (
            lambda text: text.replace('"cpu_seconds": ', '"cpu_seconds": null, "others": '),
            "is damaged, and is not used",
        ),
        (
            lambda text: text.replace('"square": 0', '"square": 1'),
            "another sum than it was written with",
        ),
        (lambda text: text.replace('{"square": 0, "odd": null}', "{}"), "its result has another sum"),
    ],
)
def test_a_damaged_result_is_not_used_and_that_is_said(
    change: Callable[[str], str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign(tmp_path).run(square, numbers(tmp_path, 1), label="squares")
    (file,) = (tmp_path / "results").iterdir()
    whole = file.read_text()
    file.write_text(change(whole))
    assert file.read_text() != whole
    assert campaign(tmp_path, runs=0).run(square, numbers(tmp_path, 1), label="squares") == {}
    assert capsys.readouterr().err.count(said) == 1
    campaign(tmp_path).run(square, numbers(tmp_path, 1), label="squares")
    assert calls(tmp_path) == [0, 0]
    assert json.loads(file.read_text())["result"] == {"square": 0, "odd": None}


def test_every_committed_result_is_whole() -> None:
    """Of all campaigns; a file that was changed by hand would be told of, and its run made again."""
    files = [*RESULTS.glob("*/*.json")]
    assert len(files) > 300
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        assert content["sum"] == sum_of(content["result"]), file


def test_progress_and_the_time_left_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign(tmp_path, runs=1).run(square, numbers(tmp_path), label="squares")
    (file,) = (tmp_path / "results").iterdir()
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "made": {**content["made"], "seconds": 9e9, "cpu_seconds": 3600.0}}))
    capsys.readouterr()
    reads = campaign(tmp_path, runs=0)
    reads.run(square, numbers(tmp_path), label="squares", cost=lambda each: 1.0 + each.number)
    assert reads.progress == "1 of 3 runs made; about 5.0 core-hours left"  # 2 + 3 at 1 hour for 1
    reads.expect([5.0])
    assert reads.progress == "1 of 4 runs made; about 10.0 core-hours left"
    campaign(tmp_path, runs=1).run(square, numbers(tmp_path), label="squares")
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "squares: run 2 of 3: number-1; 1 h 00 min of a free core, 2 h 00 min for all that is left"
    whole = campaign(tmp_path)
    whole.run(square, numbers(tmp_path), label="squares")
    assert whole.progress == "3 of 3 runs made"


@contextmanager
def locked(tmp_path: Path, number: int) -> Iterator[None]:
    """One of the numbers is run by another process."""
    import fcntl

    (tmp_path / "scratch").mkdir(exist_ok=True)
    file = Entry(square, numbers(tmp_path)[number], 1.0).file
    with (tmp_path / "scratch" / f"{Path(file).stem}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
def test_two_processes_share_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path, 0):
        found = campaign(tmp_path, runs=2).run(square, numbers(tmp_path), label="squares")
    assert [each.number for each in found] == [1, 2]
    assert "number-0 is run by another process" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
@pytest.mark.parametrize("finished", [True, False])
def test_what_another_process_runs_is_waited_for_and_made_here_if_that_ends_without_it(
    tmp_path: Path, *, finished: bool
) -> None:
    """So that runs which depend on it come next in both processes."""
    whole = campaign(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        with locked(tmp_path, 0):
            running = threads.submit(whole.run, square, numbers(tmp_path), label="squares")
            while calls(tmp_path) != [1, 2] and not running.done():
                time.sleep(0.01)
            assert not wait([running], 0.2).done
            if finished:
                elsewhere = Campaign(tmp_path / "results", tmp_path / "elsewhere")
                elsewhere.run(square, numbers(tmp_path)[:1], label="squares")
        found = running.result(60)
    assert {each.number: result["square"] for each, result in found.items()} == {0: 0, 1: 1, 2: 4}
    assert (calls(tmp_path), len(whole.done)) == ([1, 2, 0], 2 if finished else 3)
    assert whole.progress == "3 of 3 runs made"


def test_other_settings_and_functions_have_files_of_their_own(tmp_path: Path) -> None:
    one, other = numbers(tmp_path, 2)
    assert Entry(square, one, 1.0).file == Entry(square, replace(one, data="elsewhere"), 2.0).file
    assert Entry(square, one, 1.0).file != Entry(square, other, 1.0).file


# LGC at a tiny scale


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random pictures instead of CIFAR-10."""
    generator = torch.Generator().manual_seed(0)

    def made(_folder: str, *, trained: int, validated: int, tested: int) -> Any:
        def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
            labels = torch.arange(count) % 10
            return torch.randn(count, 3, 32, 32, generator=generator) + labels[:, None, None, None] / 3, labels

        generator.manual_seed(0)
        return Cifar10(some(trained), some(20), some(tested))

    monkeypatch.setattr(lgc_training, "cifar10", made)


class KilledAt(Callback):
    """A machine that goes down at an update: the last checkpoint is all that is left."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, update: Update) -> str | None:
        if update.updates == self.update:
            raise RuntimeError("killed")
        return None


class Progressed(Callback):
    def __init__(self) -> None:
        self.updates: list[int] = []

    def on_update(self, update: Update) -> str | None:
        self.updates.append(update.updates)
        return None


TINY = replace(
    FULL,
    size=Size(samples=640, epochs=4, tested=100, followed=1),
    tuned=Size(samples=640, epochs=1, tested=10),
    learning_rates=(0.02, 0.01),
)


@pytest.mark.usefixtures("pictures")
def test_an_interrupted_run_goes_on_from_its_checkpoint_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lgc_training, "CHECKPOINT", 2)
    training = Training("", "lenet", Case("lgc"), 0.02, 0, TINY.size)
    whole = plain_values(run_training(training, tmp_path / "whole"))
    assert [row[0] for row in whole["curve"]] == [0, 2, 4, 6, 8]

    with monkeypatch.context() as during:
        during.setattr(lgc_training, "train", partial(train, callbacks=[KilledAt(5)]))
        with pytest.raises(RuntimeError, match="killed"):
            run_training(training, tmp_path / "halves")
    resumed = Progressed()
    monkeypatch.setattr(lgc_training, "train", partial(train, callbacks=[resumed]))
    assert plain_values(run_training(training, tmp_path / "halves")) == whole
    assert resumed.updates == [6, 7, 8]


@pytest.mark.usefixtures("pictures")
def test_the_campaign_of_lgc_is_run_in_order_and_its_claims_are_made_of_what_there_is(tmp_path: Path) -> None:
    tuned = campaign(tmp_path).run(run_training, tuning(TINY, ""), label="rates")
    runs = Runs(TINY, "", choose(TINY, tuned))
    assert [run.case for run in runs.all()[:5]] == [
        Case("full"), Case("k"), Case("lgc"), Case("lgc", late="block"), Case("lgc", late="finish"),
    ]  # fmt: skip
    found = Findings(runs, campaign(tmp_path, runs=4).run(run_training, runs.all(), label="training"))
    claims = {claim.name: claim for claim in accuracy_claims(found)}
    assert "McNemar over 100 test samples" in claims["points_below_full.lenet.lgc.c3.h10"].test
    assert claims["points_below_full.lenet.lgc.c3.h10.finish"].verdict == "not run yet"
    assert "not run yet: lenet-lgc-c3-k7-h10-finish" in claims["points_below_full.lenet.lgc.c3.h10.finish"].note
    block = claims["time_to_full_accuracy.lenet.lgc.c3.h10.block"]
    assert (block.verdict, block.test) == ("cannot be told", "1 of the 3 seeds it takes")
    assert claims["time_to_full_accuracy.lenet.k.c3.h10.finish"].verdict == "not run yet"


def curve(*rows: tuple[float, float, float]) -> dict[str, Any]:
    """Of seconds, training losses and accuracies."""
    return {
        "test_accuracy": rows[-1][2],
        "curve": [(0, 0.0, None, 0.1), *((number + 1, *row) for number, row in enumerate(rows))],
    }


def test_time_to_accuracy_and_loss_is_paired_over_three_seeds() -> None:
    """By hand: Full-SGD's loss is 0.1 half-way between its second and third row, LGC-SGD's at its second."""
    runs = Runs(TINY, "", {"lenet": Chosen(0.01, None)})
    full = curve((10, 1.0, 0.30), (20, 0.15, 0.64), (30, 0.05, 0.645))
    made = {runs.run("lenet", Case("full"), seed): full for seed in range(3)}
    for seed, last in enumerate((12.0, 12.5, 13.0)):
        made[runs.run("lenet", Case("lgc"), seed)] = curve((5, 1.0, 0.30), (last, 0.1, 0.64), (20, 0.02, 0.64))
        made[runs.run("lenet", Case("k"), seed)] = curve((5, 1.0, 0.30), (12 + 20 * seed, 0.5, 0.64), (60, 0.2, 0.64))
    claims = {claim.name: claim for claim in late_claims(Findings(runs, made), "lenet")}
    loss, accuracy = (claims[f"time_to_{what}.lenet.lgc.c3.h10.complete"] for what in ("loss", "full_accuracy"))
    assert loss.ours == pytest.approx(100 * (1 - 12.5 / 25))
    assert accuracy.ours == pytest.approx(100 * (1 - 12.5 / 20))
    low, high = scipy.stats.t.interval(0.95, 2, 50, scipy.stats.sem([48.0, 50.0, 52.0]))
    assert f"paired over 3 seeds: 50, 95 % interval {low:.3g} to {high:.3g}" in loss.test
    assert (loss.verdict, accuracy.verdict) == ("yes", "yes")
    never, torn = (claims[f"time_to_{what}.lenet.k.c3.h10.complete"] for what in ("loss", "full_accuracy"))
    assert (never.ours, never.verdict) == ("never", "no")
    assert torn.ours == pytest.approx(100 * (1 - 32 / 20))
    assert torn.verdict == "cannot be told"
    assert claims["time_to_loss.lenet.lgc.c3.h10.block"].verdict == "not run yet"
