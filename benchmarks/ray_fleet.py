"""The Ray fleet against Ray's own parameter-server pattern, on two Ray nodes of this machine: ratios in one run.

    python benchmarks/ray_fleet.py [--save] [--rounds N] [--scaling]

pattern   weights by ``ray.put`` once an update, gradients as numpy arrays, ``ray.wait``: as in Ray's documentation, the
          driver being the server
local     ``RayFleet`` on the server's own node: workers share its memory
remote    ``RayFleet`` on two other nodes, each with an agent. All nodes are on this machine, so a network would come on
          top, for the pattern as well

speed     how many times as many updates a second as the pattern, two workers; and how many times as many rounds a
          second the pattern makes in which nothing is computed, only carried
over computing alone: four workers that share memory, synchronous, against four that only compute, in time
--scaling milliseconds of the driver's processor for each update of a trivial model, from 2 to 32 workers
"""

import argparse
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import ray
import torch
from against_ddp import CASES, Case, Team, pure
from measuring import interleaved_seconds, ratio, write
from ray.cluster_utils import Cluster
from timed_training import asynchronous, synchronous
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.fleets.base import Fleet
from paceline.learning.workload import workload_of

STEPS = {"logistic regression": 100, "LeNet": 40, "MLP of 10 M": 8}
BARS = {
    "synchronous": {"logistic regression": 1.0, "LeNet": 1.2, "MLP of 10 M": 1.2},
    "asynchronous": {"logistic regression": 1.2, "LeNet": 1.2, "MLP of 10 M": 1.2},
}
WORKERS = 2
NODE_OF = 4
HERE = {"here": 1.0}  # the resources of a worker on the driver's own node
ROWS = [f"{how}, {place}" for how in BARS for place in ("local", "remote")]
CARRYING, CEILING = "carrying", "synchronous, pattern that only carries"


class PatternWorker:
    """As anybody would write it."""

    def __init__(self, case: Case, worker: int) -> None:
        torch.set_num_threads(1)
        self.case, self.model = case, case.make()
        self.inputs, self.targets = case.data()
        self.random = np.random.default_rng(worker)

    def gradient(self, weights: list[Any]) -> list[Any]:
        rows = torch.from_numpy(self.random.integers(0, self.case.samples, self.case.batch))
        with torch.no_grad():
            for parameter, values in zip(self.model.parameters(), weights, strict=True):
                parameter.copy_(torch.from_numpy(values))
        self.model.zero_grad()
        cross_entropy(self.model(self.inputs[rows]), self.targets[rows]).backward()
        return [parameter.grad.numpy() for parameter in self.model.parameters() if parameter.grad is not None]

    def carry(self, weights: list[Any]) -> list[Any]:
        """What is sent, without anything computed."""
        return weights


class Pattern:
    """Ray's parameter server: the driver steps along what the workers return."""

    def __init__(self, case: Case) -> None:
        remote = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(PatternWorker)
        self.workers = [remote.remote(case, worker) for worker in range(WORKERS)]
        self.model = case.make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=case.lr)
        ray.get([worker.gradient.remote(self._put()) for worker in self.workers])

    def _put(self) -> Any:
        return ray.put([parameter.detach().numpy() for parameter in self.model.parameters()])

    def _step(self, gradients: list[Any]) -> None:
        for parameter, *each in zip(self.model.parameters(), *gradients, strict=True):
            parameter.grad = torch.from_numpy(sum(each[1:], each[0].copy()) / len(each))
        self.optimizer.step()

    def synchronous(self, updates: int) -> float:
        began = time.perf_counter()
        for _ in range(updates):
            weights = self._put()
            calls = [worker.gradient.remote(weights) for worker in self.workers]
            ray.wait(calls, num_returns=len(calls))
            self._step(ray.get(calls))
        return time.perf_counter() - began

    def carrying(self, updates: int) -> float:
        began = time.perf_counter()
        for _ in range(updates):
            weights = self._put()
            ray.get([worker.carry.remote(weights) for worker in self.workers])
        return time.perf_counter() - began

    def asynchronous(self, updates: int) -> float:
        began = time.perf_counter()
        weights = self._put()
        running = {worker.gradient.remote(weights): worker for worker in self.workers}
        for _ in range(updates):
            (done,), _ = ray.wait([*running])
            worker = running.pop(done)
            self._step([ray.get(done)])
            running[worker.gradient.remote(self._put())] = worker
        took = time.perf_counter() - began
        ray.wait([*running], num_returns=len(running))
        return took

    def close(self) -> None:
        for worker in self.workers:
            ray.kill(worker)


