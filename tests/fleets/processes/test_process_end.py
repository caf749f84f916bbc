"""A run on real workers ends when it is to, whatever they are at; and goes on from there as if it had not."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.core.messages import Start, Step
from paceline.storage import saved_models
from support import faults
from support.digits import digits_task, linear


def train(task: pl.Task, stop: pl.Stop, **options: Any) -> pl.Run:
    return pl.train(
        replace(task, evaluate=lambda model: {"loss": 1.0, "accuracy": 0.5}), strategy=pl.Synchronous(),
        fleet=pl.ProcessFleet(2), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), stop=stop,
        progress=False, **options,
    )  # fmt: skip


class Calling(nn.Module):
    """A model that sends its server a signal from a worker, and then never comes back.

    Once for each file in a directory: "SIGTERM" does it at the worker's third pass, "SIGINT" when it starts.
    """

    def __init__(self, model: nn.Module, directory: Path) -> None:
        super().__init__()
        self.model, self.directory = model, directory
        self.server, self.passes = os.getpid(), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        if self.passes == 3:
            self.call(signal.SIGTERM)
        outputs: Tensor = self.model(inputs)
        return outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.call(signal.SIGINT)

    def call(self, number: signal.Signals) -> None:
        if os.getpid() == self.server:
            return
        try:
            (self.directory / number.name).unlink()  # only one worker can
        except FileNotFoundError:
            return
        os.kill(self.server, number)
        faults.hang()


def test_a_signal_in_the_middle_of_a_round_leaves_a_checkpoint_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_models, "_save_architecture", lambda *arguments: None)  # which takes longer than all else
    marks, directory = tmp_path / "marks", tmp_path / "run"
    marks.mkdir()
    stop, task = pl.Stop(updates=5), digits_task(Calling(linear(), marks))
    usual: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    try:
        (marks / "SIGTERM").touch()
        with pytest.raises(SystemExit):
            train(task, stop, directory=directory)
        facts = list(pl.read_trace(directory / "trace.jsonl"))
        assert [type(fact) for fact in facts].count(Step) == 2
        assert [type(fact) for fact in facts].count(Start) == 6  # the third round had begun
        (marks / "SIGINT").touch()
        with pytest.raises(KeyboardInterrupt):  # while the workers start again
            train(task, stop, directory=directory, resume=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    resumed = train(task, stop, directory=directory, resume=True)
    straight = train(digits_task(), stop)
    assert (resumed.ended, resumed.history[-1].updates) == ("updates", 5)
    seconds = [row.seconds for row in resumed.history]
    assert seconds == sorted(seconds)
    for one, other in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_time_limit_holds_whatever_the_workers_are_at(tmp_path: Path) -> None:
    model = faults.Struck(linear(), faults.hang, tmp_path, at=0, times=2)
    began = time.monotonic()
    run = train(digits_task(model), pl.Stop(seconds=0.5))
    assert time.monotonic() - began < 100.0  # they would take 10,000 s
    assert run.ended == "seconds"
    assert [(row.updates, row.seconds, row.loss, row.accuracy) for row in run.history] == [
        (0, 0.0, 1.0, 0.5),
        (0, 0.5, 1.0, 0.5),
    ]
    assert run.summary()["seconds"] == 0.5
