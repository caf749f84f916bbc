"""What a comparison chooses and says, from outcomes with known numbers: no training."""

import math

import pytest

from paceline.comparison.jobs import Comparison, Job, Outcome, comparison_of, jobs_of
from paceline.comparison.tables import comparison_rows, non_finite_line, speed_up
from paceline.comparison.verdict import verdict
from paceline.config.file import Config, parse_config
from paceline.storage.metrics import Row
from paceline.trace.measure import Measures, WorkerTime
from support.tiny import TINY

SSGD, ASGD, FASTEST = 0, 1, 2  # indices in the file


def config(text: str = TINY) -> Config:
    return parse_config(text)


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
    return comparison_of(config(), outcomes)


def test_jobs_are_every_strategy_learning_rate_and_seed() -> None:
    jobs = jobs_of(config())
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
    assert "It makes 4.0 updates in the time of one of ssgd, whose workers wait 50% of their time" in said
    assert "gradients that are 2.8 updates old on average, and a learning rate of 0.1 against 0.5." in said


def test_the_verdict_names_workers_whose_contributions_are_thrown_away() -> None:
    said = verdict(compared(outcome(Job(SSGD, 0.1, 0), 3.0), outcome(Job(FASTEST, 0.1, 0), 9.0, wasted=0.4)))
    assert any(
        "throws away 40% of the computation: workers 2, 3 make up 9% of the updates instead of 50%" in sentence
        for sentence in said
    )


def test_the_verdict_doubts_times_that_overlap() -> None:
    said = verdict(
        compared(
            outcome(Job(SSGD, 0.1, 0), 3.0), outcome(Job(SSGD, 0.1, 1), 6.0),
            outcome(Job(ASGD, 0.1, 0), 5.0), outcome(Job(ASGD, 0.1, 1), 7.0),
        )
    )  # fmt: skip
    assert any(sentence.startswith("The times of ssgd and asgd overlap between seeds") for sentence in said)


def test_without_a_strategy_at_the_target_the_lowest_loss_is_named() -> None:
    (first, *_) = verdict(compared(outcome(Job(SSGD, 0.1, 0), math.inf)))
    assert first.startswith(
        "No strategy reaches 30.0% with most of the 1 seeds; ssgd ends with the lowest loss, 1.000."
    )


@pytest.mark.parametrize(("missing", "complete"), [(0, True), (1, False)])
def test_the_json_says_whether_all_runs_are_there(missing: int, complete: bool) -> None:
    jobs = jobs_of(config())[missing:]
    table = comparison_of(config(), [outcome(job, 3.0) for job in jobs]).table()
    assert table["complete"] is complete
    assert len(table["runs"]) == len(jobs)


def test_the_table_has_a_column_for_the_learning_rate() -> None:
    columns, _ = comparison_rows(compared(outcome(Job(SSGD, 0.1, 0), 3.0)))
    assert [column.heading for column in columns][:3] == ["strategy", "lr", "time to 30%"]


def test_contributions_that_are_not_finite_are_counted_in_one_line() -> None:
    assert non_finite_line("asgd", {0: 2, 3: 1}) == (
        "asgd: 3 contributions were not finite and left out, from worker 0 (2), worker 3 (1)"
    )
