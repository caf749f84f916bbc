"""What half precision between machines does to the loss: LeNet on MNIST, the same run with both wires, over seeds.

    python benchmarks/half_precision.py DATA [--seeds N] [--updates N] [--save]

DATA has MNIST's files, in a folder ``mnist``. Eight workers on two other machines, four on each. The order of events is
drawn by the simulator once for each seed; then the gradients are computed in this process and go between machines as
they would with a ``RayFleet``, as float32 and as bfloat16: by what replays its runs, and has their bits. Both runs of a
seed have the same weights to begin with, mini-batches and order of arrival.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import torch
from measuring import write

import paceline as pl
from paceline.config.named_tasks import make_named
from paceline.config.tasks import TaskChoice
from paceline.fleets.replayed import ReplayedWorkers
from paceline.trace.format import MachineWorkers
from paceline.trace.reading import Trace

WORKERS, BATCH = 8, 16
MACHINES = MachineWorkers(((0, 1, 2, 3), (4, 5, 6, 7)), -1)
RULES: dict[str, Callable[[], Any]] = {"synchronous": pl.Synchronous, "asynchronous": pl.Asynchronous}
RATES = {"synchronous": 0.05, "asynchronous": 0.05}
Wire = Literal["bfloat16"] | None


@dataclass(frozen=True)
class OnMachines:
    """Workers of a ``RayFleet`` on two machines, whose events are those of a trace."""

    trace: Trace
    fleet: pl.RayFleet

    @property
    def workers(self) -> int:
        return self.fleet.workers

    def launch(self, workload: Any, seed: int) -> Any:
        worker, contributions = self.fleet.inline_on(MACHINES, workload, seed)
        return ReplayedWorkers(self.trace, worker), contributions


def trained(data: Path, rule: str, wire: Wire, seed: int, updates: int) -> dict[str, float]:
    torch.manual_seed(seed)
    simulated = pl.SimulatedFleet([pl.delays.LogNormal(0.1, 0.2)] * WORKERS)
    stop = pl.Stop(updates=updates)
    trace = pl.simulate(RULES[rule](), simulated, stop, seed=seed)
    task = make_named(TaskChoice("mnist", "lenet", directory=str(data / "mnist")))
    run = pl.train(
        task, strategy=RULES[rule](), fleet=OnMachines(trace, pl.RayFleet(WORKERS, wire=wire)), stop=stop,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATES[rule], momentum=0.9 * (rule[0] == "s")),
        batch_size=BATCH, seed=seed, every=pl.Every(updates=updates), progress=False,
    )  # fmt: skip
    return {"loss": run.history[-1].loss, "accuracy": run.history[-1].accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=300, help="of eight gradients each")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"gradients a run": WORKERS * asked.updates, "mini-batch": BATCH}
    for rule in RULES:
        updates = asked.updates * (1 if rule == "synchronous" else WORKERS)
        found: dict[str, list[dict[str, float]]] = {"float32": [], "bfloat16": []}
        for seed in range(asked.seeds):
            for name, runs in found.items():
                runs.append(trained(asked.data, rule, "bfloat16" if name == "bfloat16" else None, seed, updates))
                print(rule, seed, name, runs[-1], flush=True)
        result[rule] = summary(found)
    write("half_precision", result, save=asked.save)


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for measure in ("loss", "accuracy"):
        values = {name: [run[measure] for run in runs] for name, runs in found.items()}
        pairs = [half - whole for half, whole in zip(values["bfloat16"], values["float32"], strict=True)]
        shown[f"test {measure}, mean"] = {name: round(mean(each), 4) for name, each in values.items()}
        shown[f"test {measure}, bfloat16 - float32, mean and its standard error over seeds"] = [
            round(mean(pairs), 5), round(stdev(pairs) / math.sqrt(len(pairs)), 5) if len(pairs) > 1 else None,
        ]  # fmt: skip
        shown[f"test {measure}, standard deviation over seeds, float32"] = round(stdev(values["float32"]), 4)
    return shown


if __name__ == "__main__":
    main()
