"""The staleness that a run counts on the way: right, and with a memory that does not grow with the run."""

from collections.abc import Iterator

import pytest

import paceline as pl
from paceline.core.messages import Ticket
from paceline.engine.loop import Loop, NoLearner, Stepped
from paceline.strategy import Strategy
from paceline.trace.staleness import Staleness
from paceline.trace.writing import NoTrace

WORKERS = 6
KEEPING = [
    pl.NewestOfEach(),
    pl.LiveCompensation(4, blocks=4),
    pl.LiveCompensation(3, recall=False),
    pl.Grouped([[0, 1, 2], [3, 4, 5]], pl.LiveCompensation(2)),
]


def counted(strategy: Strategy, updates: int) -> Iterator[tuple[Staleness, Stepped]]:
    """The count after each update of a simulated run, and the update."""
    workers, staleness = pl.SimulatedFleet(pl.delays.Pareto(0.1, 1.5), workers=WORKERS).open(3), Staleness()
    for update in Loop(strategy, workers, NoLearner(), NoTrace(workers.about)):
        staleness.count(update.version, update.step, update.dropped)
        yield staleness, update
        if update.version == updates:
            return


@pytest.mark.parametrize("strategy", KEEPING, ids=repr)
def test_only_what_can_be_used_again_is_remembered(strategy: Strategy) -> None:
    kept = 0
    for staleness, update in counted(strategy, 1500):
        kept += len(update.step.keep)
        assert len(staleness.state()["kept"]) <= WORKERS
    assert kept > 1500


@pytest.mark.parametrize("strategy", [*KEEPING, pl.Asynchronous(), pl.FastestK(4, stop_late=False)], ids=repr)
def test_the_numbers_are_those_of_a_count_that_forgets_nothing(strategy: Strategy) -> None:
    used: set[Ticket] = set()
    means: list[float] = []
    most = 0
    for staleness, update in counted(strategy, 700):
        ages = [update.version - ticket.version for ticket in update.step.weights if ticket not in used]
        used.update(update.step.weights)
        means.append(sum(ages) / len(ages) if ages else 0.0)
        most = max(most, *ages, 0)
        assert staleness.mean == pytest.approx(sum(means) / len(means))
    assert staleness.updates == len(means)
    assert staleness.maximum == most


def test_a_restored_count_goes_on_as_if_nothing_had_happened() -> None:
    resumed = Staleness()
    for whole, (_, version, step, dropped) in counted(pl.NewestOfEach(), 300):
        resumed.count(version, step, dropped)
        assert whole.state() == resumed.state()
        if version % 50 == 0:
            state, resumed = resumed.state(), Staleness()
            resumed.restore(state)


def test_what_was_dropped_since_the_last_update_is_in_the_state_of_a_loop() -> None:
    """In real time a run may be saved in the middle of a round."""
    workers = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2).open(0)
    loop = Loop(pl.NewestOfEach(), workers, NoLearner(), NoTrace(workers.about))
    for _ in loop:
        assert "dropped" not in loop.state()
        break
    dropped = Ticket(7, 1, 3)
    again = Loop(pl.NewestOfEach(), workers, NoLearner(), NoTrace(workers.about))
    again.restore({**loop.state(), "dropped": [[7, 1, 3, "gradient", 1]]})
    assert again.state()["dropped"] == [[7, 1, 3, "gradient", 1]]
    assert next(update for update in again if update.dropped).dropped[0] == dropped
