"""Campaigns: runs of hours over several sessions and machines."""

import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
import scipy.stats
import torch

from paceline import Callback, train
from paceline.callbacks import Update
from paceline.engine.signals import Terminated
from reproductions.datasets.cifar import Cifar10
from reproductions.lgc import training as lgc_training
from reproductions.lgc.claims import Findings, accuracy_claims
from reproductions.lgc.late import late_claims
from reproductions.lgc.paper import PAPER, long_card
from reproductions.lgc.plan import FULL, Chosen, Runs, choose, tuning
from reproductions.lgc.training import Case, Size, Training, run_training
from reproductions.pipeline.campaign import RESULTS, Campaign, Entry
from reproductions.pipeline.plan import Options
from reproductions.pipeline.values import plain_values, sum_of

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
    (spent,) = (tmp_path / "scratch").glob("number-1-*.spent.json")
    spent.write_text("[100.0, 50.0]")
    (tmp_path / "stop").unlink()
    campaign(tmp_path).run(square, numbers(tmp_path), label="squares")
    assert calls(tmp_path) == [0, 1, 1, 2]
    (file,) = (tmp_path / "results").glob("number-1-*.json")
    assert json.loads(file.read_text())["made"]["seconds"] >= 100
    assert not scratch.exists()
    assert not spent.exists()


def wait_for_time(settings: Settings, scratch: Path | None = None) -> dict[str, Any]:
    """A run that is killed in the end cannot say what it took: it is there before."""
    assert scratch is not None
    spent = scratch.with_name(f"{scratch.name}.spent.json")
    ends = time.monotonic() + 60
    while not spent.exists() and time.monotonic() < ends:
        time.sleep(0.01)
    return {"spent": json.loads(spent.read_text())}


def test_what_a_run_has_taken_is_written_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reproductions.pipeline.campaign.NOTED_EVERY", 0.05)
    (result,) = campaign(tmp_path).run(wait_for_time, numbers(tmp_path, 1), label="times").values()
    seconds, cpu = result["spent"]
    assert 0.05 <= seconds < 60
    assert 0 <= cpu <= seconds + 1


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
        (lambda text: "[]", "is damaged, and is not used: it has no parts such as experiment, version"),
        (
            lambda text: text.replace('"made": {', '"made": null, "other": {'),
            "is not used: its made is null, not a table",
        ),
        (lambda text: text.replace('"cpu_seconds": ', '"cpu_seconds": null, "others": '), "how long the run took"),
        (
            lambda text: text.replace('"version": 1', '"version": "1"'),
            'is not used: its version is "1", not a whole number',
        ),
        (lambda text: text.replace('"version": 1', '"version": true'), "is not used: its version is true, not a whole"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "is of version 2 of its experiment, and this is"),
        (lambda text: text.replace(".square", ".cube"), "is of another experiment, test_campaign.cube, and is not"),
        (lambda text: text.replace('"number": 0', '"number": 1'), "a run with other settings (number), and is not"),
        (lambda text: text.replace('"square": 0', '"square": 1'), "it has another sum than it was written with"),
        (lambda text: text.replace('"torch": "', '"torch": "9'), "it has another sum than it was written with"),
        (lambda text: text.replace('{"square": 0, "odd": null}', "{}"), "it has another sum than it was written with"),
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


def test_the_result_of_another_run_is_not_used_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign(tmp_path).run(square, numbers(tmp_path, 2), label="squares")
    zero, one = sorted((tmp_path / "results").iterdir())
    copy(one, zero)
    assert campaign(tmp_path, runs=0).run(square, numbers(tmp_path, 1), label="squares") == {}
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"{zero} is of a run with other settings (number), and is not used"


def test_a_sum_of_the_result_alone_is_good_too(tmp_path: Path) -> None:
    """As files have that were written before settings were summed."""
    (settings,) = numbers(tmp_path, 1)
    campaign(tmp_path).run(square, [settings], label="squares")
    (file,) = (tmp_path / "results").iterdir()
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "sum": sum_of(content["result"])}))
    assert campaign(tmp_path, runs=0).run(square, [settings], label="squares")[settings]["square"] == 0


def test_every_committed_result_is_whole() -> None:
    """Of all campaigns; a file that was changed by hand would be told of, and its run made again."""
    files = [*RESULTS.glob("*/*.json")]
    assert len(files) > 300
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        rest = {name: value for name, value in content.items() if name != "sum"}
        assert content["sum"] in (sum_of(content["result"]), sum_of(rest)), file
        told = json.dumps([content["experiment"], content["settings"]], sort_keys=True)
        assert file.stem.endswith(f"-{hashlib.sha256(told.encode()).hexdigest()[:8]}"), file


