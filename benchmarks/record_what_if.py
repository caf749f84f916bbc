"""From a recorded DDP job to other rules: what the recording foretells, and what the same rules do on real processes.

    python benchmarks/record_what_if.py [--save] [--rounds N]      (a round is a seed)

Four processes train with DistributedDataParallel over gloo; each sleeps until a mini-batch has taken a drawn time, one
of them four times as long as the others. ``paceline.record`` watches. What each worker took is all that the simulator
is given (``paceline replay DIR --strategy``); it foretells updates a second. Then worker processes with delays of the
same distributions run the same rules. Reported is by how much the prediction is off, with its sign.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measuring import parse, save
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.prediction.what_if import Survey, what_if
from paceline.randomness import stream
from paceline.reports.stragglers import stragglers

MEDIANS, SIGMA, SLOW = (0.12, 0.12, 0.12, 0.48), 0.2, 3  # seconds a mini-batch
BATCH = 32
STEPS = 60  # of the recorded job
SECONDS = 15.0  # of each real run
STRATEGIES: dict[str, pl.strategy.Strategy] = {
    "SSGD": pl.Synchronous(),
    "LGC-SGD": pl.LiveCompensation(3, blocks=4),
    "GSGD": pl.Grouped([[0, 1, 2], [3]]),
    "unequal batches": pl.UnequalBatches(pl.Synchronous(), total=4 * BATCH),
}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(4096, 784, generator=generator), torch.randint(10, (4096,), generator=generator)


def delay(worker: int) -> pl.delays.PerSample:
    return pl.delays.PerSample(0.0, pl.delays.LogNormal(MEDIANS[worker] / BATCH, SIGMA))


def ddp(rank: int, folder: str, seed: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(MEDIANS))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = data()
    durations = delay(rank).durations(stream(1000 + seed, "delay", rank))
    with pl.record(f"{folder}/job", worker=rank) as recorder:
        recorder.watch(model)
        for number in range(STEPS + 1):
            rows = slice(number * BATCH % 4096, number * BATCH % 4096 + BATCH)
            with recorder.step(samples=BATCH):
                until = time.perf_counter() + next(durations) * BATCH
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs[rows]), targets[rows])
                time.sleep(max(0.0, until - time.perf_counter()))
                loss.backward()
                optimizer.step()
    del model  # before its group, as in examples/record_ddp.py
    dist.destroy_process_group()


def real(strategy: pl.strategy.Strategy, seed: int) -> float:
    """Updates a second of a rule on worker processes."""
    torch.manual_seed(0)
    task = pl.Task(nn.Linear(784, 10), cross_entropy, data(), evaluate=lambda model: {"loss": 0.0})
    fleet = pl.ProcessFleet(len(MEDIANS), slow={worker: delay(worker) for worker in range(len(MEDIANS))}, threads=1)
    run = pl.train(
        task, strategy=strategy, fleet=fleet, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        stop=pl.Stop(seconds=SECONDS), every=pl.Every(updates=10**9), seed=seed, progress=False,
    )  # fmt: skip
    found = Survey(run.trace).measures
    return found.updates / found.seconds


def main() -> None:
    torch.set_num_threads(1)
    off: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    named = []
    for seed in range(min(parse().rounds, 5)):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(ddp, args=(folder, seed), nprocs=len(MEDIANS))
            trace = pl.read_trace(Path(folder) / "job")
            named.append(max(stragglers(trace).workers, key=lambda worker: worker.straggling).worker)
            survey = Survey(trace)
        foretold = what_if(survey, STRATEGIES, batch_size=BATCH)
        for each, (name, strategy) in zip(foretold, STRATEGIES.items(), strict=True):
            off[name].append(each.measures.updates / each.measures.seconds / real(strategy, seed) - 1)
        print(seed, {name: f"{values[-1]:+.1%}" for name, values in off.items()}, flush=True)
    table = {
        name: {"median": round(median(values), 3), "largest": round(max(values, key=abs), 3)}
        for name, values in off.items()
    }
    save(
        "record_what_if",
        {
            "seconds a mini-batch": MEDIANS,
            "recorded steps": STEPS,
            "slow worker": SLOW,
            "worker that the table names": named,
            "predicted over real updates a second, less one": table,
        },
    )


if __name__ == "__main__":
    main()
