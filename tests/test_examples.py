"""The examples run as they are, and the rule that one of them adds keeps the contract."""

import importlib.util
import json
import logging
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from paceline import read_trace
from paceline.reports.stragglers import stragglers
from support.forks import all_well, forked, ranks, run_script

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


custom_strategy = load("custom_strategy")


class TestTimedRounds(custom_strategy.TestTimedRounds):  # type: ignore[name-defined, misc]
    """Alone."""


class TestTimedRoundsInGroups(custom_strategy.TestTimedRoundsInGroups):  # type: ignore[name-defined, misc]
    """Each group with a deadline of its own."""


def run_here(script: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example prints, in this process: torch is loaded already."""
    log = logging.getLogger("paceline")
    level = log.level
    try:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    finally:
        log.setLevel(level)  # which an example may choose for itself
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_custom_strategy_makes_more_updates_than_waiting_for_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_here("custom_strategy.py", capsys)
    updates = {name: int(count) for name, count in re.findall(r"^(\w+)\(.*?\) +(\d+) updates", printed, re.M)}
    assert updates["TimedRounds"] > updates["Synchronous"] > 0
    assert printed.count("accuracy") == 2


def test_the_predicted_steps_are_where_training_turns(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_here("predict.py", capsys)
    assert len(re.findall(r"at 75% of it: loss 0\.\d+$", printed, re.M)) == 3
    assert printed.count("at 125% of it: diverges") == 3
    assert [float(rate) for rate in re.findall(r"largest learning rate ([\d.]+)", printed)] == [0.4211, 0.0113, 0.0020]


def test_the_advice_is_followed_and_is_sooner(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_here("advise.py", capsys)
    assert printed.startswith("Do this: ")
    assert float(re.findall(r"as advised: ([\d.]+) times as soon", printed)[0]) > 1.5


def test_the_theory_tells_which_learning_rate_runs_off(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_here("sdde.py", capsys)
    assert "delay 10, momentum 0.0: learning rates up to 0.0747" in printed
    assert "delay 10, momentum 0.9: learning rates up to 0.0057" in printed
    assert printed.count("exact") == 2
    assert printed.count("is not stable in mean square") == 1


def as_planned(output: str) -> bool:
    """Did a loop see exactly the samples, or make exactly the steps, that the plan says?"""
    assert float(re.search(r"test accuracy ([\d.]+)", output)[1]) > 0.85  # type: ignore[index]
    done, planned = re.search(r"(\d+) (?:of|samples \(planned) (\d+)", output).groups()  # type: ignore[union-attr]
    return bool(done == planned)


def test_fine_pruning_fits_a_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_planned(run_here("fine_pruning_loop.py", capsys))


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_fine_pruning_fits_other_loops(name: str) -> None:
    """In forks: they leave loggers, handlers of signals and state behind."""
    assert as_planned(run_example(f"fine_pruning_{name}.py"))


def test_fine_pruning_under_accelerate_puts_the_counts_of_two_processes_together() -> None:
    """Accelerate fills the last batches up with samples that were seen before; that must not trouble the counts."""
    said = ranks(2, lambda: run_script(EXAMPLES / "fine_pruning_accelerate.py"))
    all_well(said)
    output = said[0].out
    assert "2 processes" in output
    assert "the same counts: True" in output


def run_example(script: str, *arguments: str) -> str:
    said = forked(lambda: run_script(EXAMPLES / script, *arguments))
    all_well(said)
    return said[0].out


def test_processes_train_and_one_that_is_killed_is_replaced() -> None:
    (said,) = forked(lambda: run_script(EXAMPLES / "processes.py"))
    assert said.code == 0, said.err
    assert re.fullmatch(
        r"  worker \d was killed by SIGKILL while it (ran t\d+|had nothing to do); a replacement is on its way\n",
        said.err,
    )
    updates = {name: int(count) for name, count in re.findall(r"^(\S+) +(\d+) updates  mean", said.out, re.M)}
    assert updates.keys() == {"SSGD", "ASGD", "LGC-SGD", "GSGD"}
    assert updates["ASGD"] > updates["SSGD"] > 0


def test_ensemble_compression_tells_errors_and_costs_and_loads_what_was_saved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = run_here("ensemble_compression.py", capsys)
    rows = re.findall(r"^(\S+DNN\S*) +([\d.]+)% +([\d.]+)% +[\d.]+ +([\d.]+), ([\d.]+), ([\d.]+)$", printed, re.M)
    errors = {name: float(error) for name, error, *_ in rows}
    assert list(errors) == ["MA-DNN", "E-DNN", "EC-DNN-S", "EC-DNN-M"]
    assert all(error < 20 for error in errors.values())
    relabelling = {name: float(seconds) for name, _, _, _, seconds, _ in rows}
    assert relabelling["MA-DNN"] == relabelling["E-DNN"] == 0 < relabelling["EC-DNN-S"]
    assert f"loaded from its directory: error {errors['EC-DNN-S']}%" in printed


def test_a_lightning_module_trains_under_two_rules() -> None:
    """As well, and in a quarter of the time."""
    output = run_example("lightning_module.py")
    found = re.findall(r"^\w+: accuracy ([\d.]+)% after ([\d.]+) virtual seconds$", output, re.M)
    assert [float(seconds) for _, seconds in found] == [48.0, 12.0]
    assert all(float(accuracy) > 85 for accuracy, _ in found)


def test_a_hugging_face_model_trains_under_two_rules() -> None:
    output = run_example("hugging_face.py")
    found = re.findall(r"^\w+: perplexity ([\d.]+) after ([\d.]+) virtual seconds$", output, re.M)
    assert [float(seconds) for _, seconds in found] == [24.0, 6.0]
    assert all(float(perplexity) < 2 for perplexity, _ in found)


def test_a_ddp_job_is_recorded_and_its_straggler_named(tmp_path: Path) -> None:
    """Its processes are forks, too, instead of new ones."""
    directory = str(tmp_path / "job")

    def run() -> None:
        processes: Any = torch.multiprocessing
        processes.spawn = partial(processes.start_processes, start_method="fork")
        run_script(EXAMPLES / "record_ddp.py", directory, "--steps", "12", "--seconds", "0.02")

    (said,) = forked(run)
    assert said.code == 0, said.err
    assert "the straggler is worker 2\n" in said.out
    rates = {name: float(rate) for name, rate in re.findall(r"^(\w+): ([\d.]+) updates a second$", said.out, re.M)}
    assert rates.keys() == {"Synchronous", "LiveCompensation", "Grouped"}
    assert rates["Grouped"] > rates["Synchronous"] > 0
    found = stragglers(read_trace(directory))
    assert max(found.workers, key=lambda worker: worker.straggling).worker == 2
    assert all(worker.compute is not None for worker in found.workers)


def test_a_ray_cluster_loses_a_node_and_goes_on() -> None:
    """In a new process: Ray cannot be forked."""
    command = [sys.executable, str(EXAMPLES / "ray_cluster.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    output = result.stdout
    assert re.search(r"^workers that were lost: \[[012]\]$", output, re.M)
    accuracy = re.search(r"^300 updates, accuracy ([\d.]+)%, ended by updates$", output, re.M)
    assert accuracy
    assert float(accuracy.group(1)) > 80


def test_a_logger_of_ones_own_tells_who_is_late_and_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    *rows, end = (json.loads(line) for line in run_here("own_logger.py", capsys).splitlines()[:-1])
    assert rows[-1]["perplexity"] < rows[0]["perplexity"]
    assert rows[-1].keys() == {"updates", "seconds", "late", "loss", "perplexity", "top 3"}
    assert end["ended"] == "worker 3 was late 100 times"
    assert max(end["late"], key=end["late"].get) == "3"


def test_the_language_model_comes_to_a_perplexity_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Every letter is as good as chosen among two, instead of 29."""
    printed = run_here("language_model.py", capsys)
    found = re.search(r"perplexity ([0-9.]+) at first, ([0-9.]+) in the end", printed)
    assert found is not None
    assert float(found[1]) > 20
    assert float(found[2]) <= 2.0
    assert "perplexity below 2" in printed


def test_the_large_model_learns_on_two_workers_of_any_size() -> None:
    small = "--width", "32", "--layers", "1", "--updates", "60", "--ranks", "2"
    found = re.search(r"loss ([\d.]+) -> ([\d.]+) in 60 updates", run_example("large_model.py", *small))
    assert found is not None
    assert float(found[2]) < float(found[1])


GALLERY = sorted((EXAMPLES / "gallery").glob("[0-9]*.py"))


def test_the_gallery_has_ten_cases_with_a_picture_each() -> None:
    pictures = EXAMPLES.parent / "docs/images/gallery"
    assert len(GALLERY) == 10
    assert {file.stem for file in GALLERY} == {picture.stem for picture in pictures.glob("*.png")}


@pytest.mark.parametrize("case", GALLERY, ids=lambda case: case.stem)
def test_a_case_of_the_gallery_draws_its_picture(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [case.name, str(tmp_path / "picture.png")])
    monkeypatch.syspath_prepend(case.parent)  # as for a script, which finds what is beside it
    assert run_here(f"gallery/{case.name}", capsys)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
