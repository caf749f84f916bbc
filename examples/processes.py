"""Train on real processes of this machine, one of them four times as slow, and kill one on the way.

    python examples/processes.py

The same call as with a simulated fleet; nothing of the task, the strategy or the optimizer changes.
"""

import logging
import threading
import time

import psutil
import torch
from sklearn.datasets import load_digits

import paceline
from paceline.strategy import Strategy

SECONDS = 2.5
STRATEGIES = {
    "SSGD": paceline.Synchronous(),
    "ASGD": paceline.Asynchronous(),
    "LGC-SGD": paceline.LiveCompensation(quorum=3, blocks=4),
    "GSGD": paceline.Grouped([[0, 1, 2], [3]]),
}


def digits() -> paceline.Task:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)

    def patient(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(len(targets) * 0.0002)  # a model of this size would be done before one could see anything
        return torch.nn.functional.cross_entropy(outputs, targets)

    return paceline.Task(torch.nn.Linear(64, 10), patient, train=(x[:1500], y[:1500]), test=(x[1500:], y[1500:]))


def main() -> None:
    logging.basicConfig(format="  %(message)s")
    fleet = paceline.ProcessFleet(workers=4, slow={3: 4.0})
    print(f"{fleet.workers} processes, worker 3 four times as slow, {SECONDS:g} seconds each")
    for name, strategy in STRATEGIES.items():
        run = train(strategy, fleet)
        last = run.history[-1]
        print(
            f"{name:8} {last.updates:5} updates  mean staleness {run.mean_staleness:.2f}  "
            f"loss {last.loss:.3f}  accuracy {last.accuracy:.1%}"
        )
    print("once more with ASGD, and a worker is killed after a second:")
    threading.Timer(1.0, kill_a_worker).start()
    run = train(paceline.Asynchronous(), fleet)
    print(f"ASGD     {run.history[-1].updates:5} updates  accuracy {run.history[-1].accuracy:.1%}")


def kill_a_worker() -> None:
    """What a machine that runs out of memory does: end some process, without a word."""
    (fork_server,) = psutil.Process().children()
    fork_server.children()[0].kill()


def train(strategy: Strategy, fleet: paceline.ProcessFleet) -> paceline.Run:
    return paceline.train(
        digits(),
        strategy=strategy,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        stop=paceline.Stop(seconds=SECONDS),
        progress=False,
    )


if __name__ == "__main__":
    main()
