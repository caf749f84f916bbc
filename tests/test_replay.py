"""A recorded run is made again from its trace, bit for bit; and another strategy gets the same workers' time."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.core.messages import Arrived, Joined
from paceline.fleets.replayed import moments
from paceline.prediction.what_if import Survey, doubts, durations_of, recorded_fleet, what_if
from paceline.reports.page import describe
from paceline.storage.reading import read_run
from paceline.trace.measure import measure
from paceline.trace.record import Trace, TraceWriter
from support.digits import digits_task
from support.resumable import CASES, FLEET, PROCESSES, STRATEGIES, replayed

TOML = """
batch_size = 8
strategy = "lgc:quorum=2,blocks=4"
[task]
data = "digits"
model = "mlp"
hidden = [8]
[[fleet.workers]]
count = 3
delay = "log-normal"
median = 1.0
sigma = 0.2
[[fleet.workers]]
delay = "constant"
value = 2.5
[optimizer]
name = "Adam"
lr = 0.01
[checkpoint]
updates = 4
[stop]
seconds = 20
"""


@pytest.mark.parametrize(
    "name",
    [*STRATEGIES, "grouped compensation, exact", "dropout", "batch norm", "Adam and one cycle", "handed on", "watchful",
     "pruned", "pruned and handed on",
     "leaving and joining, in groups", "recall: abandon", "ties: batch", "ties: reverse", "busy server",
     "every delay, asynchronous"],
)  # fmt: skip
def test_a_simulated_run_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    CASES[name].run(tmp_path, pl.Stop(updates=8))
    before = sorted(tmp_path.iterdir())
    found = replayed(CASES[name], tmp_path)
    assert (found.departure, found.differences, found.compared, found.same) == (None, {}, True, True)
    assert found.run.history[-1].updates == 8
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_did_not_end_is_replayed_as_far_as_it_came(tmp_path: Path) -> None:
    case = CASES["asynchronous"]
    case.run(tmp_path, pl.Stop(updates=8))
    (tmp_path / "summary.json").unlink()
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write('["arri')
    found = replayed(case, tmp_path)
    assert (found.same, found.compared) == (True, False)


def test_weights_that_do_not_follow_from_the_trace_are_told(tmp_path: Path) -> None:
    case = CASES["synchronous"]
    case.run(tmp_path / "one", pl.Stop(updates=8))
    case.run(tmp_path / "other", pl.Stop(updates=9))
    (tmp_path / "one" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    found = replayed(case, tmp_path / "one")
    assert not found.same
    assert found.differences.keys() == {"weight", "bias"}
    assert all(0 < difference < 1 for difference in found.differences.values())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"arrived",', '"arrivde",', "cannot be understood"),
        ('["arrived",0.0', '["arrived",9.0', "the time goes back"),
        (',1,"gradient"', ',0,"gradient"', "goes another way than its trace"),
    ],
)
def test_a_trace_that_was_changed_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    case = CASES["fastest"]
    case.run(tmp_path, pl.Stop(updates=8))
    text = (tmp_path / "trace.jsonl").read_text()
    assert old in text
    (tmp_path / "trace.jsonl").write_text(text.replace(old, new, 1))
    with pytest.raises(pl.PacelineError, match=said):
        replayed(case, tmp_path)


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    case = CASES["fastest"]
    case.run(tmp_path, pl.Stop(updates=3))
    with pytest.raises(pl.ConfigError, match=r"cannot replay .*: seed was 3, and is 4"):
        replayed(case, tmp_path, seed=4)
    with pytest.raises(pl.ConfigError, match=r"strategy was FastestK\(.*, and is Synchronous"):
        replayed(CASES["synchronous"], tmp_path)


def test_events_of_one_instant_are_told_together_unless_something_was_decided_between() -> None:
    fleet = pl.SimulatedFleet(pl.Constant(1.0), workers=3, ties="batch")
    together = list(moments(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=2.0))))
    assert [len(events) for events in together] == [3, 3, 3]
    fleet = pl.SimulatedFleet(pl.Constant(1.0), workers=3)
    alone = list(moments(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=2.0))))
    assert [len(events) for events in alone] == [3, 1, 1, 1, 1, 1, 1]
    assert isinstance(alone[0][0], Joined)
    assert isinstance(alone[1][0], Arrived)


# Real processes


@pytest.mark.parametrize("name", ["synchronous", "asynchronous", "compensation", "grouped compensation"])
def test_a_run_on_processes_is_replayed_in_one_bit_for_bit(name: str, tmp_path: Path) -> None:
    """With batch normalisation, dropout and momentum, and one worker slower than the others."""
    case = replace(PROCESSES, strategy=STRATEGIES[name])
    case.run(tmp_path, pl.Stop(updates=30))
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


# What if


def test_the_recorded_strategy_simulated_on_its_own_durations_is_the_recorded_run() -> None:
    """Constant delays, and random ones that are gone through in the recorded order."""
    for strategy in (pl.Synchronous(), pl.Asynchronous(), pl.Grouped([[0, 1], [2, 3, 4]])):
        trace = pl.simulate(strategy, FLEET, pl.Stop(updates=60), seed=1)
        (again,) = what_if(trace, {"again": strategy})
        assert again.measures.updates == 60
        assert again.measures.mean_staleness == measure(trace).mean_staleness
        assert again.measures.seconds == pytest.approx(measure(trace).seconds)


def test_what_if_knows_the_mini_batches_of_pieces_that_were_billed() -> None:
    """Workers that take 1 and 3 seconds a mini-batch, whatever the models and labels took besides."""
    fleet = pl.SimulatedFleet([pl.Constant(1.0), pl.Constant(3.0)], network=pl.Network(latency=0.25))
    strategy = pl.EnsembleCompression(4, compression_steps=1)
    run = pl.train(
        digits_task(), strategy=strategy, fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        stop=pl.Stop(updates=5), progress=False,
    )  # fmt: skip
    for worker, seconds in ((0, 1.0), (1, 3.0)):
        found = durations_of(run.trace)[worker].seconds
        assert len(found) == 4 + 1 + 3 + 1 + 3
        assert found == pytest.approx([seconds] * len(found))


def test_what_if_tells_what_another_strategy_makes_of_the_same_workers() -> None:
    """Workers of 1, 1 and 3 seconds, recorded synchronously for 30 s: 10 updates; 70 asynchronously; with groups 40."""
    fleet = pl.SimulatedFleet([pl.Constant(1.0), pl.Constant(1.0), pl.Constant(3.0)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(seconds=30.0))
    asked = {"asgd": pl.Asynchronous(), "gsgd": pl.Grouped([[0, 1], [2]]), "ssgd": pl.Synchronous()}
    assert {each.label: each.measures.updates for each in what_if(trace, asked)} == {"asgd": 70, "gsgd": 40, "ssgd": 10}
    assert [each.gradients for each in what_if(trace, asked)] == [70, 70, 30]
    assert doubts(trace) == []


def test_transfers_leaving_and_joining_are_those_of_the_recorded_run() -> None:
    changes: list[pl.Left | pl.Joined] = [pl.Left(4.0, 0), pl.Joined(8.0, 0)]
    fleet = pl.SimulatedFleet(pl.Constant(1.0), workers=2, network=pl.Network(latency=0.25), changes=changes)
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=20.0))
    found = recorded_fleet(trace)
    assert found.changes == changes
    assert found.network.latency == 0.25
    assert found.medians == (1.0, 1.0)


def test_what_was_cut_short_is_told_and_what_is_partly_known_is_scaled_up() -> None:
    """Worker 2 of 3 is always late: with K-SGD nothing of it is known, with LGC-SGD two of its four blocks."""
    fleet = pl.SimulatedFleet([pl.Constant(1.0), pl.Constant(1.0), pl.Constant(2.0)])
    dropped = pl.simulate(pl.FastestK(2), fleet, pl.Stop(updates=5))
    assert ([*durations_of(dropped)[2].seconds], durations_of(dropped)[2].cut) == ([], 5)
    with pytest.raises(pl.ConfigError, match="worker 2 finished nothing in the recorded run \\(5 pieces"):
        recorded_fleet(dropped)
    partly = pl.simulate(pl.LiveCompensation(2, blocks=4), fleet, pl.Stop(updates=5))
    assert durations_of(partly)[2].seconds == pytest.approx([2.0] * durations_of(partly)[2].scaled)
    assert "worker 2: 4 of 4 durations are known of some blocks, and scaled up" in doubts(partly)


def test_a_run_without_time_cannot_be_compared() -> None:
    writer = TraceWriter(None, {"workers": 0, "transfer_seconds": 0.0})
    with pytest.raises(pl.ConfigError, match="at least one worker"):
        what_if(writer.close(), {})


# The command line


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(TOML)
    assert main(["train", "file.toml", "--directory", "run"]) == 0
    capsys.readouterr()
    return Path("run")


def test_the_command_replays_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "run"]) == 0
    assert "updates made again from the trace" in (out := capsys.readouterr().out)
    assert "The weights are the same, bit for bit." in out
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "model.safetensors").write_bytes(data)
    assert main(["replay", "run"]) == 1
    assert "differs by up to" in capsys.readouterr().out


def test_the_command_replays_a_run_on_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    begin, end = TOML.index("[[fleet.workers]]"), TOML.index("[optimizer]")
    fleet = '[fleet]\nkind = "processes"\nworkers = 3\n[[fleet.slow]]\nworker = 2\ntimes = 2.0\n'
    Path("file.toml").write_text((TOML[:begin] + fleet + TOML[end:]).replace("seconds = 20", "updates = 30"))
    assert main(["train", "file.toml", "--directory", "run"]) == 0
    capsys.readouterr()
    assert main(["replay", "run"]) == 0
    out = capsys.readouterr().out
    assert "30 updates made again from the trace" in out
    assert "The weights are the same, bit for bit." in out
    assert main(["replay", "run", "--strategy", "ssgd"]) == 0
    assert "ssgd, simulated" in capsys.readouterr().out


def test_the_command_answers_what_if(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "run", "--strategy", "gsgd", "--strategy", "asgd"]) == 0
    out = capsys.readouterr().out
    for word in (
        "lgc:quorum=2,blocks=4, as recorded", "lgc:quorum=2,blocks=4, simulated", "gsgd, simulated",
        "asgd, simulated", "updates/s", "20 s of 4 workers",
    ):  # fmt: skip
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "nothing"], "nothing has no config.toml"),
        (["replay", "run", "--strategy", "lgcc"], "did you mean 'lgc'?"),
        (["replay", "run", "--strategy", "lgc:quorum=9"], "a quorum of 9 does not fit 4 workers"),
        (["replay", "."], "paceline.replay('.', task, ...)"),
        (["train", "--resume", "nothing"], "it has no config.toml"),
        (["train", "file.toml", "--resume", "run", "--seed", "4"], "the run was begun with seed = 0, not 4"),
        (["train", "file.toml", "--resume", "run", "--directory", "b"], "leave --directory b out"),
        (["train", "file.toml", "--resume", "run", "--lr", "0.1"], "the run was begun with optimizer: lr = 0.01, not"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_command_goes_on_with_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A longer time in the file is all that may change; the result is that of a run that was as long from the start."""
    Path("file.toml").write_text(TOML.replace("seconds = 20", "seconds = 30"))
    assert main(["train", "file.toml", "--resume", "run"]) == 0
    assert main(["train", "file.toml", "--directory", "straight"]) == 0
    for file in Path("straight").iterdir():
        assert (run / file.name).read_bytes() == file.read_bytes(), file.name
    assert main(["train", "--resume", "run"]) == 0
    assert json.loads((run / "summary.json").read_text())["seconds"] == 30


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
    doubts(survey)
    assert whole <= lines < 1.5 * whole  # the first line is looked at more often
    assert survey.measures == measure(saved.trace)
    lines = 0
    described = describe("run", watched)
    assert whole <= lines < 1.5 * whole
    assert described.measures == measure(saved.trace)


def test_a_simulation_is_measured_as_its_trace_would_be() -> None:
    fleet = pl.SimulatedFleet([pl.Empirical([1.0, 2.5], in_order=True), pl.Empirical([3.0], in_order=True)])
    for strategy in (pl.Asynchronous(), pl.LiveCompensation(1, blocks=2), pl.ModelAveraging(2)):
        recorded = pl.simulate(strategy, fleet, pl.Stop(seconds=40.0))
        survey = Survey(recorded)
        (found,) = what_if(survey, {"same": strategy})
        again = measure(pl.simulate(strategy, recorded_fleet(recorded), pl.Stop(seconds=survey.measures.seconds)))
        assert found.measures == again
