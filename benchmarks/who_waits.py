"""Four worker processes, one of them four times as slow: what each does, and the time to the same test accuracy.

    PACELINE_DATA=DIR python benchmarks/who_waits.py tune [RULE...]    a learning rate for each rule, in the simulator
    PACELINE_DATA=DIR python benchmarks/who_waits.py run [SEED...]     DDP and the rules on real processes, in turns
    python tools/pictures.py readme                                    draws what came of it

Convolutions on MNIST (DIR/mnist), plain SGD, 32 samples a worker. A fast worker takes 18 ms for a mini-batch (2 ms, and
half a millisecond for each sample), the slow one 72 ms; both wait for most of that, as for an accelerator of their own,
so that four of them have room on two cores. The slow rank of DDP waits when the last of its own gradients is computed,
before the all-reduce.

Every rule has its own learning rate, found in the same way: of ``RATES`` the one with which ``paceline.compare``
reaches the target soonest on the same workers in virtual time, in the median over ``TUNING`` seeds, which are not those
of the real runs. DDP makes the updates of ``Synchronous``, and takes its learning rate. The target was 96 % at first;
while rates were tuned, before any real run, it became 95 %: ``Synchronous`` hardly came to 96 % in the time there was.

A run keeps a copy of the weights every ``EVERY`` seconds. When it is over, the copies are tested on the 10,000 test
pictures: the time to the target is that of the first copy that reaches it. So nobody waits for an evaluation. A run on
processes lasts twice as long as it took in the simulator. What is done is kept in results/who_waits.json, with a part
of each timeline of seed 0; what is asked for again is run anew.
"""

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from against_ddp import Case, Team
from measuring import RESULTS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.data.images import Labelled, read_mnist
from paceline.delays import Constant, PerSample
from paceline.files import write_atomically
from paceline.trace.timeline import Span, Updated, timeline

WORKERS, SLOW, TIMES, BATCH = 4, 3, 4.0, 32
FIXED, EACH = 0.002, 0.0005  # seconds of a mini-batch, and of a sample, of a fast worker
TARGET, EVERY = 0.95, 0.1
RATES = [round(0.05 * 2 ** (step / 2), 3) for step in range(8)]  # 0.05 to 0.566
TUNING, LONGEST = (100, 101, 102), 15.0  # seeds, and virtual seconds
SKIPPED, SHOWN = 0.4, 0.6  # of a run, before the part of its timeline that is kept; seconds of that
FILE = RESULTS / "who_waits.json"
RULES = {
    "Synchronous": "ssgd",
    "FastestK": "k-sgd:quorum=3",
    "LiveCompensation": "lgc:quorum=3,blocks=4",
    "UnequalBatches": "unequal:total=128,window=5",
    "Grouped": "gsgd:groups=0-2/3",
    "Asynchronous": "asgd",
}
Copy = tuple[float, dict[str, Tensor]]  # seconds, and the weights then


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


