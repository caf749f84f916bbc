"""Both fleets keep the contract."""

from typing import Any

import paceline as pl
from paceline.testing import FleetContract


class TestSimulated(FleetContract):
    fleet = pl.SimulatedFleet(
        pl.delays.ShiftedExponential(0.05, 0.03),
        workers=4,
        changes=[pl.Left(0.2, 1)],
        evaluation="exact",
        recall="block",
    )

    def lose(self, group: Any, worker: int) -> None:
        assert worker == 1  # it leaves by itself


class TestSimulatedWithTies(FleetContract):
    fleet = pl.SimulatedFleet(
        pl.delays.Constant(0.05), workers=3, changes=[pl.Left(0.2, 1), pl.Joined(0.4, 1)], ties="batch"
    )

    def lose(self, group: Any, worker: int) -> None:
        assert worker == 1


class TestSimulatedWithABusyServer(FleetContract):
    fleet = pl.SimulatedFleet(
        pl.delays.ShiftedExponential(0.05, 0.03),
        workers=4,
        changes=[pl.Left(0.2, 1)],
        recall="abandon",
        server_seconds=0.03,
    )

    def lose(self, group: Any, worker: int) -> None:
        assert worker == 1


class TestSimulatedMachines(FleetContract):
    fleet = pl.SimulatedFleet(
        pl.delays.ShiftedExponential(0.05, 0.03),
        workers=4,
        changes=[pl.Leaving(0.15, 1, by=0.2), pl.Left(0.2, 1)],
        evaluation="exact",
        machines=pl.Machines(2, gigabits=1e-4, latency=0.001, sum_seconds=0.01, step_seconds=0.01),
    )

    def lose(self, group: Any, worker: int) -> None:
        assert worker == 1


class TestProcesses(FleetContract):
    fleet = pl.ProcessFleet(4, slow={3: 3.0})
