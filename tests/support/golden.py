"""Runs whose weights and traces are on record: a change of the code's shape must not change a bit of them.

    in tests/: python -m support.golden --write FILE    makes a record
               python -m support.golden --check FILE    compares with one, and ends with 1 if anything differs

``EXACT`` runs train on whole numbers with a hinge loss, learning rates and weights that are powers of two, and double
precision. Every sum is exact, so that their bits are the same on every processor: tests/golden/exact.json is theirs.
``RICH`` runs (dropout, softmax, random durations) round, so that they are only comparable on one machine.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import paceline
from paceline import delays

SAMPLES, FEATURES = 96, 6
UNEQUAL: list[delays.Delay] = [
    delays.Constant(1.0),
    delays.Constant(1.25),
    delays.Constant(2.5),
    delays.Empirical([1.0, 3.0, 7.0]),
]

PRUNED: dict[str, Any] = {"start": 1, "block": 2, "count": 1, "window": 6, "fraction": 0.25}


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.relu(4.0 - outputs.squeeze(1) * targets)


def exact_task() -> paceline.Task:
    """Whole numbers, and a net of which only the last layer is trained: all values have few digits in base two."""
    rows = torch.arange(SAMPLES).unsqueeze(1)
    inputs = ((rows * 7 + torch.arange(FEATURES) * 5 + rows * rows % 11) % 9 - 4).double()
    targets = torch.where(inputs[:, 0] - inputs[:, 1] + inputs[:, 2] * inputs[:, 3] > 0, 1.0, -1.0).double()
    model = nn.Linear(FEATURES, 1).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()

    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            outputs = model(inputs)
            right = int((outputs.squeeze(1) * targets > 0).sum())
            return {"loss": float(hinge(outputs, targets).sum()), "accuracy": right / SAMPLES}

    return paceline.Task(model=model, loss=hinge, train=(inputs, targets), test=(inputs, targets), evaluate=evaluate)


def rich_task() -> paceline.Task:
    torch.manual_seed(3)
    inputs = torch.randn(SAMPLES * 2, FEATURES)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    data = (inputs, targets)
    return paceline.Task(model=model, loss=nn.CrossEntropyLoss(reduction="none"), train=data, test=data)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2.0**-5, momentum=0.5)


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2.0**-5)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def simulated(**settings: Any) -> paceline.SimulatedFleet:
    return paceline.SimulatedFleet(UNEQUAL, **settings)


def random_fleet() -> paceline.SimulatedFleet:
    network = paceline.Network(latency=0.05, bandwidth=1e5)
    return paceline.SimulatedFleet([delays.LogNormal(m, 0.5) for m in (1, 1, 2, 4)], network=network)


def exact(strategy: Any, fleet: Any = None, *, updates: int = 24, **settings: Any) -> paceline.Run:
    settings = {"optimizer": sgd, **settings}
    return paceline.train(
        exact_task(), strategy=strategy, fleet=fleet or simulated(), batch_size=4, seed=5,
        stop=paceline.Stop(updates=updates), progress=False, **settings,
    )  # fmt: skip


def _rich(strategy: Any, **settings: Any) -> paceline.Run:
    settings = {"stop": paceline.Stop(updates=30), "fleet": random_fleet(), **settings}
    return paceline.train(
        rich_task(), strategy=strategy, optimizer=adam, batch_size=8, seed=7, progress=False, **settings
    )


EXACT: dict[str, Callable[..., paceline.Run]] = {
    "synchronous": partial(exact, paceline.Synchronous()),
    "asynchronous": partial(exact, paceline.Asynchronous()),
    "fastest k": partial(exact, paceline.FastestK(2)),
    "live compensation": partial(exact, paceline.LiveCompensation(2, blocks=4), simulated(recall="block")),
    "grouped": partial(exact, paceline.Grouped([[0, 1], [2, 3]])),
    "model averaging": partial(exact, paceline.ModelAveraging(every=2), updates=8, optimizer=plain_sgd),
    "pruned": partial(exact, paceline.Synchronous(), sampling=paceline.FinePruning(samples=SAMPLES, **PRUNED)),
    "processes": partial(exact, paceline.Synchronous(), paceline.ProcessFleet(2)),
}
RICH: dict[str, Callable[..., paceline.Run]] = {
    "synchronous": partial(_rich, paceline.Synchronous()),
    "asynchronous": partial(_rich, paceline.Asynchronous()),
    "live compensation": partial(_rich, paceline.LiveCompensation(3)),
    "fastest k": partial(_rich, paceline.FastestK(3)),
    "grouped": partial(_rich, paceline.Grouped([[0, 1], [2, 3]], inside=paceline.LiveCompensation(1))),
    "model averaging": partial(_rich, paceline.ModelAveraging(every=4), stop=paceline.Stop(updates=8)),
    "averaging without waiting": partial(
        _rich, paceline.ModelAveraging(every=4, waits=paceline.Asynchronous()), stop=paceline.Stop(updates=12)
    ),
    "ensemble compression": partial(_rich, paceline.EnsembleCompression(every=6), stop=paceline.Stop(updates=5)),
    "pruned": partial(_rich, paceline.Asynchronous(), sampling=paceline.FinePruning(samples=2 * SAMPLES, **PRUNED)),
    "processes": partial(_rich, paceline.Synchronous(), fleet=paceline.ProcessFleet(2)),
    "models on processes": partial(
        _rich, paceline.ModelAveraging(every=4), fleet=paceline.ProcessFleet(2), stop=paceline.Stop(updates=6)
    ),
}


def recorded(make: Callable[..., paceline.Run]) -> dict[str, Any]:
    """What must stay: the weights, the history, and in virtual time the lines of the trace."""
    with TemporaryDirectory() as place:
        run = make(directory=Path(place) / "run")
        real = run.trace.about["clock"] == "real"
        lines = (Path(place) / "run" / "trace.jsonl").read_bytes().splitlines()[1:]
    weights = hashlib.sha256()
    for name, values in sorted(run.model.state_dict().items()):
        weights.update(name.encode() + values.contiguous().numpy().tobytes())
    trace = hashlib.sha256(b"\n".join(lines))
    last = run.history[-1]
    return {
        "weights": weights.hexdigest(),
        "updates": last.updates,
        "loss": last.loss,
        "ended": run.ended,
        **({} if real else {"trace": trace.hexdigest(), "seconds": last.seconds, "rows": len(run.history)}),
    }


def made(runs: dict[str, Callable[..., paceline.Run]]) -> dict[str, Any]:
    return {name: recorded(make) for name, make in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--rich", action="store_true", help="the runs that are only comparable on one machine")
    asked = parser.parse_args()
    now = made(RICH if asked.rich else EXACT)
    if asked.write:
        asked.write.write_text(json.dumps(now, indent=1) + "\n")
    if asked.check:
        before = json.loads(asked.check.read_text())
        different = [name for name in before | now if before.get(name) != now.get(name)]
        print("different:" if different else f"all {len(now)} are the same", *different, sep="\n  ")
        sys.exit(bool(different))


if __name__ == "__main__":
    main()
