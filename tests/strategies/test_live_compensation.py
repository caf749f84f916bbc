"""The invariants J1-J11 and the known values of the LGC-SGD specification."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import floor, sqrt
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Ticket
from paceline.delays import Delay
from paceline.engine.build import warn_of_settings_without_effect
from support.digits import Noted, digits, digits_task, linear, rows, train, weights
from support.quadratic import path, quadratic, rounds_of
from support.updates import answers, arrivals, update_times, updates

RANDOM = pl.delays.ShiftedExponential(0.05, 0.02)
Recall = Literal["complete", "block", "abandon"]


def fleet(recall: Recall = "complete", workers: int = 10, delay: Delay = RANDOM) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(delay, workers=workers, recall=recall)


def constant(*seconds: float, recall: Recall = "complete") -> pl.SimulatedFleet:
    return pl.SimulatedFleet([pl.delays.Constant(s) for s in seconds], recall=recall)


def order_statistic(quorum: int, workers: int = 10) -> tuple[float, float]:
    """Mean and variance of the time of the ``quorum``-th of the workers, each 0.05 + Exp(0.02)."""
    ranks = range(workers - quorum + 1, workers + 1)
    return 0.05 + 0.02 * sum(1 / i for i in ranks), 0.0004 * sum(1 / i**2 for i in ranks)


# Invariants


@pytest.mark.parametrize("recall", [True, False])
def test_j1_with_a_quorum_of_all_lgc_and_k_sgd_are_full_sgd_bit_for_bit(recall: bool) -> None:
    full = train(digits_task(), pl.Synchronous(), fleet(), updates=15)
    for strategy in (pl.LiveCompensation(10, blocks=4, recall=recall), pl.FastestK(10)):
        run = train(digits_task(), strategy, fleet(), updates=15)
        assert torch.equal(weights(run.model), weights(full.model))
        assert rows(run) == rows(full)


def test_j2_whole_batches_make_scaled_unscaled_and_unblocked_the_same() -> None:
    """To rounding: 1e-12."""
    whole = train(digits_task(), pl.LiveCompensation(7, blocks=1), fleet(), updates=15)
    for scale in (True, False):
        run = train(digits_task(), pl.LiveCompensation(7, blocks=4, scale=scale), fleet(), updates=15)
        torch.testing.assert_close(weights(run.model), weights(whole.model), rtol=0, atol=1e-12)
        assert update_times(run.trace) == update_times(whole.trace)


def test_j3_what_was_added_up_is_the_mean_of_everybody_less_the_last_compensation() -> None:
    """On F_i = a_i (x - b_i)^2 / 2, to 1e-12: the sum of all steps, and e_{T-1}, against the mean gradients."""
    a, b, rate, quorum = np.linspace(0.5, 2, 10), np.arange(10.0), 0.1, 7
    task, strategy = quadratic(b.tolist(), a.tolist()), pl.LiveCompensation(quorum, blocks=1)
    xs = path(task, strategy, fleet(), 40, lr=rate, seed=3)
    steps = [(before - after) / rate for before, after in pairwise(xs)]
    means = [float(np.mean(a * (x - b))) for x in xs[:-1]]
    trace = pl.simulate(strategy, fleet(), pl.Stop(updates=40), seed=3)
    fastest = sorted(updates(trace)[-1].workers)
    gradients = a * (xs[-2] - b)
    rest = [i for i in range(10) if i not in fastest]
    last_compensation = gradients[rest].sum() / 10 - (10 - quorum) / 10 * gradients[fastest].mean()
    assert sum(steps) + last_compensation == pytest.approx(sum(means), abs=1e-12 / rate)
    assert abs(last_compensation) > 0.01  # the equation would not hold without it


@pytest.mark.parametrize("quorum", [1, 3, 7, 9])
def test_j3_over_its_life_every_gradient_carries_the_weight_one_nth(quorum: int) -> None:
    total: dict[Ticket, Fraction] = defaultdict(Fraction)
    made = updates(pl.simulate(pl.LiveCompensation(quorum, blocks=4), fleet(), pl.Stop(updates=30), seed=1))
    for update in made:
        for ticket, weight in update.step.weights.items():
            total[ticket] += weight
    settled = {ticket: weight for ticket, weight in total.items() if ticket.version < made[-1].version}
    assert len(settled) == 29 * 10
    assert set(settled.values()) == {Fraction(1, 10)}


def test_j4_a_round_of_equal_gradients_leaves_nothing_to_compensate() -> None:
    """With F_i = a_i x^2 / 2 - x all gradients are -1 at x = 0 and differ later: e_0 = 0, e_1 is not."""
    a = [0.5, 1.0, 1.5, 2.0]
    task = quadratic([1 / value for value in a], a)
    crew = pl.SimulatedFleet(rounds_of(["013", "012", "123"], 4), recall="complete")
    live, fastest = (path(task, rule, crew, 3) for rule in (pl.LiveCompensation(3, blocks=1), pl.FastestK(3)))
    assert live[:3] == pytest.approx(fastest[:3], abs=1e-15)
    assert abs(live[3] - fastest[3]) > 1e-3


def test_j5_with_identical_workers_lgc_is_full_sgd() -> None:
    """To rounding: 1e-12. Every worker has a copy of the same 32 samples, and each batch is all of them."""
    (x, y), test = digits()
    task = pl.Task(linear(), cross_entropy, train=(x[:32].repeat(10, 1), y[:32].repeat(10)), test=test)

    def final(strategy: pl.strategy.Strategy) -> torch.Tensor:
        run = pl.train(
            task,
            strategy=strategy,
            fleet=fleet(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            stop=pl.Stop(updates=20),
            partition=Copies(),
        )
        return weights(run.model)

    torch.testing.assert_close(final(pl.LiveCompensation(7, blocks=1)), final(pl.Synchronous()), rtol=0, atol=1e-12)


class Copies:
    """Worker i has the i-th copy of the data."""

    def shards(self, samples: object, workers: int, generator: np.random.Generator) -> Sequence[np.ndarray]:
        return [np.arange(32 * i, 32 * (i + 1)) for i in range(workers)]


@given(workers=st.integers(2, 8), data=st.data())
def test_j6_the_weights_of_a_compensation_add_up_to_nothing(workers: int, data: st.DataObject) -> None:
    quorum = data.draw(st.integers(1, workers - 1))
    trace = pl.simulate(pl.LiveCompensation(quorum, blocks=1), fleet(workers=workers), pl.Stop(updates=8))
    for update in updates(trace)[1:]:
        compensation = [weight for ticket, weight in update.step.weights.items() if ticket.version < update.version]
        assert sum(compensation) == 0
        assert sorted(compensation) == sorted(
            [Fraction(1, workers)] * (workers - quorum) + [-Fraction(workers - quorum, workers * quorum)] * quorum
        )


def test_j7_relabelling_the_workers_leaves_the_path_unchanged() -> None:
    """To rounding: 1e-12."""
    b, new = [1.0, 2.0, 4.0, 9.0, 5.0], [3, 0, 4, 1, 2]
    delays = [
        pl.delays.Empirical(values, in_order=True) for values in np.random.default_rng(5).uniform(1, 2, size=(5, 20))
    ]
    strategy = pl.LiveCompensation(3, blocks=1)
    before = path(quadratic(b), strategy, pl.SimulatedFleet(delays, recall="complete"), 20)
    crew = pl.SimulatedFleet([delays[i] for i in new], recall="complete")
    after = path(quadratic([b[i] for i in new]), strategy, crew, 20)
    assert after == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize("strategy", [pl.LiveCompensation(7, blocks=1), pl.FastestK(7)])
def test_j8_while_the_delays_are_held_the_fastest_stay_the_same(strategy: pl.strategy.Strategy) -> None:
    held, redrawn = (
        {update.workers for update in updates(pl.simulate(strategy, crew, pl.Stop(updates=50), seed=2))}
        for crew in (fleet(delay=pl.delays.ShiftedExponential(0.05, 0.02, h=50)), fleet())
    )
    assert len(held) == 1
    assert len(redrawn) > 25


@pytest.mark.parametrize("rule", [pl.LiveCompensation, pl.FastestK])
def test_j9_an_iteration_takes_no_longer_with_a_smaller_quorum(
    rule: type[pl.LiveCompensation] | type[pl.FastestK],
) -> None:
    durations = np.array(
        [
            np.diff(update_times(pl.simulate(strategy, fleet(), pl.Stop(updates=60), seed=4)), prepend=0.0)
            for strategy in (*(rule(quorum) for quorum in range(1, 11)), pl.Synchronous())
        ]
    )
    assert (np.diff(durations, axis=0) >= -1e-11).all()
    assert durations[-1] == pytest.approx(durations[-2], abs=1e-11)
    assert (durations[0] < durations[-1]).all()


def test_j10_time_does_not_depend_on_the_gradients() -> None:
    strategy = pl.LiveCompensation(7, blocks=4)
    without_a_model = update_times(pl.simulate(strategy, fleet(), pl.Stop(updates=12), seed=6))
    for rate in (0.001, 1.0):
        run = train(digits_task(linear(seed=int(rate))), strategy, fleet(), updates=12, lr=rate, seed=6)
        assert update_times(run.trace) == without_a_model


@pytest.mark.parametrize("recall", [True, False])
def test_j11_with_warm_up_to_the_end_lgc_is_full_sgd_bit_for_bit(recall: bool) -> None:
    full = train(digits_task(), pl.Synchronous(), fleet(), updates=15)
    live = train(digits_task(), pl.LiveCompensation(7, blocks=4, recall=recall, warm_up=15), fleet(), updates=15)
    assert torch.equal(weights(live.model), weights(full.model))
    assert rows(live) == rows(full)


# The algorithm, written out


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
def test_lgc_with_momentum_and_weight_decay_is_the_algorithm_written_out(
    evaluation: Literal["fused", "exact"],
) -> None:
    """To 1e-10, against gradients taken worker by worker, e_t kept by hand, and torch's SGD on a model of its own."""
    recorded, workers, quorum, rounds = Noted(), 5, 3, 12
    crew = pl.SimulatedFleet(RANDOM, workers=workers, recall="complete", evaluation=evaluation)
    run = pl.train(
        digits_task(),
        strategy=pl.LiveCompensation(quorum, blocks=4),
        fleet=crew,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4),
        stop=pl.Stop(updates=rounds),
        sampling=recorded,
        seed=8,
    )
    (x, y), _ = digits()
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    compensation = torch.zeros_like(weights(model))
    for number, update in enumerate(updates(run.trace)):
        gradients = []
        for worker in range(workers):
            batch = recorded.batch(worker, number)
            found = torch.autograd.grad(cross_entropy(model(x[batch]), y[batch]), list(model.parameters()))
            gradients.append(torch.cat([gradient.flatten() for gradient in found]))
        mean = torch.stack([gradients[i] for i in sorted(update.workers)]).mean(dim=0)
        late = torch.stack([gradients[i] for i in range(workers) if i not in update.workers])
        step = mean + compensation
        compensation = late.sum(dim=0) / workers - (workers - quorum) / workers * mean
        model.weight.grad, model.bias.grad = step[:640].view(10, 64).clone(), step[640:].clone()
        optimizer.step()
    torch.testing.assert_close(weights(run.model), weights(model), rtol=0, atol=1e-10)


