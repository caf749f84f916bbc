"""Stable steps for net weights: the same as for delays where they are delays, and what the recursion itself does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.theory import critical_step, mean_square_critical_step, spectral_radius
from paceline.theory.stability.net_weights import (
    NetWeights,
    _by_gap,
    net_critical_step,
    net_decay,
    net_mean_square_step,
)

FloatArray = NDArray[np.float64]

HISTOGRAMS = [
    {0: 1.0},
    {10: 1.0},
    {0: 0.5, 1: 0.5},
    {0: 0.2, 1: 0.3, 2: 0.2, 3: 0.1, 4: 0.1, 5: 0.1},
    {3: 0.9, 40: 0.1},
]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("delays", HISTOGRAMS, ids=str)
def test_delays_are_a_special_case(delays: dict[int, float], momentum: float) -> None:
    weights = NetWeights.of_delays(delays)
    assert net_critical_step(weights, momentum) == pytest.approx(critical_step(delays, momentum), rel=1e-9)
    assert net_mean_square_step(weights, momentum) == pytest.approx(
        mean_square_critical_step(delays, momentum), rel=1e-7
    )
    step = 0.3 * critical_step(delays, momentum)
    assert net_decay(step, weights, momentum) == pytest.approx(spectral_radius(step, delays, momentum), rel=1e-9)


def grows(shares: dict[int, float], step: float, momentum: float, nesterov: bool, updates: int = 3000) -> bool:
    """Does the recursion itself, written as torch's SGD does it, move away from 0?"""
    past, velocity = [1.0] * (max(shares) + 1), 0.0
    peaks = [0.0, 0.0]
    for number in range(updates):
        gradient = step * sum(weight * past[-1 - age] for age, weight in shares.items())
        velocity = momentum * velocity + gradient
        past.append(past[-1] - (gradient + momentum * velocity if nesterov else velocity))
        half = number >= updates // 2
        peaks[half] = max(peaks[half], abs(past[-1]))
        if abs(past[-1]) > 1e100:
            return True
    return peaks[1] > peaks[0]


@given(
    st.dictionaries(st.integers(0, 6), st.floats(-0.2, 1.0), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.booleans(),
)
def test_the_recursion_turns_at_the_limit(shares: dict[int, float], momentum: float, nesterov: bool) -> None:
    """3 % below it the path dies out, 3 % beyond it grows; signed weights and Nesterov's form included."""
    if sum(shares.values()) < 0.2 or (nesterov and not momentum):
        return
    limit = net_critical_step(NetWeights(shares, {0: 1.0}), momentum, nesterov=nesterov)
    assert not grows(shares, 0.97 * limit, momentum, nesterov)
    assert grows(shares, 1.03 * limit, momentum, nesterov)


def test_known_limits() -> None:
    """Two lags: 2 / (1 + p) for weights 1 and -p. Nesterov without delay: 2 (1 + m) / (1 + 2 m)."""
    assert net_critical_step(NetWeights({0: 1.0, 1: -0.1}, {0: 1.0})) == pytest.approx(2 / 1.1)
    fresh = NetWeights.of_delays({0: 1.0})
    assert net_critical_step(fresh, 0.9, nesterov=True) == pytest.approx(3.8 / 2.8)
    assert net_critical_step(fresh, 0.9) == pytest.approx(3.8)
    # the histogram of an asynchronous fleet: momentum 0.9 costs a factor of 13 at a delay of ten
    ten = NetWeights.of_delays({10: 1.0})
    assert net_critical_step(ten) / net_critical_step(ten, 0.9) == pytest.approx(13.12, abs=0.01)


def test_constant_weights_are_as_stable_in_mean_square_as_in_the_mean() -> None:
    """Every update uses ages 0 and 1 with the weights 1 and -0.2: nothing varies, so nothing is lost."""
    weights = NetWeights({0: 1.0, 1: -0.2}, {0: 1.0 + 0.04, 1: 2 * -0.2})
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True)):
        mean = net_critical_step(weights, momentum, nesterov=nesterov)
        assert net_mean_square_step(weights, momentum, nesterov=nesterov) == pytest.approx(mean, rel=1e-8)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.5, False), (0.5, True)])
