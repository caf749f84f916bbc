"""Four worker processes, one of them four times as slow: who waits, and when each rule reaches the same accuracy.

    PACELINE_DATA=DIR python benchmarks/who_waits.py --tune --save        learning rates, in the simulator
    PACELINE_DATA=DIR python benchmarks/who_waits.py --rounds 3 --save    seconds, on processes (a round is a seed)
    python tools/pictures.py readme                                       the picture of the README

LeNet on MNIST with plain SGD and 32 samples a worker. The simulator chooses a learning rate for each rule, the same way
for all: the one that reaches the accuracy first, in the median over two seeds, on workers that take 1, 1, 1 and 4
seconds. DDP is the same rule as ``Synchronous``, and has its learning rate. Then all rules take turns on real
processes. A mini-batch of 32 samples takes a worker 30 ms, and the slow one 120 ms: it computes its gradient, and waits
for the rest of that, as for an accelerator of its own, so that workers do not compete for the cores of this machine.
Weights are copied on the way, and their accuracy on 2,000 test images is computed after the run, so that nothing is
evaluated while the clock runs. DDP's timeline is what ``paceline.record`` noted.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from against_ddp import Case, Team, lenet
from measuring import RESULTS, write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.data.images import Labelled, read_mnist
from paceline.delays import Constant, PerSample
from paceline.trace.measure import measure
from paceline.trace.timeline import Span, Updated, timeline

WORKERS, SLOW, TIMES, BATCH = 4, 3, 4.0, 32
EACH = 0.030 / BATCH  # seconds a sample of a fast worker
TARGET, TESTED = 0.95, 2000  # accuracy, on so many of the test images
RATES = (0.1, 0.2, 0.4, 0.8)  # and half of the least, as long as that is the best
ROUNDS = 400  # of 128 samples each, at most, to choose a learning rate
SHOWN = 1.0  # seconds of a timeline that are kept
RULES: dict[str, tuple[pl.strategy.Strategy, int]] = {  # and how many updates have as many samples as one of DDP
    "Synchronous": (pl.Synchronous(), 1),
    "LiveCompensation": (pl.LiveCompensation(3, blocks=4), 1),
    "UnequalBatches": (pl.UnequalBatches(pl.Synchronous(), total=WORKERS * BATCH, window=5), 1),
    "Grouped": (pl.Grouped([[0, 1, 2], [3]]), 2),
    "Asynchronous": (pl.Asynchronous(), 4),
}
# Virtual seconds in which a rule uses as many samples as one round of DDP, to know how long a real run has to be.
ROUND_SECONDS = {
    "Synchronous": 4.0,
    "LiveCompensation": 1.0,
    "UnequalBatches": 1.25,
    "Grouped": 1.25,
    "Asynchronous": 1.25,
}
Reached = tuple[float, dict[str, Any]]  # seconds, and what else is told of a run


def model() -> nn.Module:
    """LeNet for one channel of 28 by 28."""
    layers = list(lenet().children())
    layers[0], layers[7] = nn.Conv2d(1, 6, 5), nn.Linear(256, 120)
    return nn.Sequential(*layers)


@cache
def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def tensors(part: Labelled) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(part.images).float().div(255).sub(0.1307).div(0.3081)
        return pixels.reshape(-1, 1, 28, 28), torch.from_numpy(part.labels)

    read = read_mnist(os.environ.get("PACELINE_DATA"))
    (images, labels) = tensors(read.test)
    return tensors(read.train), (images[:TESTED], labels[:TESTED])


def delays(each: float) -> list[PerSample]:
    """Of every worker, from the seconds that a fast one takes for a sample."""
    return [PerSample(0.0, Constant(each * (TIMES if worker == SLOW else 1.0))) for worker in range(WORKERS)]


def tune(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Virtual seconds to the accuracy, of each rule with each learning rate: medians of two seeds.

    What was found before is kept.
    """
    for name, (strategy, updates) in RULES.items():
        by_rate = found.setdefault(name, {})
        wanted = list(RATES)
        while wanted:
            for rate in (each for each in wanted if str(each) not in by_rate):
                reached = [
                    virtual(strategy, updates, rate, seed, pl.SimulatedFleet(delays(1 / BATCH))) for seed in (100, 101)
                ]
                by_rate[str(rate)] = round(median(reached), 1)
            least = min(by_rate, key=float)
            wanted = [float(least) / 2] if least == best(by_rate) else []
        print(name, by_rate, flush=True)
    return found


