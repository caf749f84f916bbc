"""Options of a scheduler that torch looks at only hundreds of steps later: refused at the start, or one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.cli.main import main
from support.tiny import changed, refused, tiny

__all__ = ["tiny"]
TRAIN = ["train", "tiny.toml", "--strategy", "ssgd", "--lr", "0.1", "--directory", "run", "--no-check-lr"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('name = "StepLR"\nstep_size = 2\ngamma = "x"', "StepLR cannot have gamma='x': give a finite number, such as"),
        ('name = "StepLR"\nstep_size = 2\ngamma = []', "scheduler: StepLR cannot have gamma=[]: give a finite number"),
        ('name = "StepLR"\nstep_size = 2\ngamma = inf', "gamma=inf: give a finite number, such as gamma = 0.1"),
        ('name = "StepLR"\nstep_size = true', "StepLR cannot have step_size=true: give a finite number"),
        ('name = "MultiStepLR"\nmilestones = [9]\ngamma = "x"', "MultiStepLR cannot have gamma='x'"),
        ('name = "CosineAnnealingLR"\nT_max = 5\neta_min = "x"', "CosineAnnealingLR cannot have eta_min='x'"),
    ],
)
def test_an_option_that_is_to_be_a_number_is_one(
    tiny: Path, options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(tiny, "[stop]", f"[scheduler]\n{options}\n[stop]")
    assert said in refused(TRAIN, capsys)


def test_a_learning_rate_that_is_no_number_any_more_is_one_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tiny, "[stop]", '[scheduler]\nname = "StepLR"\nstep_size = 2\ngamma = 1e308\n[stop]')
    assert main(TRAIN) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the scheduler, StepLR, has set a learning rate of 1e+307, by which no weight can")


@pytest.mark.parametrize("strategy", ["ssgd", "ma:every=3"])
def test_what_a_scheduler_raises_in_a_run_names_it(strategy: str) -> None:
    class Late(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float | torch.Tensor]:
            if self.last_epoch > 1:
                raise ValueError("no more\nsteps")
            return [0.1]

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    task = pl.Task(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, (torch.ones(32, 2), torch.ones(32, 1)))
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2)
    with pytest.raises(pl.ConfigError, match="the scheduler, Late, cannot step: ValueError: no more steps"):
        pl.train(
            task, strategy=strategy, fleet=fleet, optimizer=sgd, scheduler=Late, stop=pl.Stop(updates=9), batch_size=4
        )