@cache
def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test pictures with their labels; all processes read them for themselves."""

    def tensors(part: Labelled) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(part.images).float().unsqueeze(1) / 255
        return (pixels - 0.1307) / 0.3081, torch.from_numpy(part.labels)

    found = read_mnist(Path(os.environ["PACELINE_DATA"]) / "mnist")
    return tensors(found.train), tensors(found.test)


def delay(worker: int) -> PerSample:
    times = TIMES if worker == SLOW else 1.0
    return PerSample(times * FIXED, Constant(times * EACH))


def task(seed: int, evaluate: Any = None) -> pl.Task:
    torch.manual_seed(seed)
    train, test = data()
    if evaluate is not None:
        return pl.Task(convolutions(), cross_entropy, train, evaluate=evaluate)
    return pl.Task(convolutions(), cross_entropy, train, test)


def tune(found: dict[str, Any], names: Sequence[str]) -> None:
    """The best rate of each rule, and the median of its seconds in virtual time."""
    for name in names:
        compared = pl.compare(
            task, strategies=[RULES[name]], fleet=pl.SimulatedFleet([delay(worker) for worker in range(WORKERS)]),
            optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr), learning_rates=RATES,
            seeds=list(TUNING), target=TARGET, stop=pl.Stop(seconds=LONGEST, target=TARGET), batch_size=BATCH,
            every=pl.Every(seconds=2.5 * EVERY), jobs=1, progress=False,
        )  # fmt: skip
        (best,) = compared.entries
        tuned = {"learning rate": best.lr, "virtual seconds": best.time}
        found.setdefault("tuned", {})[name] = tuned
        print(name, tuned, flush=True)
        keep_results(found)


def shown(trace: Any) -> dict[str, Any]:
    """A part of a timeline, from the first update after a share of the run on."""
    marks = list(timeline(trace))
    updates = [mark.at for mark in marks if isinstance(mark, Updated)]
    begin = updates[int(SKIPPED * len(updates))]
    spans = [mark for mark in marks if isinstance(mark, Span) and mark.end > begin and mark.start < begin + SHOWN]
    return {
        "updates": [round(at - begin, 4) for at in updates if begin <= at <= begin + SHOWN],
        "spans": [
            [span.worker, round(max(span.start - begin, 0.0), 4), round(min(span.end - begin, SHOWN), 4), span.kind]
            for span in spans
        ],
    }


def ours(name: str, seed: int, tuned: dict[str, Any]) -> tuple[list[Copy], dict[str, Any]]:
    """Copies of the weights of a run on processes, and a part of its timeline."""
    kept: list[dict[str, Tensor]] = []

    def keep(model: nn.Module) -> dict[str, float]:
        kept.append({key: value.clone() for key, value in model.state_dict().items()})
        return {"copy": float(len(kept) - 1)}

    run = pl.train(
        task(seed, keep), strategy=RULES[name], batch_size=BATCH, seed=seed, progress=False,
        fleet=pl.ProcessFleet(WORKERS, slow={worker: delay(worker) for worker in range(WORKERS)}, threads=1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=tuned["learning rate"]),
        stop=pl.Stop(seconds=2 * tuned["virtual seconds"]), every=pl.Every(seconds=EVERY),
    )  # fmt: skip
    return [(row.seconds, kept[int(row.metrics["copy"])]) for row in run.history], shown(run.trace)


def slowed_ddp(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """The usual loop. Every rank waits when the last of its own gradients was computed, before the all-reduce."""
    inputs, targets = data()[0]
    shard = torch.arange(rank, len(targets), workers)
    seconds = (FIXED + BATCH * EACH) * (TIMES if rank == SLOW else 1.0)
    ready = [0.0]  # seen by the hook

    def wait(gradient: Tensor) -> None:
        time.sleep(max(0.0, ready[0] - time.perf_counter()))

    orders.send("ready")
    while (asked := orders.recv()) != "stop":
        seed, steps, rate, directory = asked
        torch.manual_seed(seed)
        net = case.model()
        distributed = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(distributed.parameters(), lr=rate)
        next(net.parameters()).register_hook(wait)  # its gradient is the last to be computed
        kept: list[Copy] = []
        epochs = (shard[torch.randperm(len(shard))].split(BATCH)[: len(shard) // BATCH] for _ in itertools.count())
        with pl.record(directory, worker=rank) as recorder:
            recorder.watch(distributed)
            torch.distributed.barrier()
            began = time.perf_counter()
            for rows in itertools.islice(itertools.chain.from_iterable(epochs), steps):
                with recorder.step(samples=BATCH):
                    ready[0] = time.perf_counter() + seconds
                    optimizer.zero_grad()
                    cross_entropy(distributed(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
                if rank == 0 and (now := time.perf_counter() - began) >= (kept[-1][0] + EVERY if kept else 0.0):
                    kept.append((now, {key: value.clone() for key, value in net.state_dict().items()}))
        torch.distributed.barrier()
        orders.send(kept)


def ddp(team: Team, seed: int, tuned: dict[str, Any]) -> tuple[list[Copy], dict[str, Any]]:
    steps = int(2 * tuned["virtual seconds"] / (TIMES * (FIXED + BATCH * EACH)))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "job"
        copies = team.ask((seed, steps, tuned["learning rate"], str(directory)))[0]
        return copies, shown(pl.read_trace(directory))


def reached(copies: Sequence[Copy]) -> float | None:
    """When the first copy of the weights was as accurate as the target; None if none is."""
    model, (inputs, targets) = convolutions(), data()[1]
    for seconds, weights in copies:
        model.load_state_dict(weights)
        with torch.inference_mode():
            if float((model(inputs).argmax(1) == targets).float().mean()) >= TARGET:
                return round(seconds, 3)
    return None


def measure(found: dict[str, Any], seeds: Sequence[int]) -> None:
    team = Team(slowed_ddp, Case(convolutions, (1, 28, 28), steps=0), WORKERS)
    for seed, name in itertools.product(seeds, ["DDP", *RULES]):
        tuned = found["tuned"]["Synchronous" if name == "DDP" else name]
        copies, part = ddp(team, seed, tuned) if name == "DDP" else ours(name, seed, tuned)
        found.setdefault("seconds", {}).setdefault(name, {})[str(seed)] = seconds = reached(copies)
        if seed == 0:
            found.setdefault("timelines", {})[name] = part
        print(f"{name}, seed {seed}: {TARGET:.0%} after {seconds} s", flush=True)
        keep_results(found)
    team.close()


def keep_results(found: dict[str, Any]) -> None:
    """Write what there is, with the median time of DDP over that of each rule, where all reached the target."""
    seconds = {name: list(each.values()) for name, each in found.get("seconds", {}).items()}
    medians = {name: median(each) for name, each in seconds.items() if None not in each}
    gains = {name: round(medians["DDP"] / each, 2) for name, each in medians.items() if "DDP" in medians}
    first = {
        "command": "python benchmarks/who_waits.py tune; python benchmarks/who_waits.py run",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "target": TARGET,
        "times as fast as DDP": gains,
    }
    text = json.dumps(first | {key: value for key, value in found.items() if key not in first})
    write_atomically(FILE, text.encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tune", "run"])
    parser.add_argument("which", nargs="*", help="rules to tune, or seeds to run; by default all, and 0 to 2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    if asked.what == "tune":
        tune(found, asked.which or list(RULES))
    else:
        measure(found, [int(seed) for seed in asked.which or "012"])
        print(json.dumps(json.loads(FILE.read_text())["times as fast as DDP"], indent=2))


if __name__ == "__main__":
    main()
