"""A logger of your own in one class: who is late, and how the loss falls, as lines of JSON.

    python examples/own_logger.py

``LateWorkers`` overrides three hooks of ``paceline.Callback``; those that it leaves alone cost nothing. It ends the run
by returning a text: here when one worker was late too often. The same class works on processes and on Ray.
"""

import json
from collections import Counter

import torch
from sklearn.datasets import load_digits

import paceline
from paceline.callbacks import Row, WorkerEvent
from paceline.delays import LogNormal


class LateWorkers(paceline.Callback):
    """Prints a line for each evaluation, and ends the run when one worker was late ``most`` times."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.late: Counter[int] = Counter()

    def on_evaluate(self, row: Row) -> None:
        values = {"updates": row.updates, "seconds": round(row.seconds, 2), "late": sum(self.late.values())}
        values |= {name: round(value, 4) for name, value in row.metrics.items()}
        print(json.dumps(values))

    def on_worker(self, event: WorkerEvent) -> str | None:
        if event.kind != "late":
            return None
        self.late[event.worker] += 1
        if self.late[event.worker] < self.most:
            return None
        return f"worker {event.worker} was late {self.most} times"

    def on_end(self, run: paceline.Run) -> None:
        print(json.dumps({"ended": run.ended, "late": dict(sorted(self.late.items()))}))


def main() -> None:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    model = torch.nn.Linear(64, 10)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        outputs = model(x[1000:])
        loss = torch.nn.functional.cross_entropy(outputs, y[1000:])
        best = outputs.topk(3, dim=1).indices
        return {"loss": loss, "perplexity": loss.exp(), "top 3": (best == y[1000:, None]).any(dim=1).float().mean()}

    run = paceline.train(
        paceline.Task(model, torch.nn.functional.cross_entropy, train=(x[:1000], y[:1000]), evaluate=evaluate),
        strategy=paceline.FastestK(3),
        fleet=paceline.SimulatedFleet([LogNormal(1.0, 0.2)] * 3 + [LogNormal(2.0, 0.2)]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        stop=paceline.Stop(metric="perplexity", below=1.2, updates=500),
        every=paceline.Every(updates=20),
        callbacks=[LateWorkers(most=100), paceline.EarlyStopping("perplexity", patience=5)],
        progress=False,
    )
    print(f"ended by: {run.ended}")


if __name__ == "__main__":
    main()
