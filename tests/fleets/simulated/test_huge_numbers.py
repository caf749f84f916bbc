"""Numbers that are finite, and larger than a run can count with: one line when they are given; nothing is written."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline as pl
from paceline.delays import (
    Constant,
    Empirical,
    Hourly,
    LogNormal,
    Pareto,
    PerSample,
    ShiftedExponential,
    SlowSpells,
)
from support.tiny import changed, refused, tiny

__all__ = ["tiny"]
ONE = Constant(1.0)
any_pl: Any = pl
HUGE: list[tuple[Callable[[Any], object], str]] = [
    (Constant, "Constant cannot have value"),
    (lambda huge: LogNormal(huge, 1.0), "LogNormal cannot have median"),
    (lambda huge: ShiftedExponential(huge, 1.0), "shift"),
    (lambda huge: ShiftedExponential(1.0, huge), "ShiftedExponential cannot have mean"),
    (lambda huge: Pareto(huge, 1.0), "Pareto cannot have minimum"),
    (lambda huge: PerSample(huge, ONE), "PerSample cannot have fixed"),
    (lambda huge: Empirical([1.0, huge]), "Empirical cannot have"),
    (lambda huge: SlowSpells(huge, 1.0, 1.0), "SlowSpells cannot have factor"),
    (lambda huge: SlowSpells(2.0, huge, 1.0), "SlowSpells cannot have lasts"),
    (lambda huge: SlowSpells(2.0, 1.0, huge), "SlowSpells cannot have every"),
    (lambda huge: Hourly([1.0, huge]), "Hourly cannot have factors"),
    (lambda huge: Hourly([1.0], huge), "Hourly cannot have hour"),
    (pl.Network, "Network cannot have latency"),
    (lambda huge: pl.Machines(latency=huge), "Machines cannot have latency"),
    (lambda huge: pl.Machines(sum_seconds=huge), "Machines cannot have sum_seconds"),
    (lambda huge: pl.Machines(step_seconds=huge), "Machines cannot have step_seconds"),
    (lambda huge: pl.Availability(huge, 1.0), "Availability cannot have mean_up"),
    (lambda huge: pl.Availability(1.0, huge), "Availability cannot have mean_down"),
    (lambda huge: pl.Availability(1.0, 1.0, huge), "Availability cannot have notice"),
    (lambda huge: pl.SimulatedFleet(ONE, 2, server_seconds=huge), "SimulatedFleet cannot have server_seconds"),
    (lambda huge: pl.SimulatedFleet(ONE, 2, prices=huge), "prices: "),
    (lambda huge: pl.SimulatedFleet(ONE, 2, changes=[pl.Left(huge, 1)]), "has no possible time"),
    (lambda huge: pl.Every(seconds=huge), "Every cannot have seconds"),
    (lambda huge: pl.QuorumGrace(2, huge), "QuorumGrace cannot have grace"),
    (lambda huge: pl.Anytime(huge, 4), "Anytime cannot have seconds"),
]


@pytest.mark.parametrize("huge", [1e308, 2e12, 10**30, 10**400], ids=["1e308", "2e12", "10**30", "10**400"])
@pytest.mark.parametrize(("make", "said"), HUGE, ids=[said for _, said in HUGE])
def test_a_time_is_in_what_a_run_can_count_to(make: Callable[[Any], object], said: str, huge: Any) -> None:
    with pytest.raises(pl.ConfigError) as error:
        make(huge)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ShiftedExponential(1.0, 1.0, 10**30), "cannot have h=1000000000000000000000000000000"),
        (lambda: Empirical([1.0], block=10**9), "cannot have block=1000000000: larger than a run can count with"),
        (lambda: LogNormal(1.0, 1e308), "sigma=1e+308: larger than a run can count with (nearest sigma=10)"),
        (lambda: Pareto(1.0, 0.01), "would be over 2**100 times the minimum; shape is at least 0.025"),
        (lambda: pl.Machines(10**7), "=10000000: larger than a run can count with (nearest workers_each=1000000)"),
        (lambda: pl.Machines(message_bytes=10**20), "Machines cannot have message_bytes=100000000000000000000"),
        (lambda: pl.Machines(gigabits=1e-300), "gigabits=1e-300 is not possible"),
        (lambda: pl.Network(bandwidth=1e-308), "a bandwidth of 1e-308 is not possible"),
        (lambda: pl.SimulatedFleet(ONE, 2, threads=10**24), "threads=1000000000000000000000000 is not possible: 1 to"),
        (lambda: pl.SimulatedFleet(ONE, 10**5000), "at most 1,000,000"),
    ],
)  # fmt: skip
def test_so_is_a_count(make: Callable[[], object], said: str) -> None:
    with pytest.raises(pl.ConfigError) as error:
        make()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value = 3.0", "value = 1e30"),
        ("median = 1.0", "median = 1e308"),
        ("[partition]", "[fleet.network]\nlatency = 1e308\n[partition]"),
        ("[partition]", "[fleet.machines]\nworkers_each = 10000000\n[partition]"),
        ("[partition]", "[fleet]\nserver_seconds = 1e308\n[partition]"),
        ("[partition]", "[fleet]\nthreads = 1000000000000000000000000\n[partition]"),
        ("[partition]", "[every]\nseconds = 1e308\n[partition]"),
        ("[partition]", "[checkpoint]\nseconds = 1e308\n[partition]"),
        ("seconds = 12", "target = 95"),
    ],
)
def test_a_file_with_one_is_refused_before_anything_is_written(
    tiny: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = changed(tiny, old, new)
    refused(["train", file, "--strategy", "ssgd", "--lr", "0.1", "--directory", "run"], capsys)


def test_durations_that_are_held_for_ever_take_no_memory() -> None:
    held = ShiftedExponential(1.0, 1.0, 10**9).durations(np.random.default_rng(0))
    assert len(set(islice(held, 1000))) == 1
    short = islice(ShiftedExponential(1.0, 1.0, 3).durations(np.random.default_rng(0)), 9)
    once = islice(ShiftedExponential(1.0, 1.0).durations(np.random.default_rng(0)), 3)
    assert list(short) == [each for each in once for _ in range(3)]
