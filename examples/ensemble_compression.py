"""Let every worker train a model of its own: average the parameters, or the outputs?

    python examples/ensemble_compression.py

Four workers, one of them slow, see the same mini-batches under each method. ``_G`` is the global model (the average, or
the ensemble), ``_L`` the local one with the smallest training loss. The last ensemble is saved, and loaded again.
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import paceline
from paceline.delays import LogNormal

STEPS = 240  # of each worker
METHODS = {
    "MA-DNN": paceline.ModelAveraging(every=16, steps=STEPS),
    "E-DNN": paceline.FinalEnsemble(STEPS),
    "EC-DNN-S": paceline.EnsembleCompression(every=60, steps=STEPS),
    "EC-DNN-M": paceline.EnsembleCompression(every=60, weights="margin", steps=STEPS),
}


def main() -> None:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    task = paceline.Task(
        model=torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)),
        loss=torch.nn.functional.cross_entropy,
        train=(x[:1000], y[:1000]),
        test=(x[1000:], y[1000:]),
    )
    evaluate = task.evaluator()
    fleet = paceline.SimulatedFleet(
        delays=[LogNormal(median=0.01, sigma=0.2)] * 3 + [LogNormal(median=0.02, sigma=0.2)],
        network=paceline.Network(latency=0.001, bandwidth=1e6),
    )
    print(f"{'method':10} {'error of _G':>11} {'of _L':>6} {'seconds':>8}   worker-seconds: training, labels, messages")
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "run"
        for name, strategy in METHODS.items():
            run = paceline.train(
                task,
                strategy=strategy,
                fleet=fleet,
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
                batch_size=25,
                directory=directory if name == "EC-DNN-S" else None,
                progress=False,
            )
            assert run.local is not None
            assert run.costs is not None
            last, costs = run.history[-1], run.costs
            print(
                f"{name:10} {1 - last.accuracy:11.1%} {1 - evaluate(run.local)['accuracy']:6.1%} {last.seconds:8.2f}   "
                f"{costs.compute:.1f}, {costs.relabelling:.1f}, {costs.communication:.2f}"
            )
        ensemble = paceline.load(directory, trust=True)  # our own run: its architecture may be read too
        print(f"EC-DNN-S, loaded from its directory: error {1 - evaluate(ensemble)['accuracy']:.1%}")


if __name__ == "__main__":
    main()
