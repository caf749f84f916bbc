"""What the server pays for the gradients of another machine, beside the former design, and what goes between machines.

    python benchmarks/machines.py --former /path/to/python [--save] [--rounds N]

Eight workers on one other Ray node of this machine. ``--former`` is the Python of an environment with the version in
which every remote worker sent its gradients to the server; both versions are measured in turn, by this script itself.

core time   milliseconds of the server's processor, of all its threads, for each gradient: the difference between two
            points of a run, so that its start and its end do not count
bytes       of weights and gradients between machines for each synchronous update, over the size of the model
floor       what an update takes of the server's core at least, as long as each is a step of its own, in the same run:
            one call of Ray with its answer (trivial), with weights and a gradient in chunks (LeNet), or weights put
            into the object store and a step along a gradient (10 M)
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import ray
import torch
from against_ddp import CASES
from measuring import write
from ray.cluster_utils import Cluster
from torch.nn.functional import cross_entropy, mse_loss

import paceline as pl

WORKERS = 8
RULES = {"synchronous": pl.Synchronous(), "asynchronous": pl.Asynchronous()}
UPDATES = {"trivial": (60, 400), "LeNet": (24, 120), "MLP of 10 M": (6, 24)}  # synchronous, asynchronous
BAR = 0.25


def task_of(name: str) -> pl.Task:
    if name == "trivial":
        data = torch.rand(512, 4), torch.rand(512, 1)
        return pl.Task(torch.nn.Linear(4, 1), mse_loss, data, evaluate=lambda model: {"loss": 0.0})
    case = CASES[name]
    return pl.Task(case.make(), cross_entropy, case.data(), evaluate=lambda model: {"loss": 0.0})


@contextmanager
def other_node() -> Iterator[str]:
    """A head for the driver, and one node for all workers."""
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 2**30, "include_dashboard": False}
    )
    try:
        made.add_node(num_cpus=WORKERS, object_store_memory=2**30)
        ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def core_milliseconds(task: pl.Task, rule: pl.strategy.Strategy, fleet: object, updates: int) -> tuple[float, float]:
    """Of the server's processor for each gradient, and updates a second."""
    points: list[tuple[float, float]] = []

    def look(model: torch.nn.Module) -> dict[str, float]:
        points.append((time.process_time(), time.perf_counter()))
        return {"loss": 0.0}

    pl.train(
        replace(task, evaluate=look), strategy=rule, fleet=fleet, stop=pl.Stop(updates=updates), batch_size=8,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01), progress=False,
        every=pl.Every(updates=updates // 2),
    )  # fmt: skip
    (spent, at), (before, began) = points[-1], points[1]
    gradients = (updates // 2) * (WORKERS if isinstance(rule, pl.Synchronous) else 1)
    return (spent - before) / gradients * 1e3, (updates // 2) / (at - began)


def measure() -> dict[str, dict[str, list[float]]]:
    """By model and rule: milliseconds a gradient, and updates a second."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    options = {"share_memory": False}
    with other_node() as address, pl.RayFleet(WORKERS, address=address, **options).persistent() as fleet:
        for name, floor in floors().items():
            found.setdefault(name, {})["floor"] = [floor, 0.0]
        for name, numbers in UPDATES.items():
            for (kind, rule), updates in zip(RULES.items(), numbers, strict=True):
                core_milliseconds(task_of(name), rule, fleet, 4)
                found.setdefault(name, {})[kind] = [*core_milliseconds(task_of(name), rule, fleet, updates)]
    return found


class Echo:
    def answer(self, *chunks: object) -> object:
        return [0, *chunks] if chunks else 0


def floors() -> dict[str, float]:
    """Milliseconds of the server's core."""
    actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Echo).remote()
    found: dict[str, float] = {}
    for name, chunks in (("trivial", []), ("LeNet", [torch.zeros(83_000, dtype=torch.uint8).numpy()] * 3)):
        method = actor.answer.options(num_returns=1 + len(chunks))
        for number in range(120):
            if number == 20:
                began = time.process_time()
            made = method.remote(*chunks)
            first, *rest = made if chunks else [made]
            first.future().result()
            ray.get(rest)
        found[name] = (time.process_time() - began) / 100 * 1e3
    ray.kill(actor)
    weights, gradient = torch.zeros(10_000_000), torch.zeros(10_000_000)
    for number in range(13):
        if number == 3:
            began = time.process_time()
        weights.add_(gradient, alpha=-0.01)
        ray.put(weights.numpy())
    found["MLP of 10 M"] = (time.process_time() - began) / 10 * 1e3
    return found


def bytes_an_update() -> dict[str, float]:
    """Between machines for each synchronous update, over the size of the model: to the machine, and back."""
    from paceline.fleets.ray.launcher import MachineLauncher

    close, traffic = MachineLauncher.close, []

    def counting(launcher: MachineLauncher) -> None:
        traffic.append(launcher.traffic)
        close(launcher)

    MachineLauncher.close = counting  # type: ignore[method-assign]
    updates, task = 20, task_of("LeNet")
    with other_node() as address:
        fleet = pl.RayFleet(WORKERS, address=address)
        pl.train(
            task, strategy=pl.Synchronous(), fleet=fleet, stop=pl.Stop(updates=updates), batch_size=8, progress=False,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        )  # fmt: skip
    size = sum(parameter.numel() * 4 for parameter in task.model.parameters())
    sent, received = traffic[0]
    # the weights of the last version may be on their way already
    return {"weights": round(sent / updates / size, 2), "gradients": round(received / updates / size, 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--former", help="the Python of an environment with the former version")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--measure", action="store_true", help="print what this version takes, as JSON")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure()))
        return
    versions = {"now": sys.executable, **({"former": arguments.former} if arguments.former else {})}
    found: dict[str, list[dict[str, dict[str, list[float]]]]] = {name: [] for name in versions}
    for _ in range(arguments.rounds):
        for name, python in versions.items():
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            done = subprocess.run(
                [python, __file__, "--measure"], capture_output=True, text=True, check=True, env=environment,
                cwd=os.path.dirname(os.path.abspath(__file__)),
            )  # fmt: skip
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(name, found[name][-1], flush=True)
    table = {
        version: {
            model: {kind: [round(median(each[model][kind][i] for each in rounds), 3) for i in (0, 1)] for kind in RULES}
            for model in UPDATES
        }
        for version, rounds in found.items()
    }
    floor = {model: round(median(each[model]["floor"][0] for each in found["now"]), 3) for model in UPDATES}
    result: dict[str, object] = {
        "bar": f"core time a gradient at most {BAR} of the former design",
        "milliseconds of the server's core a gradient, and updates a second": table,
        "floor of an asynchronous update, milliseconds of the server's core": floor,
        "bytes a synchronous update between machines, in models": bytes_an_update(),
    }
    if arguments.former:
        result["core time, now over former"] = {
            model: {kind: round(table["now"][model][kind][0] / table["former"][model][kind][0], 2) for kind in RULES}
            for model in UPDATES
        }
        result["updates a second, now over former"] = {
            model: {kind: round(table["now"][model][kind][1] / table["former"][model][kind][1], 2) for kind in RULES}
            for model in UPDATES
        }
    write("machines", result, save=arguments.save)


if __name__ == "__main__":
    main()
