"""Strategies that hand in models: what is given out, and what is refused with which reason."""

from dataclasses import dataclass
from fractions import Fraction

import pytest

import paceline as pl
from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.messages import (
    Arrived,
    Instruction,
    Joined,
    Start,
    Step,
    Work,
    distilled_steps,
    gradient,
    local_steps,
)
from paceline.delays import Constant

EC = pl.EnsembleCompression


def given_out(instructions: list[Instruction]) -> list[tuple[int, Work]]:
    return [(each.ticket.worker, each.ticket.work) for each in instructions if isinstance(each, Start)]


def test_the_rule_stays_and_the_work_changes() -> None:
    coordinator = Coordinator(EC(every=10, compression_steps=2))
    first = coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    assert given_out(first) == [(0, local_steps(10)), (1, local_steps(10))]
    tickets = [each.ticket for each in first if isinstance(each, Start)]
    assert coordinator.receive(Arrived(1.0, tickets[0], 10)) == []
    second = coordinator.receive(Arrived(2.0, tickets[1], 10))
    assert second[0] == Step(dict.fromkeys(tickets, Fraction(1, 2)))
    assert given_out(second) == [(0, distilled_steps(2)), (1, distilled_steps(2))]


def test_groups_count_their_own_rounds() -> None:
    strategy = pl.ModelAveraging(every=4, waits=pl.Grouped([[0], [1]]))
    coordinator = Coordinator(strategy)
    starts = coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    assert given_out(starts) == [(0, local_steps(4)), (1, local_steps(4))]


@pytest.mark.parametrize(
    ("strategy", "rounds", "pieces"),
    [
        (pl.ModelAveraging(4, steps=10), 3, [local_steps(4), local_steps(4), local_steps(2)]),
        (EC(4, steps=10, diversity=0.0, compression_steps=1), 3,
         [local_steps(4), distilled_steps(4), distilled_steps(2)]),
        (EC(4, steps=10, compression_steps=1), 5,
         [local_steps(4), distilled_steps(1), local_steps(3), distilled_steps(1), local_steps(1)]),
        (EC(4, steps=9, compression_steps=1), 4,
         [local_steps(4), distilled_steps(1), local_steps(3), distilled_steps(1)]),
        (EC(4, steps=8, compression_steps=4), 2, [local_steps(4), distilled_steps(4)]),
        (EC(4, steps=12, compression_steps=4), 3, [local_steps(4), distilled_steps(4), distilled_steps(4)]),
        (EC(4, steps=8, compression_steps=0), 2, [local_steps(4), local_steps(4)]),
        (pl.FinalEnsemble(7), 1, [local_steps(7)]),
        (EC(100, steps=7), 1, [local_steps(7)]),
    ],
)  # fmt: skip
def test_a_limited_run_has_so_many_rounds_of_these_pieces(
    strategy: EC | pl.ModelAveraging, rounds: int, pieces: list[object]
) -> None:
    assert strategy.rounds == rounds
    assert [strategy.work(number) for number in range(rounds)] == pieces


def test_a_tenth_of_the_steps_compresses_unless_told() -> None:
    assert [EC(every).compressed for every in (10, 16, 500, 2000)] == [1, 2, 50, 200]
    assert EC(100, compression_steps=33).compressed == 33


def test_a_gradient_takes_one_mini_batch_in_however_many_blocks_and_a_model_one_for_each_step() -> None:
    assert [work.mini_batches for work in (gradient(), gradient(4), local_steps(5), distilled_steps(3))] == [1, 1, 5, 3]


def test_a_regression_needs_two_models() -> None:
    EC(4, "regression").check(2, 16)
    EC(4).check(1, 16)
    with pytest.raises(pl.ConfigError, match="a regression over one model only scales it"):
        EC(4, "regression").check(1, 16)


def test_a_message_says_whether_a_value_may_be_left_out() -> None:
    with pytest.raises(pl.ConfigError, match=r"compression_steps='two': give a whole number, or None$"):
        EC(4, compression_steps="two")  # type: ignore[arg-type]
    with pytest.raises(pl.ConfigError, match=r"every='four': give a whole number$"):
        EC("four")  # type: ignore[arg-type]


def test_what_nobody_asked_for_is_not_done() -> None:
    assert not pl.FinalEnsemble(4).same_start
    assert pl.FinalEnsemble(4, same_start=True).same_start
    assert pl.ModelAveraging(4).recalibrate == 0