def test_the_weights_of_the_second_step_are_those_of_equation_7() -> None:
    crew = constant(1.0, 1.1, 1.2, 2.0)
    first, second = updates(pl.simulate(pl.LiveCompensation(3, blocks=1), crew, pl.Stop(updates=2)))
    assert {t.worker: weight for t, weight in first.step.weights.items()} == dict.fromkeys(range(3), Fraction(1, 3))
    by_version = {(t.version, t.worker): weight for t, weight in second.step.weights.items()}
    assert by_version == {
        (0, 0): Fraction(-1, 12), (0, 1): Fraction(-1, 12), (0, 2): Fraction(-1, 12), (0, 3): Fraction(1, 4),
        (1, 0): Fraction(1, 3), (1, 1): Fraction(1, 3), (1, 2): Fraction(1, 3),
    }  # fmt: skip


def test_workers_that_tie_for_the_last_place_of_the_quorum_are_taken_by_index() -> None:
    trace = pl.simulate(pl.LiveCompensation(2, blocks=1), constant(2.0, 1.0, 1.0, 1.0), pl.Stop(updates=3))
    assert [sorted(update.workers) for update in updates(trace)] == [[1, 2]] * 3
    assert update_times(trace) == [1.0, 2.0, 3.0]


# Known values

ITERATIONS = 1200


