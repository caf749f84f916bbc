"""What a comparison chooses and says, from outcomes with known numbers: no training."""

import math
from dataclasses import replace

import pytest

from paceline.comparison.jobs import Noise, Outcome
from paceline.comparison.plan import Job, Plan, plan_of
from paceline.comparison.results import Comparison, comparison_of
from paceline.comparison.tables import comparison_rows, non_finite_line, speed_up
from paceline.comparison.verdict import verdict
from paceline.config.file import parse_config
from paceline.storage.metrics import Row
from paceline.trace.measure import Measures, WorkerTime
from support.tiny import TINY

SSGD, ASGD, FASTEST = 0, 1, 2  # indices in the file


def plan(text: str = TINY) -> Plan:
    return plan_of(parse_config(text))


def outcome(
    job: Job, reached_at: float, *, updates: int = 10, staleness: float = 0.0, wasted: float = 0.0, idle: float = 0.0
) -> Outcome:
    """A run of four workers that reaches the target at a time, or never if that is infinite."""
    reached = math.isfinite(reached_at)
    end = Row(updates, reached_at if reached else 12.0, 80, 1.0, 0.5 if reached else 0.1, staleness, 1.0)
    workers = tuple(WorkerTime(number, busy=10.0, wasted=wasted * 10, idle=idle) for number in range(4))
    for each in workers:
        each.influence = 0.1 if wasted and each.worker >= 2 else 1.0
        each.waited_for = 5 if each.worker >= 2 else 0
    measures = Measures(12.0, updates, staleness, math.ceil(staleness), workers, {0: 1.0}, {0: 1.0})
    return Outcome(job, (Row(0, 0.0, 0, 2.3, 0.1, 0.0, math.nan), end), measures, "seconds", None)


def compared(*outcomes: Outcome) -> Comparison:
    return comparison_of(plan(), outcomes)


def test_jobs_are_every_strategy_learning_rate_and_seed() -> None:
    jobs = plan().jobs
    assert len(jobs) == len(set(jobs)) == 5 * 2 * 2
    assert [job.strategy for job in jobs[:5]] == [0, 1, 2, 3, 4]  # strategies alternate
    assert {job.lr for job in jobs} == {0.1, 0.5}


def test_each_strategy_is_shown_with_the_learning_rate_that_reaches_the_target_first() -> None:
    found = compared(
        outcome(Job(SSGD, 0.1, 0), 9.0), outcome(Job(SSGD, 0.5, 0), 6.0),
        outcome(Job(ASGD, 0.1, 0), 3.0), outcome(Job(ASGD, 0.5, 0), math.inf),
    )  # fmt: skip
    assert [(entry.label, entry.lr, entry.time) for entry in found.entries] == [("asgd", 0.1, 3.0), ("ssgd", 0.5, 6.0)]
    assert speed_up(found.entries[0], found.entries[1]) == "2.00x"


def test_a_learning_rate_whose_seeds_are_not_all_done_is_not_chosen() -> None:
    found = compared(
        outcome(Job(SSGD, 0.1, 0), 9.0), outcome(Job(SSGD, 0.1, 1), 9.0), outcome(Job(SSGD, 0.5, 0), 1.0)
    )  # fmt: skip
    assert found.entries[0].lr == 0.1


def test_the_verdict_names_the_winner_its_price_and_the_learning_rates() -> None:
    said = " ".join(
        verdict(
            compared(
                outcome(Job(SSGD, 0.5, 0), 9.0, idle=10.0),
                outcome(Job(ASGD, 0.1, 0), 3.0, updates=40, staleness=2.8),
            )
        )
    )
    assert "asgd wins: it reaches 30.0% accuracy after 3.0 s, 3.0 times as fast as ssgd (9.0 s)." in said
    assert "asgd makes 4.0 updates in the time of one of ssgd, whose workers wait 50% of their time" in said
    assert "gradients that are 2.8 updates old on average, and a learning rate of 0.1 against 0.5." in said


def test_how_far_from_the_lower_bound() -> None:
    """Four workers that take 2, 2, 2 and 20 s; the synchronous rule needed ten updates; noise of four gradients."""
    slow = outcome(Job(SSGD, 0.5, 0), 9.0)
    for each in slow.measures.workers:
        each.contributions, each.busy, each.transfer = 5, 5 * (18.0 if each.worker == 3 else 1.5), 5 * 0.5
        each.busy += 5 * 1.5 if each.worker == 3 else 0.0
    found = compared(replace(slow, noise=Noise(4.0, unlike=False)), outcome(Job(ASGD, 0.1, 0), 3.0, updates=40))
    assert found.bound is not None
    rounds = 10 / (1 + 4.0 / 4)
    assert found.bound.seconds == pytest.approx(2.0 * rounds * (1 + 4.0 / 3))  # the slow one is not worth its share
    assert found.bound.workers == 3
    assert found.rows[0]["times_the_lower_bound"] == pytest.approx(3.0 / found.bound.seconds)
    said = " ".join(verdict(found))
    assert "The lower bound of theory is 23.3 s, with the 3 fastest workers; asgd takes 0.1 times as long." in said
    assert "It assumes workers of fixed speeds" in said
    assert "by the updates that ssgd needed" in said
    columns, rows = comparison_rows(found)
    assert rows[1][[column.heading for column in columns].index("times the\nbound")] == "0.4"