def best(by_rate: dict[str, float]) -> str:
    return min(by_rate, key=lambda rate: by_rate[rate])


def virtual(strategy: pl.strategy.Strategy, updates: int, rate: float, seed: int, fleet: pl.SimulatedFleet) -> float:
    torch.manual_seed(seed)
    train, test = data()
    run = pl.train(
        pl.Task(model(), cross_entropy, train, test), strategy=strategy, fleet=fleet, seed=seed, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate), batch_size=BATCH,
        stop=pl.Stop(updates=ROUNDS * updates, target=TARGET), every=pl.Every(updates=10 * updates),
    )  # fmt: skip
    reached = run.seconds_to(TARGET)
    return float("inf") if reached is None else reached


class Snapshots:
    """Copies of the weights with their times; which is the first that is accurate enough is found afterwards."""

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._taken: list[dict[str, Tensor]] = []

    def take(self, trained: nn.Module) -> dict[str, float]:
        self._taken.append({name: value.detach().clone() for name, value in trained.state_dict().items()})
        return {"loss": 0.0}

    def first(self, times: list[float]) -> float:
        """When the accuracy was first reached."""
        inputs, labels = data()[1]
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            for at, weights in zip(times, self._taken, strict=True):
                self._net.load_state_dict(weights)
                with torch.no_grad():
                    right = (self._net(inputs).argmax(dim=1) == labels).float().mean()
                if right >= TARGET:
                    return at
            return float("inf")
        finally:
            torch.set_num_threads(1)


def ours(name: str, rate: float, rounds: int, seed: int) -> Reached:
    strategy, updates = RULES[name]
    torch.manual_seed(seed)
    net = model()
    snapshots = Snapshots(model())
    run = pl.train(
        pl.Task(net, cross_entropy, data()[0], evaluate=snapshots.take), strategy=strategy, seed=seed, progress=False,
        fleet=pl.ProcessFleet(WORKERS, slow=dict(enumerate(delays(EACH))), threads=1), batch_size=BATCH,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        stop=pl.Stop(updates=rounds * updates), every=pl.Every(updates=5 * updates),
    )  # fmt: skip
    return snapshots.first([row.seconds for row in run.history]), shown(run.trace)


def shown(trace: Any) -> dict[str, Any]:
    """A second of a timeline, from the first update after two seconds on, and measures of the whole run."""
    measures = measure(trace)
    marks = list(timeline(trace))
    begin = next(mark.at for mark in marks if isinstance(mark, Updated) and mark.at >= 2.0)
    spans = [mark for mark in marks if isinstance(mark, Span) and mark.end > begin and mark.start < begin + SHOWN]
    updates = [mark.at for mark in marks if isinstance(mark, Updated) and begin <= mark.at <= begin + SHOWN]
    return {
        "updates a second": round(measures.updates / measures.seconds, 1),
        "idle": round(measures.idle_share, 3),
        "staleness": round(measures.mean_staleness, 2),
        "updates": [round(at - begin, 4) for at in updates],
        "spans": [
            [span.worker, round(max(span.start - begin, 0.0), 4), round(min(span.end - begin, SHOWN), 4), span.kind]
            for span in spans
        ],
    }


