"""What another strategy would have made of a recorded run's time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.prediction.what_if import Survey, recorded_fleet, size_doubts, what_if
from paceline.reports.page import describe
from paceline.storage.reading import read_run
from paceline.trace.durations import doubts, fixed_seconds
from paceline.trace.measure import measure
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter
from support.digits import digits_task
from support.resumable import CASES, FLEET
from support.tiny import COMPENSATED


def test_the_recorded_strategy_simulated_on_its_own_durations_is_the_recorded_run() -> None:
    """Constant delays, and random ones that are gone through in the recorded order."""
    for strategy in (pl.Synchronous(), pl.Asynchronous(), pl.Grouped([[0, 1], [2, 3, 4]])):
        trace = pl.simulate(strategy, FLEET, pl.Stop(updates=60), seed=1)
        (again,) = what_if(Survey(trace), {"again": strategy})
        assert again.measures.updates == 60
        assert again.measures.mean_staleness == measure(trace).mean_staleness
        assert again.measures.seconds == pytest.approx(measure(trace).seconds)


def test_what_if_knows_the_mini_batches_of_pieces_that_were_billed() -> None:
    """Workers that take 1 and 3 seconds a mini-batch, whatever the models and labels took besides."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(3.0)], network=pl.Network(latency=0.25))
    strategy = pl.EnsembleCompression(4, compression_steps=1)
    run = pl.train(
        digits_task(), strategy=strategy, fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        stop=pl.Stop(updates=5), progress=False,
    )  # fmt: skip
    for worker, seconds in ((0, 1.0), (1, 3.0)):
        found = Survey(run.trace).durations[worker].seconds
        assert len(found) == 4 + 1 + 3 + 1 + 3
        assert found == pytest.approx([seconds] * len(found))


def test_what_if_tells_what_another_strategy_makes_of_the_same_workers() -> None:
    """Workers of 1, 1 and 3 seconds, recorded synchronously for 30 s: 10 updates; 70 asynchronously; with groups 40."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(3.0)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=30.0))
    asked = {"asgd": pl.Asynchronous(), "gsgd": pl.Grouped([[0, 1], [2]]), "ssgd": pl.Synchronous()}
    assert {each.label: each.measures.updates for each in what_if(Survey(trace), asked)} == {
        "asgd": 70,
        "gsgd": 40,
        "ssgd": 10,
    }
    assert [each.gradients for each in what_if(Survey(trace), asked)] == [70, 70, 30]
    assert doubts(Survey(trace).durations) == []


def test_transfers_leaving_and_joining_are_those_of_the_recorded_run() -> None:
    changes: list[pl.Left | pl.Joined] = [pl.Left(4.0, 0), pl.Joined(8.0, 0)]
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, network=pl.Network(latency=0.25), changes=changes)
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=20.0))
    found = recorded_fleet(Survey(trace))
    assert found.changes == changes
    assert found.network.latency == 0.25
    assert found.medians == (1.0, 1.0)


def test_what_was_cut_short_is_told_and_what_is_partly_known_is_scaled_up() -> None:
    """Worker 2 of 3 is always late: with K-SGD nothing of it is known, with LGC-SGD two of its four blocks."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(2.0)])
    dropped = pl.simulate(pl.FastestK(2), fleet, pl.Stop(updates=5))
    assert ([*Survey(dropped).durations[2].seconds], Survey(dropped).durations[2].cut) == ([], 5)
    with pytest.raises(pl.ConfigError, match="worker 2 finished nothing in the recorded run \\(5 pieces"):
        recorded_fleet(Survey(dropped))
    partly = pl.simulate(pl.LiveCompensation(2, blocks=4), fleet, pl.Stop(updates=5))
    assert Survey(partly).durations[2].seconds == pytest.approx([2.0] * Survey(partly).durations[2].scaled)
    assert "worker 2: 4 of 4 durations are known of some blocks, and scaled up" in doubts(Survey(partly).durations)


