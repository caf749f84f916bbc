"""What an exchange of EC-DNN takes on real worker processes, beside what the simulator charges for it.

    python benchmarks/relabelling.py [--save] [--rounds N]

step        seconds of a step of local training on a worker process (``ProcessFleet``), and of one that distils
relabelling seconds of an exchange, as the paper describes it: every worker passes 70 % of its samples through the
            models of all workers. Each does so in a process of its own
charged     what the simulator charges for that, with the measured step: a third of a step for each mini-batch
on demand   what Paceline does on ``ProcessFleet``: the server labels the samples of the next steps, for all workers one
            after the other; the two exchanges of a round together

LeNet on pictures of the size of CIFAR-10, 12,000 a worker, mini-batches of 32, an exchange every 64 steps; 2 workers
and 4, in turn, so often (``--rounds``), and medians. Workers have a core each, as they would on machines of their own:
where there are fewer cores than workers, only so many of them label or train at the same time. The server's labels are
those for all workers.
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
from paceline.comparison.pool import usable_cores
from paceline.config.named_tasks import lenet
from paceline.data.samples import TensorSamples
from paceline.learning.models import compression
from paceline.learning.models.compression import FORWARD_SHARE
from paceline.learning.models.ensemble import Weighing, relabel
from paceline.trace.history import Observer, TicketTimes
from paceline.trace.reading import read_trace

CREWS, OWN, BATCH, EVERY, SHARE = (2, 4), 12_000, 32, 64, 0.7
EXCHANGES = 1  # of a crew in its turn, after one that does not count
KINDS = ("distilled_steps", "local_steps")


class Tickets(Observer):
    """The seconds of each piece of work of the last worker, which begins when all labels are made."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.found: list[tuple[str, int, float]] = []

    def arrived(self, times: TicketTimes) -> None:
        work = times.ticket.work
        if times.ticket.worker == self.workers - 1:
            self.found.append((work.kind, work.units, times.ended - times.started))


class ChannelsLast(nn.Module):
    """As in the reproductions: convolutions of few channels are faster so."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.contiguous(memory_format=torch.channels_last)


def network() -> nn.Module:
    return nn.Sequential(ChannelsLast(), lenet())


def trained(workers: int, x: torch.Tensor, y: torch.Tensor) -> tuple[Tickets, list[float]]:
    """A run on worker processes, and the seconds that the server labelled at each exchange, for all workers."""
    labelled: list[float] = []

    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        found = relabel(*arguments)
        labelled.append(time.perf_counter() - begun)
        return found

    compression.relabel = timed  # type: ignore[assignment]
    seen = Tickets(workers)
    with tempfile.TemporaryDirectory() as directory:
        pl.train(
            pl.Task(network(), cross_entropy, train=(x, y)),
            strategy=pl.EnsembleCompression(every=EVERY, steps=EVERY * (EXCHANGES + 1), relabel=SHARE),
            fleet=pl.ProcessFleet(workers),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
            batch_size=BATCH,
            every=pl.Every(updates=10**9),
            directory=Path(directory) / "run",
            progress=False,
        )
        read_trace(Path(directory) / "run").follow(seen)
    compression.relabel = relabel
    calls = labelled[1:]  # the first is of one sample, before anything begins
    return seen, [sum(calls[begin : begin + workers]) for begin in range(0, len(calls), workers)]


def by_workers(workers: int, at_once: int, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """The seconds of exchanges in which so many workers at once label their own samples, until the last one has."""
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(at_once), context.SimpleQueue()
    args = (workers, TensorSamples(x, y), barrier, answers)
    crew = [context.Process(target=_label, args=(number, *args)) for number in range(at_once)]
    for process in crew:
        process.start()
    found = [answers.get() for _ in crew]
    for process in crew:
        process.join()
    return [max(times) for times in zip(*found, strict=True)]


def _label(
    number: int, workers: int, samples: TensorSamples, barrier: Barrier, answers: "SimpleQueue[list[float]]"
) -> None:
    torch.set_num_threads(1)
    models = [network() for _ in range(workers)]
    chosen = np.sort(np.random.default_rng(number).choice(OWN, round(SHARE * OWN), replace=False)) + number * OWN
    times = []
    for _ in range(EXCHANGES + 1):
        barrier.wait()
        begun = time.perf_counter()
        relabel(models, samples, [chosen], Weighing())
        times.append(time.perf_counter() - begun)
    answers.put(times[1:])


def turn(workers: int, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Seconds of a crew: its exchanges, training on as many workers as there are cores, and the server's labels."""
    at_once = min(workers, usable_cores())
    exchange = median(by_workers(workers, at_once, x, y))
    seen, exchanges = trained(at_once, x, y)
    later = zip(seen.found[1:], exchanges, strict=True)  # of the first piece, there is nothing to label
    pure = [(kind, (each - labels) / units) for (kind, units, each), labels in later]
    distilled, local = (median(each for kind, each in pure if kind == wanted) for wanted in KINDS)
    if at_once < workers:
        _, exchanges = trained(workers, x, y)
    on_demand = median(sum(pair) for pair in zip(exchanges[::2], exchanges[1::2], strict=True))
    charged = FORWARD_SHARE * workers * SHARE * OWN / BATCH * local
    return {"local": local, "distils": distilled, "exchange": exchange, "on demand": on_demand, "charged": charged}


def told(turns: list[dict[str, float]]) -> dict[str, Any]:
    """The medians of the turns; ratios are those within a turn, with the smallest and the largest."""
    middle = {name: median(each[name] for each in turns) for name in turns[0]}
    compressed = round(EVERY / 10)
    ratios = {
        "measured / charged": [each["exchange"] / each["charged"] for each in turns],
        "relabelling by the workers / training": [2 * each["exchange"] / (EVERY * each["local"]) for each in turns],
        "on demand / training": [each["on demand"] / (EVERY * each["local"]) for each in turns],
    }
    return {
        "ms a step": {name: round(1e3 * middle[name], 2) for name in ("local", "distils")},
        "seconds of a round": {
            "local training": round(middle["local"] * (EVERY - compressed), 2),
            "compression": round(middle["distils"] * compressed, 2),
            "relabelling by the workers, both exchanges": round(2 * middle["exchange"], 2),
            "the same, charged by the simulator": round(2 * middle["charged"], 2),
            "relabelling on demand by the server, for all workers": round(middle["on demand"], 2),
        },
        "ratios: median, smallest, largest": {
            name: [round(each, 2) for each in (median(found), min(found), max(found))] for name, found in ratios.items()
        },
    }


def main() -> None:
    samples = max(CREWS) * OWN
    x, y = torch.randn(samples, 3, 32, 32), torch.arange(samples) % 10
    turns: dict[int, list[dict[str, float]]] = {workers: [] for workers in CREWS}
    for _ in range(parse().rounds):
        for workers, found in turns.items():
            found.append(turn(workers, x[: workers * OWN], y[: workers * OWN]))
        save("relabelling", {  # after each round: one takes minutes where the cores are shared
            "case": f"LeNet, {OWN} pictures a worker, mini-batches of {BATCH}, every {EVERY} steps",
            "cores": usable_cores(),
            "rounds": len(turns[CREWS[0]]),
            "by workers": {str(workers): told(found) for workers, found in turns.items()},
        })  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