def test_progress_and_the_time_left_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign(tmp_path, runs=1).run(square, numbers(tmp_path), label="squares")
    (file,) = (tmp_path / "results").iterdir()
    content = json.loads(file.read_text())
    content["made"] |= {"seconds": 9e9, "cpu_seconds": 3600.0}
    file.write_text(json.dumps({**content, "sum": sum_of(content["result"])}))
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
    with held(tmp_path, Entry(square, numbers(tmp_path)[number], 1.0)):
        yield


@contextmanager
def held(tmp_path: Path, entry: Entry[Any]) -> Iterator[None]:
    """As a process does that is at a run."""
    import fcntl

    (tmp_path / "scratch").mkdir(exist_ok=True)
    file = entry.file
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
def test_a_run_whose_checkpoint_is_damaged_begins_anew_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lgc_training, "CHECKPOINT", 2)
    training = Training("", "lenet", Case("k"), 0.02, 0, TINY.size)
    with monkeypatch.context() as during:
        during.setattr(lgc_training, "train", partial(train, callbacks=[KilledAt(5)]))
        with pytest.raises(RuntimeError, match="killed"):
            run_training(training, tmp_path / "killed")
    whole = plain_values(run_training(training, tmp_path / "whole"))
    capsys.readouterr()
    for number, (name, size) in enumerate(
        {"checkpoint.safetensors": 1_000, "trace.jsonl": 200, "metrics.jsonl": 10, "config.json": None}.items()
    ):
        scratch = tmp_path / str(number)
        copytree(tmp_path / "killed", scratch)
        if size is None:
            (scratch / name).unlink()
        else:
            os.truncate(scratch / name, size)
        assert plain_values(run_training(training, scratch)) == whole, name
        (line,) = [each for each in capsys.readouterr().err.splitlines() if "begins anew" in each]
        assert str(scratch) in line


class Signalled(Callback):
    """Ctrl-C, or another signal, after an update."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_update(self, update: Update) -> str | None:
        if update.updates == 3:
            signal.raise_signal(self.number)
        return None


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_how_train_is_resumed_is_not_said_where_the_command_continues(
    number: int, raised: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    training = Training("", "lenet", Case("k"), 0.02, 0, TINY.size)
    with monkeypatch.context() as during, caplog.at_level(logging.WARNING):
        during.setattr(lgc_training, "train", partial(train, callbacks=[Signalled(number)]))
        with pytest.raises(raised):
            run_training(training, tmp_path / "run")
    assert [record.getMessage() for record in caplog.records] == []
    resumed = Progressed()
    monkeypatch.setattr(lgc_training, "train", partial(train, callbacks=[resumed]))
    run_training(training, tmp_path / "run")
    assert resumed.updates == [4, 5, 6, 7, 8]


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
@pytest.mark.usefixtures("pictures")
def test_no_run_of_lgc_is_made_before_all_learning_rates_were_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While another process is at one of them, runs with the best of the others would be in vain."""
    first, second = tuning(TINY, "")
    campaign(tmp_path).run(run_training, [first], label="rates")
    with held(tmp_path, Entry(run_training, second, 1.0)):
        some = campaign(tmp_path, runs=1)
        card = long_card(TINY, "", some)
    assert some.done == []
    assert f"{second.name} is run by another process" in capsys.readouterr().err
    assert {claim.missing for claim in card.claims} == {"full length: learning rates are being chosen"}
    assert [row["learning_rate"] for row in card.runs] == [first.lr]
    assert PAPER.drawings(card) == {"lgc-full.png": None, "lgc-full.md": None}
    planned = 2 + len(Runs(TINY, "", {"lenet": Chosen(0.01, 0.005)}).all())
    assert some.progress.startswith(f"1 of {planned} runs made; about ")
    assert long_card(TINY, "", campaign(tmp_path, runs=2)).settings["learning_rates"]["lenet"]["shared"] is not None


@pytest.mark.parametrize("seed", [0, 1])
def test_lgc_names_no_run_where_a_committed_run_of_the_search_is_damaged_or_missing(tmp_path: Path, seed: int) -> None:
    copytree(RESULTS / "lgc", tmp_path / "lgc")
    (file,) = (tmp_path / "lgc").glob("lenet-full-c3-12-epochs-lr0.05-seed0-*.json")
    os.truncate(file, 100)
    card = PAPER.reproduce(Options(full=True, runs=0, results=tmp_path, seed=seed))
    assert {claim.missing for claim in card.claims} == {"full length: learning rates are being chosen"}
    assert card.settings["runs"].startswith(f"{0 if seed else 3} of 52 runs made; about ")


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
