"""Interleaved measurements on a noisy machine: alternatives take turns, and only ratios are reported."""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def interleaved(alternatives: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time every alternative once a round, in turn, after one round that does not count."""
    return interleaved_seconds({name: partial(seconds, action) for name, action in alternatives.items()}, rounds)


def interleaved_seconds(alternatives: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The same for alternatives that tell by themselves how many seconds count."""
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(rounds + 1):
        for name, measured in alternatives.items():
            took = measured()
            if number:
                times[name].append(took)
    return times


def ratio(times: Mapping[str, list[float]], numerator: str, denominator: str) -> float:
    """The median over the rounds of the ratio of two alternatives in the same round."""
    return median(a / b for a, b in zip(times[numerator], times[denominator], strict=True))


def save(name: str, result: Mapping[str, Any]) -> None:
    """Print a result, and write it beside the others with the command that made it if asked to (--save)."""
    write(name, result, save=parse().save)


def write(name: str, result: Mapping[str, Any], *, save: bool) -> None:
    """The same for a benchmark with options of its own."""
    text = json.dumps(
        {
            "command": " ".join(["python", *sys.argv]),
            "threads": torch.get_num_threads(),
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
            **result,
        },
        indent=2,
    )
    print(text)
    if save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(text + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()