@contextmanager
def cluster(cpus: int) -> Iterator[str]:
    """Two nodes, and a head that only the driver is on, and those who ask for ``HERE``."""
    head = {"num_cpus": 0, "object_store_memory": 2**30, "include_dashboard": False, "resources": {"here": 64.0}}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=cpus, object_store_memory=2**30)
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def speeds(address: str, rounds: int) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        fleets = {
            "local": stack.enter_context(pl.RayFleet(WORKERS, HERE, address=address).persistent()),
            "remote": stack.enter_context(pl.RayFleet(WORKERS, address=address).persistent()),
        }
        for name, case in CASES.items():
            with closing(Pattern(case)) as pattern:
                times = interleaved_seconds(alternatives(case, STEPS[name], pattern, fleets), rounds)
            for row in ROWS:
                found = table.setdefault(row, {})
                how, _, place = row.partition(", ")
                found[name] = round(ratio(times, f"{how}, pattern", f"{how}, {place}"), 2)
            table.setdefault(CEILING, {})[name] = round(ratio(times, "synchronous, pattern", CARRYING), 2)
            print(name, {key: f"{median(each) / STEPS[name] * 1e3:.2f} ms" for key, each in times.items()}, flush=True)
    return table


def alternatives(case: Case, steps: int, pattern: Pattern, fleets: dict[str, Any]) -> dict[str, Callable[[], float]]:
    made: dict[str, Callable[[], float]] = {
        "synchronous, pattern": lambda: pattern.synchronous(steps),
        "asynchronous, pattern": lambda: pattern.asynchronous(steps),
        CARRYING: lambda: pattern.carrying(steps),
    }
    for place, fleet in fleets.items():
        made[f"synchronous, {place}"] = lambda fleet=fleet: synchronous(case, fleet, steps)  # type: ignore[misc]
        made[f"asynchronous, {place}"] = lambda fleet=fleet: asynchronous(case, fleet, steps)  # type: ignore[misc]
    return made


def over_pure(address: str, rounds: int) -> dict[str, float]:
    """The time of four workers that share the server's memory, over that of four that only compute."""
    found: dict[str, float] = {}
    with pl.RayFleet(NODE_OF, HERE, address=address).persistent() as fleet:
        for name, case in CASES.items():
            team = Team(pure, case, NODE_OF)
            try:
                measured = {"pure": team.turn, "ours": lambda case=case: synchronous(case, fleet, case.steps)}  # type: ignore[misc]
                found[name] = round(ratio(interleaved_seconds(measured, rounds), "ours", "pure"), 2)
            finally:
                team.close()
    return found


def milliseconds_to_notice(address: str, local: bool) -> float:
    """From kill -9 of a worker that has nothing to do to the event."""
    fleet = pl.RayFleet(WORKERS, HERE if local else {"CPU": 1.0}, address=address)
    group, _ = fleet.launch(workload_of(trivial(), [], 8), seed=0)
    noticed = []
    with closing(group):
        group.wait()
        for worker in range(WORKERS):
            began = time.perf_counter()
            os.kill(group.pids[worker], signal.SIGKILL)
            group.wait()
            noticed.append(time.perf_counter() - began)
    return round(median(noticed) * 1e3, 1)


def trivial() -> pl.Task:
    return pl.Task(
        torch.nn.Linear(4, 1), torch.nn.functional.mse_loss, (torch.rand(512, 4), torch.rand(512, 1)),
        evaluate=lambda model: {"loss": 0.0},
    )  # fmt: skip


def driver_milliseconds(address: str, local: bool) -> dict[str, dict[str, float]]:
    """Processor time of the driver for each update, asynchronous, by how many workers there are."""
    found: dict[str, dict[str, float]] = {}
    for workers in (2, 8, 32):
        fleet = pl.RayFleet(workers, HERE if local else {"CPU": 0.1}, address=address)
        with fleet.persistent() as persistent:
            spend(trivial(), persistent, 10 * workers)
            found.setdefault("trivial", {})[f"{workers} workers"] = spend(trivial(), persistent, 600)
            for name, case in CASES.items() if workers == WORKERS else ():
                task = pl.Task(case.make(), cross_entropy, case.data(), evaluate=lambda model: {"loss": 0.0})
                found.setdefault(name, {})[f"{workers} workers"] = spend(task, persistent, 4 * STEPS[name])
        print("local" if local else "remote", found, flush=True)
    return found


def spend(task: pl.Task, fleet: Fleet, updates: int) -> float:
    """Milliseconds an update, of all threads of this process; starting and ending a run left out."""
    spent: list[float] = []

    def look(model: torch.nn.Module) -> dict[str, float]:
        spent.append(time.process_time())
        return {"loss": 0.0}

    pl.train(
        replace(task, evaluate=look), strategy=pl.Asynchronous(), fleet=fleet, stop=pl.Stop(updates=updates),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01), progress=False, batch_size=8,
        every=pl.Every(updates=updates // 4),
    )  # fmt: skip
    return round((spent[-1] - spent[1]) / (updates * 3 / 4) * 1e3, 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scaling", action="store_true", help="only the driver's time by the number of workers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with cluster(cpus=4) as address:
        if arguments.scaling:
            result = {place: driver_milliseconds(address, place == "local") for place in ("local", "remote")}
            write("ray_fleet_scaling", {"driver milliseconds an update": result}, save=arguments.save)
            return
        result = {
            "bars": BARS,
            "speed": speeds(address, arguments.rounds),
            "synchronous, four local workers, over computing alone": over_pure(address, arguments.rounds),
            "death noticed after, ms": {
                place: milliseconds_to_notice(address, place == "local") for place in ("local", "remote")
            },
        }
        write("ray_fleet", result, save=arguments.save)


if __name__ == "__main__":
    main()