def test_second_moments_turn_at_the_mean_square_limit(momentum: float, nesterov: bool) -> None:
    """The exact second moments (a matrix of them) shrink 2 % below the limit, and grow 2 % beyond it."""
    patterns = [({0: 1.0}, 0.3), ({2: 1.0}, 0.4), ({0: 0.5, 3: 0.5}, 0.3)]
    by_age: dict[int, float] = {}
    by_gap: dict[int, float] = {}
    for used, share in patterns:
        for age, weight in used.items():
            by_age[age] = by_age.get(age, 0.0) + share * weight
            for other, another in used.items():
                by_gap[abs(age - other)] = by_gap.get(abs(age - other), 0.0) + share * weight * another
    limit = net_mean_square_step(NetWeights(by_age, by_gap), momentum, nesterov=nesterov)
    assert limit < 0.97 * net_critical_step(NetWeights(by_age, by_gap), momentum, nesterov=nesterov)

    def radius(step: float) -> float:
        size = 5  # x_k .. x_{k-3}, and the momentum
        total = np.zeros((size**2, size**2))
        for used, share in patterns:
            gradient = np.zeros(size)
            for age, weight in used.items():
                gradient[age] = step * weight
            velocity = gradient.copy()
            velocity[4] += momentum
            move = np.zeros((size, size))
            move[0, 0] = 1
            move[0] -= gradient + momentum * velocity if nesterov else velocity
            move[1, 0] = move[2, 1] = move[3, 2] = 1
            move[4] = velocity
            total += share * np.kron(move, move)
        return float(np.abs(np.linalg.eigvals(total)).max())

    assert radius(0.98 * limit) < 1 < radius(1.02 * limit)


def test_long_tails_are_lumped_together() -> None:
    """A thousandth of the weight on ages up to 2,000 moves the limit by less than 1 %."""
    tail = dict.fromkeys(range(21, 2001), 0.0009 / 1980)
    weights = NetWeights.of_delays({**dict.fromkeys(range(20), 0.9991 / 20), **tail})
    assert len(weights.trimmed().by_age) < 30
    assert math.fsum(weights.trimmed().by_age.values()) == pytest.approx(1.0)
    short = NetWeights.of_delays(dict.fromkeys(range(20), 0.05))
    assert net_mean_square_step(weights, 0.9) == pytest.approx(net_mean_square_step(short, 0.9), rel=0.01)


@pytest.mark.parametrize(
    ("ages", "said"),
    [
        ({}, "no weights are given"),
        ({-1: 1.0}, "at an age of -1 is not possible"),
        ({0: math.nan}, "a weight of nan"),
        ({0: 0.5, 1: -0.5}, "weights that add up to 0 do not descend"),
    ],
)
def test_impossible_weights_are_refused(ages: dict[int, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NetWeights(ages, {0: 1.0})


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_a_limit_that_lies_on_the_grid_is_found(momentum: float) -> None:
    """Histograms with round shares put roots where the search looks anyway, up to rounding."""
    generator = np.random.default_rng(0)
    for _ in range(150):
        drawn = generator.integers(0, 6, size=generator.integers(2, 12)).astype(float)
        if drawn[-1] == 0:
            continue
        shares = {age: float(share) for age, share in enumerate(drawn / drawn.sum())}
        limit = critical_step(shares, momentum)
        assert spectral_radius(0.999 * limit, shares, momentum) < 1
        assert spectral_radius(1.001 * limit, shares, momentum) > 1 - 1e-9


def test_products_of_weights_under_nesterov_are_those_of_the_weights_that_are_applied() -> None:
    r"""A step along $(1 + m) g_k - m g_{k-1}$ uses other weights than $g$: their products, counted one by one."""
    momentum, used = 0.9, np.array([0.7, -0.2, 0.0, 0.4])

    def products(weights: FloatArray) -> dict[int, float]:
        pairs = [(abs(i - j), a * b) for i, a in enumerate(weights) for j, b in enumerate(weights)]
        return {gap: sum(product for d, product in pairs if d == gap) for gap in range(len(weights))}

    applied = np.zeros(len(used) + 1)
    for age, weight in enumerate(used):
        applied[age] += (1 + momentum) * weight
        applied[age + 1] -= momentum * weight
    found = _by_gap(NetWeights(dict(enumerate(used)), products(used)), momentum)
    expected = products(applied)
    np.testing.assert_allclose(found[: len(expected)], [expected[gap] for gap in range(len(expected))], atol=1e-12)
    assert not found[len(expected) :].any()
