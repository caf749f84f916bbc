"""A callback that writes down what it is told, and what callbacks are told on every fleet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import paceline as pl
from paceline.callbacks import Row, RunInfo, Update, WorkerEvent
from paceline.fleets.base import Fleet
from support.digits import digits_task

SIMULATED = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.5)])


class Told(pl.Callback):
    """Writes down (hook, value) of all it is told; ``answers`` are what its hooks return, or raise, one after another.

    ``{"on_update": [None, "enough"]}`` ends the run after two updates.
    """

    def __init__(self, **answers: list[Any]) -> None:
        self.said: list[tuple[str, Any]] = []
        self.closed = 0
        self._answers = answers

    def on_start(self, run: RunInfo) -> str | None:
        return self._note("on_start", run)

    def on_update(self, update: Update) -> str | None:
        return self._note("on_update", update)

    def on_evaluate(self, row: Row) -> str | None:
        return self._note("on_evaluate", row)

    def on_checkpoint(self, path: Path) -> str | None:
        return self._note("on_checkpoint", path)

    def on_worker(self, event: WorkerEvent) -> str | None:
        return self._note("on_worker", event)

    def on_end(self, run: pl.Run) -> str | None:
        return self._note("on_end", run)

    def close(self) -> None:
        self.closed += 1

    def of(self, hook: str) -> list[Any]:
        return [value for name, value in self.said if name == hook]

    @property
    def hooks(self) -> list[str]:
        return [name for name, _ in self.said]

    def _note(self, hook: str, value: Any) -> str | None:
        self.said.append((hook, value))
        answers = self._answers.get(hook, [])
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def train(*callbacks: Any, **more: Any) -> pl.Run:
    """Six updates of two workers, which are simulated unless another fleet is named."""
    usual: dict[str, Any] = {
        "strategy": pl.Synchronous(), "fleet": SIMULATED, "optimizer": sgd, "stop": pl.Stop(updates=6),
        "every": pl.Every(updates=2), "batch_size": 8, "progress": False,
    }  # fmt: skip
    return pl.train(digits_task(), callbacks=list(callbacks), **{**usual, **more})


def told_and_replayed(fleet: Fleet, directory: Path) -> None:
    """Callbacks are told the same of real workers as of simulated ones, and the same again when the run is replayed."""
    simulated, real, again = Told(), Told(), Told()
    train(simulated, fleet=replace(SIMULATED, evaluation="exact"), directory=directory / "simulated")
    train(real, fleet=fleet, directory=directory / "real")
    assert values_of(real) == values_of(simulated)
    pl.replay(
        directory / "real", digits_task(), strategy=pl.Synchronous(), fleet=fleet, optimizer=sgd, batch_size=8,
        callbacks=[again],
    )  # fmt: skip
    assert again.of("on_update") == real.of("on_update")
    assert again.of("on_worker") == real.of("on_worker")


def values_of(told: Told) -> dict[str, Any]:
    """What does not depend on how long real workers took."""
    updates, evaluated = told.of("on_update"), told.of("on_evaluate")
    return {
        "updates": [(each.updates, each.samples, each.staleness, each.workers) for each in updates],
        "weights": [{*each.weights.values()} for each in updates],
        "rows": [(row.updates, row.samples, row.loss, row.accuracy, row.staleness) for row in evaluated],
        "workers": sorted((each.kind, each.worker) for each in told.of("on_worker")),
        "ended": [run.ended for run in told.of("on_end")],
        "hooks": [hook for hook in told.hooks if hook not in ("on_worker", "on_evaluate")],
        "config": [{**info.config, "fleet": ""} for info in told.of("on_start")],
    }  # fmt: skip