def test_without_the_noise_or_the_synchronous_rule_there_is_no_bound() -> None:
    assert compared(outcome(Job(SSGD, 0.1, 0), 9.0)).bound is None
    missed = replace(outcome(Job(SSGD, 0.1, 0), math.inf), noise=Noise(4.0, unlike=False))
    assert compared(missed, outcome(Job(ASGD, 0.1, 0), 3.0)).bound is None
    assert compared(outcome(Job(ASGD, 0.1, 0), 3.0)).bound is None


def test_the_verdict_names_workers_whose_contributions_are_thrown_away() -> None:
    said = verdict(compared(outcome(Job(SSGD, 0.1, 0), 3.0), outcome(Job(FASTEST, 0.1, 0), 9.0, wasted=0.4)))
    assert any(
        "throws away 40% of the computation: workers 2, 3 make up 9% of the updates instead of 50%" in sentence
        for sentence in said
    )


def test_the_verdict_says_which_strategies_cannot_be_told_apart() -> None:
    first, second, *_ = verdict(
        compared(
            outcome(Job(SSGD, 0.1, 0), 3.0), outcome(Job(SSGD, 0.1, 1), 6.0),
            outcome(Job(ASGD, 0.1, 0), 5.0), outcome(Job(ASGD, 0.1, 1), 7.0),
        )
    )  # fmt: skip
    assert first == "ssgd comes first: it reaches 30.0% accuracy after 4.5 s in the median."
    assert second.startswith(
        "ssgd and asgd cannot be told apart with these 2 seeds: the second takes 1.39 times as long, 95% interval over "
        "2 seeds 0.14 to 13"
    )


def test_pairs_that_all_agree_are_told_apart_though_seeds_differ() -> None:
    first, second, *_ = verdict(
        compared(
            *(outcome(Job(SSGD, 0.1, seed), at * 1.5) for seed, at in enumerate((2.0, 4.0, 6.0))),
            *(outcome(Job(ASGD, 0.1, seed), at) for seed, at in enumerate((2.0, 4.0, 6.0))),
        )
    )
    assert first == (
        "asgd wins: it reaches 30.0% accuracy after 4.0 s in the median, 1.5 times as fast as ssgd (6.0 s; 95% "
        "interval over 3 seeds 1.50 to 1.50)."
    )
    assert second == "This is more than chance explains, seed by seed."


def test_a_strategy_that_misses_the_target_with_some_seeds_is_named() -> None:
    said = " ".join(
        verdict(
            compared(
                *(outcome(Job(ASGD, 0.1, seed), 4.0 + seed) for seed in range(3)),
                *(outcome(Job(FASTEST, 0.1, seed), at) for seed, at in enumerate((8.0, 10.0, math.inf))),
            )
        )
    )
    assert "with 1 of 3 seeds it does not reach the target" in said


def test_one_seed_says_nothing_about_chance() -> None:
    said = verdict(compared(outcome(Job(SSGD, 0.1, 0), 3.0), outcome(Job(ASGD, 0.1, 0), 9.0)))
    assert said[1] == "One seed: nothing can be said about chance. Compare with several seeds."


def test_without_a_target_the_losses_are_compared() -> None:
    untargeted = plan(TINY.replace("target = 0.3", ""))
    found = comparison_of(untargeted, [outcome(job, 3.0) for job in untargeted.jobs])
    assert verdict(found)[0].endswith("ends with the lowest loss, 1.000. Set a target to compare times.")
    assert found.rows[1]["loss_above_the_first"]["mean"] == 0.0
    assert found.rows[1]["told_apart_from_the_first"] is False


def test_without_a_strategy_at_the_target_the_lowest_loss_is_named() -> None:
    (first, *_) = verdict(compared(outcome(Job(SSGD, 0.1, 0), math.inf)))
    assert first.startswith(
        "No strategy reaches 30.0% accuracy with most of the 1 seeds; ssgd ends with the lowest loss, 1.000."
    )


@pytest.mark.parametrize(("missing", "complete"), [(0, True), (1, False)])
def test_the_json_says_whether_all_runs_are_there(missing: int, complete: bool) -> None:
    jobs = plan().jobs[missing:]
    table = comparison_of(plan(), [outcome(job, 3.0) for job in jobs]).data()
    assert table["complete"] is complete
    assert len(table["runs"]) == len(jobs)


def test_the_table_has_a_column_for_the_learning_rate() -> None:
    columns, _ = comparison_rows(compared(outcome(Job(SSGD, 0.1, 0), 3.0)))
    assert [column.heading for column in columns][:3] == ["strategy", "lr", "time to 30%"]


def test_contributions_that_are_not_finite_are_counted_in_one_line() -> None:
    assert non_finite_line("asgd", {0: 2, 3: 1}) == (
        "asgd: 3 contributions were not finite and left out, from worker 0 (2), worker 3 (1)"
    )
