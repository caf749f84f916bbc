"""A run that only Ctrl-C ends: python -m support.endless DIRECTORY."""

import signal
import sys
from pathlib import Path

import torch

import paceline as pl
from support.digits import digits_task

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell would ignore it
    pl.train(
        digits_task(),
        strategy=pl.LiveCompensation(3, blocks=4),
        fleet=pl.SimulatedFleet(pl.delays.ShiftedExponential(0.05, 0.02), workers=4),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(updates=10**9),
        directory=Path(sys.argv[1]),
    )
