"""What an exchange of EC-DNN takes on real worker processes, beside what the simulator charges for it.

    python benchmarks/relabelling.py [--save] [--rounds N]

step        seconds of a step of local training on a worker process (``ProcessFleet``), and of one that distils
relabelling seconds of an exchange, as the paper describes it: every worker passes 70 % of its samples through the
            models of all workers. Each does so in a process of its own, all at the same time
charged     what the simulator charges for that, with the measured step: a third of a step for each mini-batch
on demand   what Paceline does on ``ProcessFleet``: the server labels the samples of the next steps, for all workers one
            after the other; the two exchanges of a round together

LeNet on pictures of the size of CIFAR-10, 12,000 a worker, mini-batches of 32, an exchange every 64 steps.
"""

import multiprocessing
import tempfile
import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measuring import parse, save
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.config.named_tasks import lenet
from paceline.data.samples import TensorSamples
from paceline.learning.models import compression
from paceline.learning.models.compression import FORWARD_SHARE
from paceline.learning.models.ensemble import Weighing, relabel
from paceline.trace.history import Observer, TicketTimes
from paceline.trace.reading import read_trace

WORKERS, OWN, BATCH, EVERY, SHARE = 2, 12_000, 32, 64, 0.7
KINDS = ("distilled_steps", "local_steps")


class Tickets(Observer):
    """The seconds of each piece of work of the last worker, which begins when all labels are made."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, float]] = []

    def arrived(self, times: TicketTimes) -> None:
        work = times.ticket.work
        if times.ticket.worker == WORKERS - 1:
            self.found.append((work.kind, work.units, times.ended - times.started))


class ChannelsLast(nn.Module):
    """As in the reproductions: convolutions of few channels are faster so."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.contiguous(memory_format=torch.channels_last)


def network() -> nn.Module:
    return nn.Sequential(ChannelsLast(), lenet())


def trained(rounds: int, x: torch.Tensor, y: torch.Tensor) -> tuple[Tickets, list[float]]:
    """A run on worker processes, and the seconds that the server labelled at each exchange, for all workers."""
    labelled: list[float] = []

    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        found = relabel(*arguments)
        labelled.append(time.perf_counter() - begun)
        return found

    compression.relabel = timed  # type: ignore[assignment]
    seen = Tickets()
    with tempfile.TemporaryDirectory() as directory:
        pl.train(
            pl.Task(network(), cross_entropy, train=(x, y)),
            strategy=pl.EnsembleCompression(every=EVERY, steps=EVERY * (rounds + 1), relabel=SHARE),
            fleet=pl.ProcessFleet(WORKERS),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
            batch_size=BATCH,
            every=pl.Every(updates=10**9),
            directory=Path(directory) / "run",
            progress=False,
        )
        read_trace(Path(directory) / "run").follow(seen)
    compression.relabel = relabel
    calls = labelled[1:]  # the first is of one sample, before anything begins
    return seen, [sum(calls[begin : begin + WORKERS]) for begin in range(0, len(calls), WORKERS)]


def by_workers(rounds: int, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The seconds of exchanges in which every worker labels its own samples, until the last one has."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(WORKERS), context.SimpleQueue()
    args = (rounds, TensorSamples(x, y), barrier, answers)
    crew = [context.Process(target=_label, args=(number, *args)) for number in range(WORKERS)]
    for process in crew:
        process.start()
    found = [answers.get() for _ in crew]
    for process in crew:
        process.join()
    return [max(times) for times in zip(*found, strict=True)]


def _label(
    number: int, rounds: int, samples: TensorSamples, barrier: Barrier, answers: "SimpleQueue[list[float]]"
) -> None:
    torch.set_num_threads(1)
    models = [network() for _ in range(WORKERS)]
    chosen = np.sort(np.random.default_rng(number).choice(OWN, round(SHARE * OWN), replace=False)) + number * OWN
    times = []
    for _ in range(rounds + 1):
        barrier.wait()
        begun = time.perf_counter()
        relabel(models, samples, [chosen], Weighing())
        times.append(time.perf_counter() - begun)
    answers.put(times[1:])


def main() -> None:
    rounds = parse().rounds
    samples = WORKERS * OWN
    x, y = torch.randn(samples, 3, 32, 32), torch.arange(samples) % 10
    relabelled = by_workers(rounds, x, y)
    seen, exchanges = trained(rounds, x, y)
    (_, steps, seconds), *later = seen.found  # of the first piece, there is nothing to label
    step = seconds / steps
    pure = [(kind, (each - labels) / units) for (kind, units, each), labels in zip(later, exchanges, strict=True)]
    distilled, local = (median(each for kind, each in pure if kind == wanted) for wanted in KINDS)
    on_demand = median(sum(pair) for pair in zip(exchanges[::2], exchanges[1::2], strict=True))
    exchange, charged = median(relabelled), FORWARD_SHARE * WORKERS * SHARE * OWN / BATCH * step
    compressed = round(EVERY / 10)
    save("relabelling", {
        "case": f"LeNet, {WORKERS} worker processes, {OWN} pictures each, mini-batches of {BATCH}, every {EVERY} steps",
        "ms a step": {
            name: round(1e3 * each, 2) for name, each in (("first", step), ("local", local), ("distils", distilled))
        },
        "seconds of a round": {
            "local training": round(local * (EVERY - compressed), 2),
            "compression": round(distilled * compressed, 2),
            "relabelling by the workers, both exchanges": round(2 * exchange, 2),
            "the same, charged by the simulator": round(2 * charged, 2),
            "relabelling on demand by the server, for all workers": round(on_demand, 2),
        },
        "measured / charged": round(exchange / charged, 2),
        "relabelling by the workers / training": round(2 * exchange / (EVERY * step), 2),
        "on demand / training": round(on_demand / (EVERY * step), 2),
    })  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
