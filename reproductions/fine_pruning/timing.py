"""What pruning saves in time: whole and pruned epochs of LeNet in turn, in one process, by the processor's clock."""

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from paceline.pruning.rules import FineRule
from paceline.pruning.schedule import Schedule
from reproductions.fine_pruning.training import Loop, Size, Training, network

BATCH = 128


@dataclass(frozen=True)
class Timing:
    """Epochs of so many samples, a share of which is pruned."""

    samples: int
    rounds: int
    fraction: float


def run_timing(timing: Timing) -> dict[str, Any]:
    """Times of a whole epoch whose losses are observed, and of a pruned one, to those of whole ones without.

    Medians over the rounds of the ratio in the same round: the machine may be faster in some rounds than in others.
    """
    size = Size(timing.samples, 10_000, BATCH)
    every_second = FineRule(Schedule(1, 2, 1, window=10_000), timing.fraction)
    torch.manual_seed(0)
    data = torch.randn(size.samples, 3, 32, 32), torch.randint(0, 10, (size.samples,))
    plain = Loop(Training("", "lenet", 0, size), network("lenet"), data)
    observed = Loop(Training("", "lenet", 0, size, every_second), network("lenet"), data)
    times, overheads = [], []
    for number in range(timing.rounds + 1):
        observed.overhead = 0.0
        # of the sampler that observes losses, epochs 1, 3, ... are whole
        row = _seconds(plain, number), _seconds(observed, 2 * number), _seconds(observed, 2 * number + 1)
        if number:  # the first round warms up
            times.append(row)
            overheads.append(observed.overhead / 2 / row[0])
    return {
        "whole": median(whole / plain_seconds for plain_seconds, whole, _ in times),
        "pruned": median(pruned / plain_seconds for plain_seconds, _, pruned in times),
        "overhead": median(overheads),
        "seconds": times,
    }


def _seconds(loop: Loop, epoch: int) -> float:
    before = loop.seconds
    loop.epoch(epoch)
    return loop.seconds - before