def slowed_ddp(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """The usual loop; a rank waits when the last of its own gradients was computed, before the all-reduce."""
    inputs, targets = data()[0]
    shard = torch.arange(rank, len(targets), workers)
    began_step = [0.0]  # seen by the hook

    def sleep(gradient: Tensor) -> None:
        takes = BATCH * EACH * (TIMES if rank == SLOW else 1.0)
        time.sleep(max(0.0, began_step[0] + takes - time.perf_counter()))

    orders.send("ready")
    while (asked := orders.recv()) != "stop":
        seed, rate, rounds, directory = asked
        torch.manual_seed(seed)
        net = model()
        snapshots = Snapshots(model())
        distributed = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(distributed.parameters(), lr=rate)
        next(net.parameters()).register_hook(sleep)  # its gradient is the last to be computed
        times: list[float] = []
        torch.distributed.barrier()
        began = time.perf_counter()
        with pl.record(directory, worker=rank) as recorder:
            recorder.watch(distributed)
            order = shard[torch.randperm(len(shard))]
            for number in range(rounds):
                rows = order[number * BATCH % (len(order) - BATCH) :][:BATCH]
                with recorder.step(samples=BATCH):
                    began_step[0] = time.perf_counter()
                    optimizer.zero_grad()
                    cross_entropy(distributed(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
                if rank == 0 and (number + 1) % 5 == 0:
                    times.append(time.perf_counter() - began)
                    snapshots.take(net)
        torch.distributed.barrier()
        orders.send(snapshots.first(times) if rank == 0 else None)


def ddp(team: Team, rate: float, rounds: int, seed: int) -> Reached:
    with tempfile.TemporaryDirectory() as folder:
        reached = team.ask((seed, rate, rounds, f"{folder}/job"))[0]
        return reached, shown(pl.read_trace(f"{folder}/job"))


def compare(tuned: dict[str, dict[str, float]], seeds: int) -> dict[str, Any]:
    rates = {name: float(best(by_rate)) for name, by_rate in tuned.items()}
    rates["DDP"] = rates["Synchronous"]
    rounds = {name: int(1.35 * min(by_rate.values()) / ROUND_SECONDS[name]) for name, by_rate in tuned.items()}
    rounds["DDP"] = rounds["Synchronous"]
    team = Team(slowed_ddp, Case(model, (1, 28, 28), steps=1), WORKERS)
    runs: dict[str, Callable[[int], Reached]] = {
        "DDP": lambda seed: ddp(team, rates["DDP"], rounds["DDP"], seed),
        **{name: lambda seed, name=name: ours(name, rates[name], rounds[name], seed) for name in RULES},  # type: ignore[misc]
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    kept: dict[str, dict[str, Any]] = {}
    for seed in range(seeds):
        for name, run in runs.items():
            reached, kept[name] = run(seed)
            seconds[name].append(round(reached, 3))
            print(seed, name, round(reached, 3), flush=True)
        print(seed, {name: values[-1] for name, values in seconds.items()}, flush=True)
    team.close()
    pairs = {name: zip(seconds["DDP"], values, strict=True) for name, values in seconds.items()}
    return {
        "target": TARGET,
        "learning rates": rates,
        "seconds": seconds,
        "times as fast as DDP": {name: round(median(a / b for a, b in both), 2) for name, both in pairs.items()},
        "timelines": kept,
    }


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true", help="choose learning rates in the simulator")
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    if "PACELINE_DATA" not in os.environ:
        print(
            "not measured: PACELINE_DATA names no directory with MNIST (python -m reproductions fetch mnist --to DIR)"
        )
        return
    file = RESULTS / "who_waits_tuned.json"
    tuned = json.loads(file.read_text())["virtual seconds"] if file.exists() else {}
    if chosen.tune:
        write("who_waits_tuned", {"virtual seconds": tune(tuned)}, save=chosen.save)
    else:
        write("who_waits", compare(tuned, chosen.rounds), save=chosen.save)


if __name__ == "__main__":
    main()
