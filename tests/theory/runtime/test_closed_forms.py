"""Speed, waste and staleness of further rules: closed forms against the simulator; and the lower bound by hand."""

import math

import pytest

import paceline as pl
from paceline.core.coordinator import Strategy
from paceline.delays import Constant, LogNormal, ShiftedExponential
from paceline.theory import time_lower_bound, yardstick
from paceline.theory.runtime.costs import runtime, simulated

CONSTANT = pl.SimulatedFleet([Constant(1.0), Constant(1.3), Constant(2.1), Constant(2.9)], recall="abandon")
NOISY = pl.SimulatedFleet([LogNormal(1.0, 0.3), ShiftedExponential(0.5, 1.0), LogNormal(3.0, 0.2)])


FORMS = [
    *((rule, CONSTANT) for rule in (pl.BoundedStaleness(2), pl.Ringmaster(1), pl.Anytime(1.5, 6), pl.Buffered(3))),
    (pl.Replicated([[0, 3], [1, 2]]), CONSTANT),
    *((rule, NOISY) for rule in (pl.Buffered(7), pl.StalenessAware(2), pl.NewestOfEach(), pl.Ringmaster(1))),
    (pl.QuorumGrace(3, 0.2), NOISY),
]


@pytest.mark.parametrize(("rule", "fleet"), FORMS, ids=lambda value: type(value).__name__)
def test_every_number_is_that_of_the_simulator(rule: Strategy, fleet: pl.SimulatedFleet) -> None:
    found, seen = runtime(rule, fleet), simulated(rule, fleet)
    assert found.seconds_per_update.value == pytest.approx(seen.seconds_per_update.value, rel=0.03)
    assert found.wasted_share.value == pytest.approx(seen.wasted_share.value, abs=0.02)
    assert found.mean_staleness.value == pytest.approx(seen.mean_staleness.value, rel=0.03, abs=0.02)


@pytest.mark.parametrize(
    ("rule", "seconds", "staleness"),
    [
        (pl.Buffered(2), 2 / (1 + 1 / 1.3 + 1 / 2.1 + 1 / 2.9), 1.5),
        (pl.Rescaled(), 1 / (1 + 1 / 1.3 + 1 / 2.1 + 1 / 2.9), 3.0),
        (pl.BoundedStaleness(2), 2.9 / 4, None),
        (pl.Ringmaster(1), 1.0, 0.0),
        (pl.QuorumGrace(4, 1.0), 2.9, 0.0),
        (pl.Replicated([[0, 3], [1, 2]]), 1.3, 0.0),
        (pl.Anytime(2.0, 8), 2.0, 0.0),
    ],
    ids=repr,
)
def test_what_is_known_in_closed_form_says_so(rule: Strategy, seconds: float, staleness: float | None) -> None:
    found = runtime(rule, CONSTANT)
    assert found.updates_per_second.source == "exact"
    assert found.seconds_per_update.value == pytest.approx(seconds)
    if staleness is None:
        assert found.mean_staleness.source == "simulation"
    else:
        assert found.mean_staleness.source == "exact"
        assert found.mean_staleness.value == pytest.approx(staleness)


def test_what_needs_a_model_is_refused() -> None:
    with pytest.raises(pl.ConfigError, match="AdaptiveQuorum goes by numbers that learning tells"):
        runtime(pl.AdaptiveQuorum(), CONSTANT)


def bound(seconds: list[float], noise: float = 1.0, *, unlike: bool = False) -> tuple[float, int]:
    """For L = 1, a gap of 1 and an accuracy of 1/10: ten steps, and a noise of 1 asks for ten gradients each."""
    found = time_lower_bound(seconds, smoothness=1.0, gap=1.0, noise=noise, accuracy=0.1, unlike=unlike)
    return round(found.seconds, 9), found.workers


def test_the_lower_bound_by_hand() -> None:
    assert bound([2.0]) == (2.0 * (10 + 100), 1)
    assert bound([2.0] * 4) == (2.0 * (10 + 25), 4)  # the noise is divided among them
    assert bound([3.0, 1.0, 2.0], noise=0.0) == (10.0, 1)  # without noise only the fastest counts
    assert bound([1.0, 1.0, 1e6]) == bound([1.0, 1.0]) == (60.0, 2)  # a very slow worker is not worth its share
    assert bound([1.0, 1.0, 4.0], unlike=True) == (round(4.0 * 10 + 2.0 * 100 / 3, 9), 3)  # unless it has its own data


def test_the_yardstick_is_the_bound_in_seconds_of_the_synchronous_rule() -> None:
    assert yardstick([2.0] * 4, updates=50, noise=3.0).seconds == pytest.approx(100.0)  # on equal workers its own time
    assert yardstick([1.0, 2.0, 4.0], updates=50, noise=0.0).seconds == pytest.approx(50.0)  # the fastest is enough
    noisy = yardstick([1.0, 2.0, 4.0], updates=50, noise=1e9)
    assert noisy.seconds == pytest.approx(150 / (1 + 1 / 2 + 1 / 4))  # as many gradients, as fast as they come
    assert yardstick([1.0, 2.0, 4.0], updates=50, noise=0.0, unlike=True).seconds == pytest.approx(200.0)
    for updates, noise in ((0.0, 1.0), (9.0, -1.0), (9.0, math.inf)):
        with pytest.raises(pl.ConfigError, match="not possible"):
            yardstick([1.0], updates=updates, noise=noise)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seconds": []}, "give a positive, finite time for each worker"),
        ({"seconds": [1.0, 0.0]}, "give a positive, finite time for each worker"),
        ({"accuracy": 0.0}, "accuracy=0.0 is not possible: a finite number above 0"),
        ({"noise": -1.0}, r"noise=-1.0 is not possible: a finite number of at least 0 \(nearest 0\)"),
        ({"gap": math.inf}, "gap=inf is not possible"),
    ],
)
def test_the_lower_bound_of_nothing_is_refused(changed: dict[str, object], said: str) -> None:
    given = {"seconds": [1.0], "smoothness": 1.0, "gap": 1.0, "noise": 1.0, "accuracy": 0.1} | changed
    with pytest.raises(pl.ConfigError, match=said):
        time_lower_bound(**given)  # type: ignore[arg-type]