@cache
def ideal_times(strategy: pl.strategy.Strategy) -> list[float]:
    return update_times(pl.simulate(strategy, fleet(), pl.Stop(updates=ITERATIONS), seed=0))


@pytest.mark.parametrize(
    ("quorum", "mean", "saving"),
    [
        (5, 0.0629127, 42.058),
        (6, 0.0669127, 38.374),
        (7, 0.0719127, 33.769),
        (8, 0.0785794, 27.630),
        (9, 0.0885794, 18.420),
        (10, 0.1085794, 0.0),
    ],
)
def test_an_iteration_takes_the_order_statistic(quorum: int, mean: float, saving: float) -> None:
    """Over 1200 iterations (seed 0): the mean to 4 standard errors, the variance to 20 %, the saving to 1.2 points."""
    exact_mean, exact_variance = order_statistic(quorum)
    assert exact_mean == pytest.approx(mean, abs=5e-8)
    assert 100 * (1 - exact_mean / order_statistic(10)[0]) == pytest.approx(saving, abs=5e-4)
    live, full = np.diff(ideal_times(pl.LiveCompensation(quorum, blocks=1)), prepend=0.0), ideal_times(pl.Synchronous())
    assert live.mean() == pytest.approx(exact_mean, abs=4 * sqrt(exact_variance / ITERATIONS))
    assert live.var() == pytest.approx(exact_variance, rel=0.2)
    assert 100 * (1 - live.sum() / full[-1]) == pytest.approx(saving, abs=1.2)


