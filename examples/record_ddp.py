"""Find the straggler in a DDP job: four processes over gloo, one of which is slow.

    python examples/record_ddp.py [DIRECTORY]

The loop is the usual one; three lines are added to it. Afterwards the recording is read as the trace of a run: who is
slow, and what other rules would make of the same workers. ``paceline profile DIRECTORY``, ``paceline replay DIRECTORY
--strategy NAME``, ``paceline predict DIRECTORY`` and ``paceline report DIRECTORY --out page.html`` read it too.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline

WORKERS, SLOW = 4, 2


def train(rank: int, directory: str, store: str, steps: int, seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    with paceline.record(directory, worker=rank) as recorder:  # one
        recorder.watch(model)  # two
        for _ in range(steps):
            inputs = torch.rand(32, 64, generator=generator)
            targets = torch.randint(10, (32,), generator=generator)
            with recorder.step(samples=len(targets)):  # three
                time.sleep(seconds * (4 if rank == SLOW else 1))  # stands for a larger model, and a slow machine
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    del model  # before its group: as the last owner of that, torch's DDP may wait for a thread which waits for it
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?", default="runs/record_ddp", help="where to record")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.02, help="what a fast worker takes for a mini-batch")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        mp.spawn(train, args=(chosen.directory, store, chosen.steps, chosen.seconds), nprocs=WORKERS)

    trace = paceline.read_trace(chosen.directory)
    delays = [paceline.delays.Empirical.from_trace(trace, worker) for worker in range(WORKERS)]
    for worker, delay in enumerate(delays):
        print(f"worker {worker}: {delay.median * 1e3:.1f} ms a mini-batch")
    print(f"the straggler is worker {max(range(WORKERS), key=lambda worker: delays[worker].median)}")
    fleet = paceline.SimulatedFleet(delays)
    fast = [worker for worker in range(WORKERS) if worker != SLOW]
    for strategy in (
        paceline.Synchronous(),
        paceline.LiveCompensation(quorum=3, blocks=4),
        paceline.Grouped([fast, [SLOW]]),
    ):
        predicted = paceline.predict(strategy, fleet)
        print(f"{type(strategy).__name__}: {predicted.runtime.updates_per_second.value:.1f} updates a second")


if __name__ == "__main__":
    main()
