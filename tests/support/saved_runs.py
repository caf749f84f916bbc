"""Small runs in directories, as ``paceline.train`` leaves them."""

import json
from pathlib import Path

import torch

import paceline as pl
from paceline.core.coordinator import Strategy


def save_run(directory: Path, strategy: Strategy, *, seconds: float = 30.0, target: float | None = None) -> pl.Run:
    """Five workers, two of them slow, on two classes that a line can nearly separate."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    points = torch.randn(200, 3, generator=generator) + 0.8 * labels[:, None]
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]]))
        model.bias.zero_()
    task = pl.Task(model, torch.nn.functional.cross_entropy, (points[:160], labels[:160]), (points[160:], labels[160:]))
    slow = pl.delays.LogNormal(2.5, 0.3)
    return pl.train(
        task,
        strategy=strategy,
        fleet=pl.SimulatedFleet([pl.delays.LogNormal(1.0, 0.2)] * 3 + [slow] * 2, network=pl.Network(latency=0.05)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2),
        batch_size=8,
        stop=pl.Stop(seconds=seconds, target=target),
        directory=directory,
        progress=False,
    )


def with_perplexity_alone(path: Path) -> None:
    """Let the evaluations of a run have returned neither a loss nor an accuracy."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows = [{**row, "loss": None, "accuracy": None, "metrics": {"perplexity": row["loss"]}} for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