def test_the_fixed_part_is_estimated_where_sizes_differed_and_else_the_assumption_is_told() -> None:
    """A run with sizes by measured speed, and one with equal sizes: what would the other have done?"""
    parts = [pl.delays.PerSample(0.2, pl.delays.Constant(0.01 * times)) for times in (1, 1, 4)]
    fleet = pl.SimulatedFleet(parts)
    sized = pl.UnequalBatches(total=96)
    varied = Survey(pl.simulate(sized, fleet, pl.Stop(seconds=100.0)))
    assert [fixed_seconds(varied.durations[worker]) for worker in range(3)] == pytest.approx([0.2] * 3)
    (equal,) = what_if(varied, {"ssgd": pl.Synchronous()}, batch_size=32)
    straight = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=equal.measures.seconds), batch_size=32)
    assert equal.measures.updates == measure(straight).updates
    assert size_doubts(varied, [sized], 32) == []
    alike = Survey(straight)
    assert size_doubts(alike, [pl.Synchronous()], 32) == []
    assert size_doubts(alike, [sized], 32) == [
        "no worker had mini-batches of different sizes in the recorded run: durations are taken to be in proportion to "
        "the samples, without a fixed part"
    ]
    (found,) = what_if(alike, {"unequal": sized}, batch_size=32)
    assert found.measures.updates > 1.8 * alike.measures.updates


def test_a_run_without_time_cannot_be_compared() -> None:
    writer = TraceWriter(None, {"workers": 0, "transfer_seconds": 0.0})
    with pytest.raises(pl.ConfigError, match="no finished work of any worker"):
        what_if(Survey(writer.close()), {})


def test_a_what_if_and_a_page_read_the_trace_once(tmp_path: Path) -> None:
    CASES["fastest"].run(tmp_path, pl.Stop(updates=8))
    saved, lines = read_run(tmp_path), 0

    def counted() -> Iterator[str]:
        nonlocal lines
        for line in saved.trace.lines():
            lines += 1
            yield line

    watched = replace(saved, trace=Trace(counted))
    whole = sum(1 for _ in saved.trace.lines())
    survey = Survey(watched.trace)
    assert what_if(survey, {"asgd": pl.Asynchronous(), "ssgd": pl.Synchronous()})
    doubts(survey.durations)
    assert whole <= lines < 1.5 * whole  # the first line is looked at more often
    assert survey.measures == measure(saved.trace)
    lines = 0
    described = describe("run", watched)
    assert whole <= lines < 1.5 * whole
    assert described.measures == measure(saved.trace)


def test_a_simulation_is_measured_as_its_trace_would_be() -> None:
    fleet = pl.SimulatedFleet(
        [pl.delays.Empirical([1.0, 2.5], in_order=True), pl.delays.Empirical([3.0], in_order=True)]
    )
    for strategy in (pl.Asynchronous(), pl.LiveCompensation(1, blocks=2), pl.ModelAveraging(2)):
        recorded = pl.simulate(strategy, fleet, pl.Stop(seconds=40.0))
        survey = Survey(recorded)
        (found,) = what_if(survey, {"same": strategy})
        again = measure(pl.simulate(strategy, recorded_fleet(survey), pl.Stop(seconds=survey.measures.seconds)))
        assert found.measures == again


# The command line


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(COMPENSATED)
    assert main(["train", "file.toml", "--directory", "run"]) == 0
    capsys.readouterr()
    return Path("run")


def test_the_command_answers_what_if(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "run", "--strategy", "gsgd", "--strategy", "asgd"]) == 0
    out = capsys.readouterr().out
    for word in (
        "lgc:quorum=2,blocks=4, as recorded", "lgc:quorum=2,blocks=4, simulated", "gsgd, simulated",
        "asgd, simulated", "updates/s", "20 s of 4 workers",
    ):  # fmt: skip
        assert word in out


def test_what_would_practically_never_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker waited for an hour after a microsecond of work: alone, it would do that 3,600,000,000 times."""
    monkeypatch.setattr("paceline.prediction.what_if.FEW", 1000)
    lines = (
        '{"paceline_trace": 1, "workers": 2}',
        '["joined",0.0,0]', '["joined",0.0,1]', '["start",0,0,0,"gradient",1]', '["start",1,1,0,"gradient",1]',
        '["arrived",1e-6,0,1]', '["arrived",3600.0,1,1]', '["step",{"1/2":[0,1]},[]]',
    )  # fmt: skip
    survey = Survey(Trace(lambda: lines))
    assert what_if(survey, {"ssgd": pl.Synchronous()})[0].measures.updates == 1
    for strategy in (pl.Asynchronous(), pl.Rennala(10**9), pl.ModelAveraging(every=10**9)):
        with pytest.raises(pl.ConfigError, match="more than 2,000 mini-batches, and went through 2 in the recorded"):
            what_if(survey, {"other": strategy})
