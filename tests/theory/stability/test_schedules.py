"""Monodromy of periodic schedules: against fixed delays, simulated descents, and recorded runs."""

from pathlib import Path

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.delays import Constant, ShiftedExponential
from paceline.engine.limits import Stop
from paceline.engine.train import simulate
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped, groups_by_speed
from paceline.strategies.synchronous import Synchronous
from paceline.theory import (
    Schedule,
    critical_step,
    recorded_schedule,
    schedule_critical_step,
    schedule_growth,
    simulated_schedule,
)

UNITS = (1.0,) * 4 + (2.0,) * 4 + (3.0,) * 8
FLEET = SimulatedFleet([Constant(units) for units in UNITS])
GROUPED = Grouped(groups_by_speed(UNITS))


def descend(schedule: Schedule, step: float, momentum: float, rounds: int) -> list[float]:
    path = [1.0] * (max(schedule.longest, 1) + 1)
    for _ in range(rounds):
        for used in schedule.updates:
            moved = sum(weight * path[-1 - age] for age, weight in used)
            path.append(path[-1] + momentum * (path[-1] - path[-2]) - step * moved)
    return path


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("delay", [0, 1, 10])
def test_one_update_over_and_over_is_a_fixed_delay(delay: int, momentum: float) -> None:
    schedule = Schedule((((delay, 1.0),),))
    assert schedule_critical_step(schedule, momentum) == pytest.approx(critical_step(delay, momentum), rel=1e-9)


def test_two_updates_are_enough_for_a_schedule() -> None:
    assert simulated_schedule(Synchronous(), FLEET, updates=2) == simulated_schedule(Synchronous(), FLEET)
    with pytest.raises(ConfigError, match="1 updates show no pattern: simulate at least 2"):
        simulated_schedule(Synchronous(), FLEET, updates=1)


def test_the_strategies_of_group_sgd() -> None:
    """Periods and staleness as the specification has them; SSGD has no delay; the limits fall with the staleness."""
    ssgd, gsgd, asgd = (simulated_schedule(each, FLEET) for each in (Synchronous(), GROUPED, Asynchronous()))
    assert [len(each.updates) for each in (ssgd, gsgd, asgd)] == [1, 11, 52]
    assert [sum(age * share for age, share in each.delays.items()) for each in (ssgd, gsgd, asgd)] == pytest.approx(
        [0, 2, 15]
    )
    limits = [schedule_critical_step(each) for each in (ssgd, gsgd, asgd)]
    assert limits == pytest.approx([2, 0.67365073, 0.14523931], abs=5e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("strategy", [GROUPED, Asynchronous(), FastestK(quorum=12)], ids=["gsgd", "asgd", "k-sgd"])
def test_below_the_limit_a_simulated_descent_converges_and_above_it_does_not(strategy: object, momentum: float) -> None:
    schedule = simulated_schedule(strategy, FLEET)  # type: ignore[arg-type]
    limit = schedule_critical_step(schedule, momentum)
    rounds = 40_000 // len(schedule.updates)
    for step, stable in ((0.98 * limit, True), (1.02 * limit, False)):
        with np.errstate(over="ignore"):
            ends = np.abs(descend(schedule, step, momentum, rounds)[-200:])
        assert (ends.max() < 1e-3) if stable else not (ends.max() < 1e2)
        assert (schedule_growth(schedule, step, momentum) < 1) is stable


def test_a_recorded_run_is_judged_like_a_simulated_one(tmp_path: Path) -> None:
    trace = simulate(GROUPED, FLEET, Stop(updates=220), trace=tmp_path / "trace.jsonl")
    recorded = recorded_schedule(trace)
    assert len(recorded.updates) == 220
    assert recorded == recorded_schedule(tmp_path / "trace.jsonl")
    steady = schedule_critical_step(simulated_schedule(GROUPED, FLEET))
    assert schedule_critical_step(recorded) == pytest.approx(steady, rel=0.01)  # the first period is a little different


def test_workers_of_random_speed_repeat_nothing_and_all_of_it_counts() -> None:
    fleet = SimulatedFleet(ShiftedExponential(0.05, 0.02), workers=8)
    schedule = simulated_schedule(Asynchronous(), fleet, updates=400)
    assert len(schedule.updates) == 200
    assert schedule_critical_step(schedule) == pytest.approx(critical_step(schedule.delays), rel=0.1)


def test_impossible_schedules_are_refused() -> None:
    with pytest.raises(ConfigError, match="a schedule without updates"):
        Schedule(())
    with pytest.raises(ConfigError, match="cannot be -1 updates old"):
        Schedule((((-1, 1.0),),))
    with pytest.raises(ConfigError, match="its weights do not descend"):
        schedule_critical_step(Schedule((((0, -1.0),),)))
    with pytest.raises(ConfigError, match="1 updates show no pattern"):
        simulated_schedule(Synchronous(), FLEET, updates=1)
    with pytest.raises(ConfigError, match="no trace at"):
        recorded_schedule("/nowhere")
    with pytest.raises(ConfigError, match="the trace has no updates"):
        recorded_schedule(simulate(Synchronous(), FLEET, Stop(seconds=1.0)))
    with pytest.raises(ConfigError):
        simulated_schedule(FastestK(quorum=40), FLEET)
