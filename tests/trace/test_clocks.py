"""How far clocks are apart is read off the ends of the same exchanges."""

from itertools import pairwise
from random import Random

import pytest

from paceline.trace.clocks import ClockMarks, clock_notes, offset_of


def marks(
    worker: int, times: list[float], *, wall: float = 0.0, exchange: float = 0.001, exact: bool = True
) -> ClockMarks:
    return ClockMarks(worker, f"host{worker}", f"clock{worker}", 0.0, wall, times, exchange, exact)


@pytest.mark.parametrize("drift", [0.0, 2e-5, -1e-4])
def test_offset_and_drift_are_found_within_the_uncertainty(drift: float) -> None:
    random = Random(3)
    true = [0.5 * number for number in range(1, 400)]
    reference = marks(0, [at + random.uniform(0, 0.001) for at in true])
    other = marks(1, [at + drift * at + random.uniform(0, 0.001) for at in true], wall=0.125)
    found = offset_of(other, reference)
    assert abs(found.seconds - 0.125 - drift * 0.5) < found.uncertainty < 0.003
    assert found.drift == pytest.approx(drift, abs=2e-6)
    (note,) = clock_notes([reference, other])
    assert ("gains" in note) == (drift != 0)
    assert note.startswith("The clock of host1 (worker 1) is 12")


def test_a_few_outliers_do_not_move_it() -> None:
    true = [0.1 * number for number in range(1, 50)]
    late = [at + (3.0 if number % 10 == 0 else 0.0) for number, at in enumerate(true)]
    assert offset_of(marks(1, late, wall=-0.5), marks(0, true)).seconds == pytest.approx(-0.5, abs=1e-6)


def test_one_exchange_is_enough_for_a_number() -> None:
    found = offset_of(marks(1, [0.3]), marks(0, [0.2]))
    assert found.seconds == pytest.approx(0.1)
    assert found.drift == 0.0
    assert found.uncertainty == 0.001


def test_ends_of_steps_are_said_to_be_less_certain() -> None:
    (note,) = clock_notes([marks(0, [0.1, 0.2]), marks(1, [0.1, 0.2], exact=False)])
    assert "from the ends of 2 steps, which may end at different times" in note


def test_workers_on_one_clock_need_no_offset() -> None:
    times = [0.1 * number for number in range(5)]
    one, other = marks(0, times), ClockMarks(1, "host0", "clock0", 0.0, 7.0, times, 0.001, True)
    assert list(clock_notes([one, other])) == []
    assert all(b > a for a, b in pairwise(times))