def test_but_at_least_one_step_where_there_is_something_to_distil() -> None:
    assert [EC(every).compressed for every in range(1, 8)] == [1] * 7
    assert EC(4, compression_steps=0).compressed == 0
    assert EC(4, distillation=0.0).compressed == EC(4, relabel=0.0).compressed == 0
    assert pl.FinalEnsemble(4).compressed == pl.FinalEnsemble(50).compressed == 0
    assert EC(4, steps=12).rounds == 5  # with diversity there are two exchanges a round
    assert [EC(4, steps=12).work(number) for number in range(5)] == [
        local_steps(4), distilled_steps(1), local_steps(3), distilled_steps(1), local_steps(3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pl.ModelAveraging(0), "ModelAveraging cannot communicate every 0 steps: at least 1"),
        (lambda: EC(0), "EnsembleCompression cannot communicate every 0 steps: at least 1"),
        (lambda: EC(-3), "cannot communicate every -3 steps"),
        (lambda: pl.FinalEnsemble(0), "cannot communicate every 0 steps"),
        (lambda: pl.ModelAveraging(4, steps=0), "ModelAveraging cannot make 0 steps: at least 1"),
        (lambda: EC(10, compression_steps=11), "a compression of 11 steps does not fit into 10 steps.*choose 0 to 10"),
        (lambda: EC(10, compression_steps=-1), "a compression of -1 steps does not fit"),
        (lambda: EC(10, "median"),  # type: ignore[arg-type]
         "weights='median' are unknown: choose one of simple, regression, margin"),
        (lambda: EC(10, relabel=1.5), "relabel=1.5 is not a fraction of the samples: choose 0 to 1"),
        (lambda: EC(10, "regression", relabel=0.0), "a regression needs samples to be fitted on"),
        (lambda: EC(10, distillation=-0.1), "distillation=-0.1 is not a weight of a loss"),
        (lambda: EC(10, diversity=float("nan")), "diversity=nan is not a weight of a loss"),
        (lambda: pl.ModelAveraging(4, momentum="lost"),  # type: ignore[arg-type]
         "momentum='lost' is unknown: choose kept or averaged"),
        (lambda: pl.ModelAveraging(4, recalibrate=-1), "recalibrate=-1 mini-batches are not possible"),
        (lambda: pl.ModelAveraging(4, waits=pl.LiveCompensation(2)), "cannot wait by LiveCompensation.*by parts"),
        (lambda: EC(4, waits=pl.LiveCompensation(2)), "cannot wait by LiveCompensation"),
        (lambda: pl.ModelAveraging(4, waits=pl.Grouped([[0]], inside=pl.Grouped([[0]], pl.LiveCompensation(1)))),
         "cannot wait by LiveCompensation"),
        (lambda: EC(4, waits=pl.Asynchronous()), "cannot wait by Asynchronous.*models of one round"),
        (lambda: EC(4, waits=pl.Grouped([[0], [1]])), "cannot wait by Grouped.*models of one round"),
        (lambda: pl.ModelAveraging(4, steps=8, waits=pl.Asynchronous()), "no common rounds: steps= counts"),
        (lambda: pl.ModelAveraging(4, momentum="averaged", waits=pl.Grouped([[0], [1]])), "momentum='averaged' is"),
        (lambda: pl.ModelAveraging(4, waits=EC(4)), "EnsembleCompression, which itself says what is handed in"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_reason(make: object, said: str) -> None:
    with pytest.raises(pl.ConfigError, match=said):
        make()  # type: ignore[operator]


@dataclass(frozen=True)
class Bare:
    """A rule without a check of its own."""

    def decide(self, ledger: object) -> list[object]:
        return []


def test_a_rule_of_ones_own_needs_no_check() -> None:
    rule: Strategy = Bare()  # type: ignore[assignment]
    pl.ModelAveraging(4, waits=rule).check(3, 16)
    EC(4, waits=rule).check(3, 16)


def test_without_a_model_a_piece_takes_the_time_of_its_mini_batches() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(1.5)], network=pl.Network(latency=0.25))
    trace = pl.simulate(pl.ModelAveraging(every=4), fleet, pl.Stop(updates=2))
    arrivals = [(fact.ticket.worker, fact.at) for fact in trace if isinstance(fact, Arrived)]
    assert arrivals == [(0, 4.25), (1, 6.25), (0, 10.5), (1, 12.5)]
