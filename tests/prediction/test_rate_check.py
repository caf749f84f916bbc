"""A warning about the learning rate: where the run itself shows it, or far beyond the limit, and nowhere else."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

import paceline as pl
from paceline.cli.main import main
from paceline.config.file import Config, parse_config
from paceline.learning.curvature import Curvature
from paceline.prediction.rate_check import (
    FACTOR,
    LEFT,
    RISE,
    Evidence,
    Finished,
    evidence_of,
    quick_curvature,
    rate_warning,
)
from paceline.storage.metrics import Row
from paceline.theory.stability.limits import critical_step
from paceline.trace.measure import Measures, measure
from support.tiny import TINY, changed, tiny

__all__ = ["tiny"]

FOUND = Curvature(value=2.0, error=0.0, converged=True, products=3, samples=256)
LIMIT = critical_step(10, 0.9) / 2  # of the workers below


def config(momentum: float = 0.9, optimizer: str = "SGD") -> Config:
    return parse_config(TINY.replace('name = "SGD"', f'name = "{optimizer}"\nmomentum = {momentum}'))


@pytest.fixture(scope="module")
def measures() -> Measures:
    """Eleven equal workers: every gradient is ten updates old."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 11)
    return measure(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(updates=5_500)))


def history(losses: Sequence[float]) -> list[Row]:
    return [Row(10 * n, float(n), 80 * n, loss, 0.5, 10.0, loss) for n, loss in enumerate(losses)]


def finished(measures: Measures, lr: float, losses: Sequence[float] = (2.0, 1.0), ended: str = "seconds") -> Finished:
    return Finished("asgd", lr, history(losses), measures, ended)


def test_beyond_the_limit_is_not_enough(measures: Measures) -> None:
    """The loss fell: it may have become flatter."""
    assert rate_warning(finished(measures, 0.99 * FACTOR * LIMIT), config(), FOUND) is None


def test_far_beyond_the_limit_is(measures: Measures) -> None:
    warning = rate_warning(finished(measures, 0.2), config(), FOUND)
    assert warning == (
        "warning: asgd: a learning rate smaller than 0.2 would probably be better: it is 35.1 times the stable limit; "
        "at the initial weights (curvature 2 from 256 samples) and the measured staleness (mean 10.0) up to 0.0057 is "
        "stable in mean square"
    )


def test_a_loss_that_rose_and_stayed_high_is_enough(measures: Measures) -> None:
    losses = [2.0, 8.0, 5.0, 3.0, 2.0, 1.5, 1.3, 1.2]
    warning = rate_warning(finished(measures, 2 * LIMIT, losses), config(), FOUND)
    assert warning is not None
    assert "the loss rose to 4 times its first value, and ended at 0.62 times it; at the initial" in warning
    below = rate_warning(finished(measures, LIMIT / 2, losses), config(), FOUND)
    assert below is not None
    assert below.endswith("is stable, so the curvature has grown on the way")
    unknown = rate_warning(finished(measures, 2 * LIMIT, losses), config(0.9, "RMSprop"), None)
    assert unknown is not None
    assert unknown.endswith("and ended at 0.62 times it")
    assert rate_warning(finished(measures, 2 * LIMIT, [2.0, 8.0, 0.1, 0.1]), config(), FOUND) is None


@pytest.mark.parametrize(
    ("losses", "ended", "said"),
    [([2.0, 1.0], "diverged", "the run diverged"), ([2.0, math.inf, math.inf], "seconds", "the loss overflowed")],
)
def test_divergence_is_enough(measures: Measures, losses: list[float], ended: str, said: str) -> None:
    warning = rate_warning(finished(measures, 2 * LIMIT, losses, ended), config(), FOUND)
    assert warning is not None
    assert f"would probably be better: {said}; at the initial" in warning


@pytest.mark.parametrize("losses", [[math.nan, math.nan], [0.0, 5.0], []])
def test_losses_that_say_nothing(losses: list[float]) -> None:
    evidence = evidence_of(history(losses), "seconds", 1.0)
    assert math.isnan(evidence.rise)
    assert not evidence.too_large


def test_the_end_is_the_last_quarter_of_the_time() -> None:
    evidence = evidence_of(history([2.0, 8.0, 8.0, 8.0, 8.0, 8.0, 1.0, 2.0, math.nan]), "seconds", 1.0)
    assert evidence == Evidence(1.0, 4.0, 0.75)
    assert (evidence.rise > RISE, evidence.left > LEFT) == (True, True)


def test_the_quick_curvature_is_cheap_and_near() -> None:
    found = quick_curvature(config(), 0, run_seconds=1.0)
    assert found is not None
    assert (found.samples, found.products <= 20) == (256, True)
    assert quick_curvature(config(0.9, "RMSprop"), 0, run_seconds=1.0) is None


def test_train_warns(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", str(tiny), "--strategy", "asgd", "--lr", "30"]
    assert main(train) == 0
    told = capsys.readouterr().err
    assert told.startswith("warning: asgd: a learning rate smaller than 30 would probably be better: ")
    assert told.count("\n") == 1
    assert main([*train, "--no-check-step"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*train[:-1], "0.5"]) == 0  # beyond the limit of 0.39
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_compare_warns(tiny: Path, jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tiny, "lr = [0.1, 0.5]", "lr = [50.0]")
    compare = ["compare", str(tiny), "--strategy", "asgd", "--strategy", "ssgd", "--seeds", "1", "--jobs", jobs]
    assert main(compare) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert {line.split(":")[1].strip() for line in warnings} == {"asgd", "ssgd"}


def test_compare_does_not_warn_of_a_learning_rate_that_beat_a_smaller_one(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(tiny, "lr = [0.1, 0.5]", "lr = [0.0001, 50.0]")
    assert main(["compare", str(tiny), "-s", "asgd", "-s", "ssgd", "--seeds", "1", "--jobs", "1"]) == 0
    output = capsys.readouterr()
    assert " 50 " in output.out
    assert "warning" not in output.err


def test_compare_can_be_told_not_to_warn(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tiny, "lr = [0.1, 0.5]", "lr = [50.0]")
    assert main(["compare", str(tiny), "-s", "asgd", "--seeds", "1", "--jobs", "1", "--no-check-step"]) == 0
    assert "warning" not in capsys.readouterr().err
