"""What fine-pruning costs: time and memory of its bookkeeping, as it grows, and what it saves of an epoch of LeNet.

    python benchmarks/fine_pruning.py [--save] [--rounds N]

bookkeeping   milliseconds of the processor that an epoch of 50,000 samples in batches of 128 takes beyond the training
              itself: all calls of observe, and choosing the samples; what any sampler does, the shuffle, is told apart
LeNet         the same as a share of an epoch of LeNet, measured inside training, where caches are cold; and the time of
              watched epochs, pruned and whole, to that of whole ones that are not watched, in turn
growth        choosing and shuffling a pruned epoch, microseconds a sample; the memory of a process that does it, and
              that observed an epoch before, peak bytes a sample
"""

from collections.abc import Callable
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
from measuring import parse, save

from paceline import FinePruning
from reproductions.fine_pruning.timing import Timing, run_timing

SAMPLES, BATCH, FRACTION = 50_000, 128, 0.3
GROWTH = (1_000_000, 3_000_000, 10_000_000)  # smaller ones drown in what a process takes anyway

PUBLISHED = {
    "the paper": "4.27 s of 1220 s (0.35 %), LeNet on CIFAR-10, 200 epochs: 21 ms an epoch",
    "InfoBatch (arXiv 2303.04947)": "not verified: neither its abstract nor its repository states an overhead",
}


def cpu_milliseconds(action: Callable[[], object]) -> float:
    begun = process_time()
    action()
    return 1000 * (process_time() - begun)


def sampler(samples: int) -> FinePruning:
    """Every second epoch is pruned."""
    return FinePruning(samples=samples, window=10_000, start=1, block=2, count=1, fraction=FRACTION)


def bookkeeping(rounds: int) -> dict[str, Any]:
    pruned, losses = sampler(SAMPLES), torch.rand(SAMPLES, requires_grad=True) * 1.0
    whole_observe, pruned_observe, choose, shuffle = [], [], [], []
    for number in range(2 * rounds + 2):
        chosen = cpu_milliseconds(lambda epoch=number: pruned.set_epoch(epoch))
        shuffled = cpu_milliseconds(lambda: torch.randperm(SAMPLES))
        batches = torch.tensor(list(pruned)).split(BATCH)
        pairs = [(batch, losses[batch]) for batch in batches]
        observed = cpu_milliseconds(lambda pairs=pairs: [pruned.observe(*pair) for pair in pairs])
        if number >= 2:
            (pruned_observe if number % 2 else whole_observe).append(observed)
            shuffle.append(shuffled)
            if number % 2:
                choose.append(chosen)
    total = [o + c - s for o, c, s in zip(pruned_observe, choose, shuffle[1::2], strict=True)]
    return {
        "whole epoch, observe: best, median": [min(whole_observe), median(whole_observe)],
        "pruned epoch, observe: best, median": [min(pruned_observe), median(pruned_observe)],
        "pruned epoch, choose and shuffle: best, median": [min(choose), median(choose)],
        "shuffle alone, as any sampler: best, median": [min(shuffle), median(shuffle)],
        "pruned epoch in all, shuffle taken off: best, median": [min(total), median(total)],
    }


def lenet(rounds: int) -> dict[str, Any]:
    timed = run_timing(Timing(2_560, 2 * rounds, FRACTION))
    return {
        "overhead, percent of an epoch": 100 * timed["overhead"],
        "pruned epoch / whole one unwatched": timed["pruned"],
        "whole epoch watched / unwatched": timed["whole"],
        "time saved, percent, every second epoch pruned": 50 * (2 - timed["pruned"] - timed["whole"]),
        "samples saved, percent": 50 * FRACTION,
    }


def grown(samples: int) -> dict[str, Any]:
    """A whole epoch observed, and a pruned one chosen and shuffled, in a process of its own; Linux only."""
    torch.set_num_threads(1)
    sampler(1000).set_epoch(1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is used now
    before = _memory("VmRSS")
    pruned, losses = sampler(samples), torch.rand(1000)
    for begin in range(0, samples, 1000):
        pruned.observe(torch.arange(begin, begin + 1000), losses)
    took = cpu_milliseconds(lambda: pruned.set_epoch(1))
    for _ in islice(pruned, 1000):
        pass
    peak = _memory("VmHWM") - before
    return {"microseconds a sample": 1000 * took / samples, "peak bytes a sample": peak / samples}


def _memory(name: str) -> int:
    """Bytes of this process, all libraries' included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def growth() -> dict[str, Any]:
    rows = {}
    for samples in GROWTH:
        with get_context("spawn").Pool(1) as pool:
            rows[f"{samples:,}"] = pool.apply(grown, (samples,))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    rounds = parse().rounds
    result = {
        "bars": "at most 5 ms an epoch, 0.3 % of LeNet's; under 10 bytes a sample, linear; time saved within 2 points",
        "published": PUBLISHED,
        "bookkeeping, ms": bookkeeping(rounds),
        "LeNet": lenet(rounds),
        "growth": growth(),
    }
    save("fine_pruning", result)


if __name__ == "__main__":
    main()