def test_the_saving_with_two_of_sixty_epochs_of_warm_up() -> None:
    """Over 1200 iterations (seed 0): 32.644 %, to 1.2 points; and less than without by about 1/30 of it."""
    full, warm, cold = (
        ideal_times(strategy)[-1]
        for strategy in (
            pl.Synchronous(),
            pl.LiveCompensation(7, warm_up=ITERATIONS // 30),
            pl.LiveCompensation(7, blocks=1),
        )
    )
    saving, without = (100 * (1 - total / full) for total in (warm, cold))
    assert saving == pytest.approx(32.644, abs=1.2)
    assert without - saving == pytest.approx(33.769 / 30, abs=0.3)


FIGURE_1 = pl.SimulatedFleet(
    [
        pl.delays.Empirical(times, in_order=True)
        for times in zip((1.0, 1.2, 2.0), (2.0, 1.5, 1.1), (1.3, 0.9, 2.5), strict=True)
    ],
    recall="complete",
)


@pytest.mark.parametrize(
    ("strategy", "times"),
    [
        (pl.Synchronous(), [2.0, 4.0, 6.5]),
        (pl.FastestK(2), [1.2, 2.7, 4.0]),
        (pl.LiveCompensation(2, blocks=1), [1.2, 2.7, 4.0]),
    ],
)
def test_figure_1_takes_6_5_in_full_and_4_with_two_of_three(strategy: pl.strategy.Strategy, times: list[float]) -> None:
    assert update_times(pl.simulate(strategy, FIGURE_1, pl.Stop(updates=3))) == times


def test_the_tiny_path() -> None:
    """B = (1, 2, 4, 9), K = 3, eta = 0.1: to 1e-6, and the last compensation, from a sixth step, to 1e-6."""
    crew = pl.SimulatedFleet(rounds_of(["012", "123", "023", "013", "012", "123"], 4), recall="complete")
    xs = path(quadratic([1.0, 2.0, 4.0, 9.0]), pl.LiveCompensation(3, blocks=1), crew, 6)
    assert xs[:6] == pytest.approx([0.0, 0.2333333, 0.8766667, 1.1556667, 1.3734333, 1.4694233], abs=1e-7)
    assert (xs[5] - xs[6]) / 0.1 - (xs[5] - (2 + 4 + 9) / 3) == pytest.approx(-1.6666667, abs=1e-6)


def test_the_stationary_variance_is_two_eta_of_k_sgds() -> None:
    """B = 0..9, eta = 0.1, 2000 updates (seed 0): K-SGD's variance to 30 % (3 standard errors), LGC's to 10 %.

    Along one and the same sequence of fastest workers LGC's deviation from the optimum is the increment of K-SGD's.
    """
    task = quadratic([float(i) for i in range(10)], start=4.5)
    k_sgd, live = (
        np.array(path(task, rule, fleet(), 2000)) - 4.5 for rule in (pl.FastestK(7), pl.LiveCompensation(7, blocks=1))
    )
    assert live[1:] == pytest.approx(np.diff(k_sgd), abs=1e-12)
    assert k_sgd[200:].var() == pytest.approx(0.02067669, rel=0.3)
    assert live[200:].var() == pytest.approx(0.00413534, rel=0.1)
    assert pytest.approx(2 * 0.1, rel=1e-5) == 0.00413534 / 0.02067669


A, B = np.linspace(0.5, 2, 10), np.arange(10.0)


def optimum(shares: Sequence[float]) -> float:
    """Where the gradients of the workers, each with its share, cancel."""
    return float((np.array(shares) * A * B).sum() / (np.array(shares) * A).sum())


@pytest.mark.parametrize(
    ("strategy", "late", "recall", "expected"),
    [
        (pl.Synchronous(), 2.0, "complete", 5.6),
        (pl.LiveCompensation(7, blocks=4), 2.0, "complete", 5.6),
        (pl.LiveCompensation(7, blocks=4, recall=False), 2.0, "block", 5.6),
        (pl.FastestK(7), 2.0, "complete", 11 / 3),
        (pl.FastestK(7, stop_late=False), 2.0, "complete", 11 / 3),
        # Partial work: 2 of 4 blocks are done when the others are ready, and 0 of 4.
        (pl.LiveCompensation(7, blocks=4), 1.6, "abandon", optimum([1.0] * 7 + [0.5] * 3)),
        (pl.LiveCompensation(7, blocks=4, scale=False), 1.6, "abandon", 5.6),
        (pl.LiveCompensation(7, blocks=4), 5.0, "abandon", 11 / 3),
        (pl.LiveCompensation(7, blocks=4, scale=False), 5.0, "abandon", 11 / 3),
    ],
)
def test_with_persistent_stragglers_training_ends_at(
    strategy: pl.strategy.Strategy, late: float, recall: Recall, expected: float
) -> None:
    """F_i = a_i (x - b_i)^2 / 2 with workers 7, 8, 9 always late: to 1e-6."""
    crew = constant(*[1.0] * 7, *[late] * 3, recall=recall)
    xs = path(quadratic(B.tolist(), A.tolist(), samples=4), strategy, crew, 400)
    assert xs[-1] == pytest.approx(expected, abs=1e-6)


def test_the_optima_are_those_of_the_specification() -> None:
    assert optimum([1.0] * 10) == pytest.approx(5.6, abs=1e-12)
    assert optimum([1.0] * 7 + [0.0] * 3) == pytest.approx(3.6666667, abs=1e-7)
    assert 3.7 < optimum([1.0] * 7 + [0.5] * 3) < 5.5


# How a recall is answered


@given(blocks=st.integers(1, 8), quorum=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_recalled_worker_finishes_its_block(blocks: int, quorum: int, seed: int) -> None:
    """Done = min(s, floor(s (elapsed) / X_i) + 1), handed in at the end of that block; and always at least one (B2)."""
    durations = [round(float(d), 3) for d in np.random.default_rng(seed).uniform(0.1, 1.0, size=5)]
    trace = pl.simulate(
        pl.LiveCompensation(quorum, blocks=blocks), constant(*durations, recall="block"), pl.Stop(updates=10)
    )
    answered = answers(trace)
    assert answered
    for answer in answered:
        lasts = Fraction(round(1000 * durations[answer.ticket.worker]), 1000)
        elapsed = Fraction(round(10**12 * (answer.recalled - answer.started)), 10**12)
        expected = min(blocks, floor(blocks * elapsed / lasts) + 1)
        assert answer.done == expected
        assert answer.arrived - answer.started == pytest.approx(float(lasts * expected / blocks), abs=2e-12)


@given(blocks=st.integers(1, 8), quorum=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_recalled_worker_abandons_its_block(blocks: int, quorum: int, seed: int) -> None:
    """Done = floor(s X_(K) / X_i), maybe none; handed in at once, so that every iteration takes X_(K)."""
    durations = sorted(round(float(d), 3) for d in np.random.default_rng(seed).uniform(0.1, 1.0, size=5))
    trace = pl.simulate(
        pl.LiveCompensation(quorum, blocks=blocks), constant(*durations, recall="abandon"), pl.Stop(updates=6)
    )
    last = durations[quorum - 1]
    assert update_times(trace) == pytest.approx([last * (i + 1) for i in range(6)], abs=1e-11)
    answered = answers(trace)
    assert len(answered) == 5 * (5 - quorum)
    for answer in answered:
        assert answer.arrived == answer.recalled
        ratio = Fraction(round(1000 * last), round(1000 * durations[answer.ticket.worker]))
        assert answer.done == min(blocks, floor(blocks * ratio))


def test_a_recalled_worker_completes_its_batch_at_once() -> None:
    trace = pl.simulate(pl.LiveCompensation(2, blocks=4), constant(1.0, 1.0, 9.0), pl.Stop(updates=4))
    assert [(answer.recalled, answer.arrived, answer.done) for answer in answers(trace)] == [
        (1.0, 1.0, 4), (2.0, 2.0, 4), (3.0, 3.0, 4),
    ]  # fmt: skip


def test_a_block_that_ends_exactly_at_the_recall_is_followed_by_one_more() -> None:
    """The test stands at the head of the loop: s = 4, X_(K) = 1, X_i = 2 gives floor(2) + 1 = 3 blocks, after 1.5."""
    trace = pl.simulate(pl.LiveCompensation(1, blocks=4), constant(1.0, 2.0, recall="block"), pl.Stop(updates=2))
    (answer,) = answers(trace)
    assert (answer.recalled, answer.arrived, answer.done) == (1.0, 1.5, 3)


def test_a_straggler_at_its_last_block_hands_in_the_whole_batch() -> None:
    trace = pl.simulate(pl.LiveCompensation(1, blocks=4), constant(1.0, 1.2, recall="block"), pl.Stop(updates=2))
    (answer,) = answers(trace)
    assert (answer.done, answer.arrived) == (4, 1.2)


def test_late_workers_that_finish_first_hold_up_the_next_update() -> None:
    """Without recall the slowest bounds the throughput: 1, then 3, 6, 9; nothing is ever partial."""
    trace = pl.simulate(pl.LiveCompensation(2, blocks=4, recall=False), constant(1.0, 1.0, 3.0), pl.Stop(updates=5))
    assert update_times(trace) == [1.0, 3.0, 6.0, 9.0, 12.0]
    assert {arrived.done for arrived in arrivals(trace)} == {4}
    assert answers(trace) == []


def seconds_an_update(strategy: pl.strategy.Strategy, on: pl.SimulatedFleet, updates: int = 600) -> float:
    return update_times(pl.simulate(strategy, on, pl.Stop(updates=updates)))[-1] / updates


def test_by_default_late_workers_are_recalled_to_some_purpose(caplog: pytest.LogCaptureFixture) -> None:
    """On the paper's fleet most of the ideal saving of 33.8 %, and on one with lasting stragglers all of it."""
    full = seconds_an_update(pl.Synchronous(), fleet())
    ideal = 1 - seconds_an_update(pl.LiveCompensation(7), fleet(recall="complete")) / full
    saved = 1 - seconds_an_update(pl.LiveCompensation(7), fleet(recall="block")) / full
    finishing = 1 - seconds_an_update(pl.LiveCompensation(7, recall=False), fleet(recall="block")) / full
    assert finishing < 0.25
    assert 0.28 < saved < ideal < 0.36
    lasting = constant(*[1.0] * 7, *[4.0] * 3, recall="block")
    assert seconds_an_update(pl.LiveCompensation(7), lasting) == 1.0  # and not 4.0, as if nobody were recalled
    assert not caplog.records


VAIN = "recalls late workers in vain: with blocks=1"


@pytest.mark.parametrize(
    ("strategy", "recall", "warning"),
    [
        (pl.LiveCompensation(2, blocks=1), "block", VAIN),
        (pl.Grouped([[0, 1], [2]], inside=pl.LiveCompensation(1, blocks=1)), "block", VAIN),
        (pl.LiveCompensation(2, blocks=1), "abandon", "makes up for nothing: with blocks=1 and recall='abandon'"),
        (pl.LiveCompensation(2, blocks=1), "complete", ""),
        (pl.LiveCompensation(2, blocks=1, recall=False), "block", ""),
        (pl.LiveCompensation(2, blocks=2), "block", ""),
        (pl.FastestK(2), "block", ""),
        (pl.EnsembleCompression(every=1), "block", "has no step for diversity=0.6: all 1 between two ensembles distil"),
        (pl.EnsembleCompression(every=1, diversity=0.0), "block", ""),
        (pl.EnsembleCompression(every=2), "block", ""),
    ],
    ids=repr,
)
def test_settings_without_effect_are_told(
    strategy: pl.strategy.Strategy, recall: Recall, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    pl.simulate(strategy, constant(1.0, 1.0, 2.0, recall=recall), pl.Stop(updates=2))
    assert [warning in message for message in caplog.messages] == ([True] if warning else [])


def test_a_recall_in_vain_is_told_of_real_workers_too(caplog: pytest.LogCaptureFixture) -> None:
    for blocks in (1, 4):
        warn_of_settings_without_effect(pl.LiveCompensation(2, blocks=blocks), pl.ProcessFleet(3))
    (message,) = caplog.messages
    assert VAIN in message


def test_the_finish_model_saves_less_than_the_ideal_one() -> None:
    """Seed 0, 600 iterations: full, finish, ideal in this order, with at least 5 % of the full time between them."""
    full, finish, ideal = (
        update_times(pl.simulate(strategy, fleet(), pl.Stop(updates=600), seed=0))[-1]
        for strategy in (pl.Synchronous(), pl.LiveCompensation(7, recall=False), pl.LiveCompensation(7, blocks=1))
    )
    assert ideal + 0.05 * full < finish
    assert finish + 0.05 * full < full


def compensation_weights(strategy: pl.LiveCompensation, *seconds: float) -> dict[int, Fraction]:
    """What the second step adds for the first round, by worker, if the late abandon their block."""
    _, second = updates(pl.simulate(strategy, constant(*seconds, recall="abandon"), pl.Stop(updates=2)))
    return {ticket.worker: weight for ticket, weight in second.step.weights.items() if ticket.version == 0}


def test_scaled_partial_gradients_count_for_the_blocks_done() -> None:
    """Blocks done: 3 and 1 of 4, of N = 4 workers, K = 2; the full share of the fastest is taken back."""
    assert compensation_weights(pl.LiveCompensation(2, blocks=4), 1.0, 1.0, 1.25, 3.0) == {
        0: Fraction(-1, 4), 1: Fraction(-1, 4), 2: Fraction(3, 16), 3: Fraction(1, 16),
    }  # fmt: skip


def test_unscaled_partial_gradients_count_in_full() -> None:
    assert compensation_weights(pl.LiveCompensation(2, blocks=4, scale=False), 1.0, 1.0, 1.25, 3.0) == {
        0: Fraction(-1, 4), 1: Fraction(-1, 4), 2: Fraction(1, 4), 3: Fraction(1, 4),
    }  # fmt: skip


def test_scaled_a_worker_with_no_block_done_counts_as_zero() -> None:
    assert compensation_weights(pl.LiveCompensation(2, blocks=4), 1.0, 1.0, 1.25, 9.0) == {
        0: Fraction(-1, 4), 1: Fraction(-1, 4), 2: Fraction(3, 16),
    }  # fmt: skip


def test_unscaled_a_worker_with_no_block_done_counts_as_the_mean_of_the_fastest() -> None:
    """Its g is g': 1/4 of g' comes back, so each of the two fastest loses 1/8 instead of 1/4."""
    assert compensation_weights(pl.LiveCompensation(2, blocks=4, scale=False), 1.0, 1.0, 1.25, 9.0) == {
        0: Fraction(-1, 8), 1: Fraction(-1, 8), 2: Fraction(1, 4),
    }  # fmt: skip


def test_unscaled_with_nothing_done_lgc_walks_the_path_of_k_sgd() -> None:
    """To 1e-13."""
    task, crew = quadratic(B.tolist(), A.tolist(), samples=4), constant(*[1.0] * 7, *[5.0] * 3, recall="abandon")
    live = path(task, pl.LiveCompensation(7, blocks=4, scale=False), crew, 50)
    assert live == pytest.approx(path(task, pl.FastestK(7), crew, 50), abs=1e-13)


def test_a_partial_gradient_is_the_mean_over_the_samples_of_the_blocks_done() -> None:
    """One late worker with samples b = 0, 0, 10, 10 in two blocks, of which one is done: g = x - 0, never x - 5."""
    task = quadratic([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 10.0, 10.0])
    recorded = Noted()
    run = pl.train(
        task,
        strategy=pl.LiveCompensation(1, blocks=2, scale=False),
        fleet=constant(1.0, 1.5, recall="abandon"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        stop=pl.Stop(updates=2),
        batch_size=4,
        partition=Halves(),
        sampling=recorded,
        every=pl.Every(updates=1),
    )
    done = recorded.draws[1][0][:2]
    late = sum(0.0 if sample < 6 else 10.0 for sample in done) / 2
    # x: 0 -> 1; then g' = 1 - 1 = 0 and e = (0 - late) / 2 - (0 - 1) / 2
    assert [row.loss for row in run.history] == pytest.approx([0.0, 1.0, 1.0 + (late - 1) / 2], abs=1e-12)
    assert recorded.draws[1][1][:2] == recorded.draws[1][0][2:]


class Halves:
    """The first half to worker 0, the second to worker 1."""

    def shards(self, samples: object, workers: int, generator: np.random.Generator) -> Sequence[np.ndarray]:
        return [np.arange(4), np.arange(4, 8)]


# Warm-up


def test_warm_up_waits_for_everybody_and_leaves_nothing_to_compensate() -> None:
    trace = pl.simulate(pl.LiveCompensation(2, warm_up=2), constant(1.0, 1.0, 3.0), pl.Stop(updates=5))
    made = updates(trace)
    assert [update.at for update in made] == [3.0, 6.0, 7.0, 8.0, 9.0]
    for update in made[:2]:
        assert {ticket.worker: weight for ticket, weight in update.step.weights.items()} == dict.fromkeys(
            range(3), Fraction(1, 3)
        )
    assert {t.worker: w for t, w in made[2].step.weights.items()} == {0: Fraction(1, 2), 1: Fraction(1, 2)}
    assert len(made[3].step.weights) == 5


def test_k_sgd_warms_up_too() -> None:
    trace = pl.simulate(pl.FastestK(2, warm_up=1), constant(1.0, 1.0, 3.0), pl.Stop(updates=3))
    assert [(update.at, sorted(update.workers)) for update in updates(trace)] == [
        (3.0, [0, 1, 2]), (4.0, [0, 1]), (5.0, [0, 1]),
    ]  # fmt: skip


# Inside groups


def test_inside_groups_too_every_gradient_carries_the_weight_of_its_share_of_the_group() -> None:
    groups = [[0, 1, 2], [3, 4, 5, 6]]
    strategy = pl.Grouped(groups, inside=pl.LiveCompensation(2, blocks=2))
    delays = [pl.delays.ShiftedExponential(0.05 * (1 + worker // 3), 0.02) for worker in range(7)]
    made = updates(pl.simulate(strategy, pl.SimulatedFleet(delays, recall="complete"), pl.Stop(updates=60), seed=3))
    total: dict[Ticket, Fraction] = defaultdict(Fraction)
    for update in made:
        for ticket, weight in update.step.weights.items():
            total[ticket] += weight
    for group in groups:
        settled = [w for ticket, w in total.items() if ticket.worker in group and ticket.version < made[-20].version]
        assert len(settled) > 30
        assert set(settled) == {Fraction(1, len(group))}
