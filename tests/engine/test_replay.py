"""A recorded run is made again from its trace, bit for bit."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import paceline as pl
from paceline.cli.main import main
from paceline.core.messages import Arrived, Event, Joined, Resize
from paceline.fleets.replayed import moments
from paceline.trace.format import MachineWorkers
from paceline.trace.reading import Trace
from support.resumable import CASES, PROCESSES, STRATEGIES, replayed
from support.tiny import COMPENSATED


@pytest.mark.parametrize(
    "name",
    [*STRATEGIES, "grouped compensation, exact", "dropout", "unequal batches", "unequal batches, leaving and joining",
     "sizes of their own", "seconds a sample", "batch norm", "Adam and one cycle", "handed on", "watchful",
     "pruned", "pruned and handed on",
     "leaving and joining, in groups", "recall: abandon", "ties: batch", "ties: reverse", "busy server",
     "machines", "coming and going", "coming and going on machines",
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
    with pytest.raises(pl.ConfigError, match=r"cannot replay .*: the run was begun with seed = 3, not 4"):
        replayed(case, tmp_path, seed=4)
    with pytest.raises(pl.ConfigError, match=r"strategy = FastestK\(.*, not Synchronous"):
        replayed(CASES["synchronous"], tmp_path)


def told(trace: Trace) -> list[Sequence[Event]]:
    return [events for events in moments(trace) if not isinstance(events, MachineWorkers)]


def test_events_of_one_instant_are_told_together_unless_something_was_decided_between() -> None:
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3, ties="batch")
    together = told(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=2.0)))
    assert [len(events) for events in together] == [3, 3, 3]
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3)
    alone = told(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=2.0)))
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


@pytest.mark.parametrize("batch_size", [8, (4, 12, 8, 8)])
def test_a_run_on_processes_with_unequal_batches_is_replayed_bit_for_bit(
    batch_size: int | tuple[int, ...], tmp_path: Path
) -> None:
    """Sizes by measured speed, from equal ones or others: which they were is in the trace."""
    strategy = pl.UnequalBatches(total=32, window=2, margin=0.0)
    case = replace(
        PROCESSES,
        fleet=pl.ProcessFleet(4, slow={3: 3.0}),
        strategy=strategy,
        batch_size=batch_size,
        sampling=pl.Shuffled(),
    )
    run = case.run(tmp_path, pl.Stop(updates=30))
    sizes = [fact.sizes for fact in run.trace if isinstance(fact, Resize)]
    assert all(sum(each.values()) == 32 for each in sizes)
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


# The command line


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(COMPENSATED)
    assert main(["train", "file.toml", "--directory", "run"]) == 0
    capsys.readouterr()
    return Path("run")


def test_the_command_replays_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "run"]) == 0
    assert "updates repeated from the trace" in (out := capsys.readouterr().out)
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
    begin, end = COMPENSATED.index("[[fleet.workers]]"), COMPENSATED.index("[optimizer]")
    fleet = '[fleet]\nkind = "processes"\nworkers = 3\n[[fleet.slow]]\nworker = 2\ntimes = 2.0\n'
    Path("file.toml").write_text(
        (COMPENSATED[:begin] + fleet + COMPENSATED[end:]).replace("seconds = 20", "updates = 30")
    )
    assert main(["train", "file.toml", "--directory", "run"]) == 0
    capsys.readouterr()
    assert main(["replay", "run"]) == 0
    out = capsys.readouterr().out
    assert "30 updates repeated from the trace" in out
    assert "The weights are the same, bit for bit." in out
    assert main(["replay", "run", "--strategy", "ssgd"]) == 0
    assert "ssgd, simulated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "nothing"], "nothing has no config.toml"),
        (["replay", "run", "--strategy", "lgcc"], "did you mean 'lgc'?"),
        (["replay", "run", "--strategy", "lgc:quorum=9"], "a quorum of 9 does not fit 4 workers"),
        (["replay", "."], "paceline.replay('.', task, ...)"),
        (["train", "--resume", "nothing"], "it has no config.toml"),
        (["train", "file.toml", "--resume", "run", "--seed", "4"], "the run was begun with seed = 0, not 4"),
        (["train", "file.toml", "--resume", "run", "--directory", "b"], "leave out --directory b"),
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
    Path("file.toml").write_text(COMPENSATED.replace("seconds = 20", "seconds = 30"))
    assert main(["train", "file.toml", "--resume", "run"]) == 0
    assert main(["train", "file.toml", "--directory", "straight"]) == 0
    for file in Path("straight").iterdir():
        assert (run / file.name).read_bytes() == file.read_bytes(), file.name
    assert main(["train", "--resume", "run"]) == 0
    assert json.loads((run / "summary.json").read_text())["seconds"] == 30
