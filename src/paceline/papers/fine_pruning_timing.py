"""What pruning saves in time: whole and pruned epochs of LeNet in turn, in one process, by the processor's clock."""

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from paceline.papers.fine_pruning_training import Loop, Size, Training
from paceline.papers.models import lenet
from paceline.pruning.rules import FineRule

BATCH = 128


@dataclass(frozen=True)
class Timing:
    """Epochs of so many samples, a share of which is pruned."""

    samples: int
    rounds: int
    fraction: float


def run_timing(timing: Timing) -> dict[str, Any]:
    """Ratios of a whole epoch that is watched, and of a pruned one, to a whole one that is not; medians of rounds."""
    size = Size(timing.samples, 10_000, BATCH)
    every_second = FineRule(window=10_000, start=1, block=2, count=1, fraction=timing.fraction)
    torch.manual_seed(0)
    data = torch.randn(size.samples, 3, 32, 32), torch.randint(0, 10, (size.samples,))
    plain = Loop(Training("", "lenet", 0, size), _network(), data)
    watched = Loop(Training("", "lenet", 0, size, every_second), _network(), data)
    rows = []
    for number in range(timing.rounds + 1):
        times = [
            _seconds(plain, number),
            _seconds(watched, 2 * number),  # whole: the first epoch is number 1
            _seconds(watched, 2 * number + 1),
        ]
        overhead = watched.overhead
        watched.overhead = 0.0
        if number:  # the first round warms up
            rows.append((times[1] / times[0], times[2] / times[0], overhead / 2 / times[0]))
    whole, pruned, overhead = (median(column) for column in zip(*rows, strict=True))
    return {"whole": whole, "pruned": pruned, "overhead": overhead, "rounds": rows}


def _seconds(loop: Loop, epoch: int) -> float:
    before = loop.seconds
    loop.epoch(epoch)
    return loop.seconds - before


def _network() -> torch.nn.Module:
    return lenet().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
