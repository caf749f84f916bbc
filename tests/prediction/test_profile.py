"""``paceline profile``: what a minute of real work tells about the workers."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
import paceline.engine.build
from paceline.cli.main import main
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived
from paceline.prediction import profile as profiling
from paceline.reports.stragglers import stragglers
from paceline.trace.format import Computed
from paceline.trace.reading import read_trace
from support.digits import digits, linear
from support.processes import PATIENCE

THREE = """
batch_size = 8
strategy = ["ssgd", "gsgd"]
[task]
data = "digits"
model = "linear"
[fleet]
kind = "processes"
workers = 3
threads = 1
[[fleet.slow]]
worker = 0
delay = "constant"
value = 0.03
[[fleet.slow]]
worker = 1
delay = "constant"
value = 0.03
[[fleet.slow]]
worker = 2
delay = "constant"
value = 0.6
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 10
"""


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "three.toml"
    file.write_text(THREE)
    return file


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_the_slow_worker_is_found_and_the_trace_goes_on(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Delays are made: the slow one takes twenty times as long, which noise can only bring nearer to 1."""
    assert main(["profile", str(three), "--seconds", "4", "--output", "out", "--json", "out.json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(Path("out.json").read_text())
    assert found["groups"] in ([[0, 1], [2]], [[0], [1], [2]], [[1], [0], [2]])  # noise may set equals apart
    groups = "gsgd:groups=0-1/2" if len(found["groups"]) == 2 else "gsgd:groups="
    assert f"Suggested: {len(found['groups'])} groups of similar speed: {groups}" in out
    assert f"paceline replay out -s ssgd -s asgd -s {groups}" in out
    for each, delay in zip(found["workers"], (0.03, 0.03, 0.6), strict=True):
        assert delay <= each["compute"] < each["round_trip"] <= each["tail"]
        assert 0 < each["transfer"] < each["round_trip"]
    assert found == json.loads(json.dumps(stragglers(read_trace("out")).table()))
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "config.json", "config.toml", "metrics.jsonl", "trace.jsonl",
    ]  # fmt: skip
    assert main(["replay", "out", "-s", "ssgd", "-s", "gsgd:groups=0-1/2"]) == 0
    assert "asgd, as recorded" in capsys.readouterr().out
    assert main(["predict", "out", "--no-model", "-s", "gsgd:groups=0-1/2"]) == 0
    assert "as recorded" in capsys.readouterr().out
    assert "out is a profile, in which nothing was trained" in refused(["replay", "out"], capsys)
    assert "out holds a profile already" in refused(["profile", str(three), "--output", "out"], capsys)


def test_every_arrival_was_told_what_it_took(three: Path) -> None:
    assert main(["profile", str(three), "--seconds", "0.5"]) == 0
    facts = [fact for fact in read_trace("profiles/three") if isinstance(fact, Arrived | Computed)]
    arrived = [fact.ticket for fact in facts if isinstance(fact, Arrived)]
    assert arrived
    assert {*arrived} <= {fact.ticket for fact in facts if isinstance(fact, Computed)}


@pytest.mark.parametrize(
    ("old", "new", "options", "said"),
    [
        ("", "", ["--seconds", "0"], "--seconds 0 is too short to measure anything: at least 0.5"),
        ("", "", ["--seconds", "nan"], "--seconds nan is too short"),
        ("", "", ["--fleet", "process"], "--fleet 'process' is unknown: did you mean 'processes'?"),
        ("", "", ["--address", "10.0.0.1:6379"], "--address 10.0.0.1:6379 is that of a Ray cluster: add --fleet ray"),
        ("", "", ["--json", "out.txt"], "out.txt must end with .json"),
        ("workers = 3", "workers = 0", [], "a fleet of 0 workers can do nothing"),
        ("batch_size = 8", "batch_size = 8000", [], "8000"),
        ('"linear"', '"lineal"', [], "did you mean 'linear'?"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(  # noqa: PLR0917 - pytest names them
    three: Path, old: str, new: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    three.write_text(THREE.replace(old, new, 1))
    assert said in refused(["profile", str(three), *options], capsys)
    assert [path.name for path in Path.cwd().iterdir()] == ["three.toml"]


def test_simulated_workers_are_refused(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin, end = THREE.index("[fleet]"), THREE.index("[optimizer]")
    workers = '[[fleet.workers]]\ncount = 2\ndelay = "constant"\nvalue = 0.01\n'
    three.write_text(THREE[:begin] + workers + THREE[end:])
    assert "simulated workers, which cannot be measured" in refused(["profile", str(three)], capsys)
    assert main(["profile", str(three), "--seconds", "0.5", "--fleet", "processes", "--output", "out"]) == 0
    assert read_trace("out").about["clock"] == "real"


def test_ctrl_c_keeps_what_was_measured(three: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", "profile", str(three), "--output", "out"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        trace = Path("out/trace.jsonl")
        while not trace.exists() or trace.read_text().count('"arrived"') < 40:
            assert time.monotonic() < deadline, process.poll()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "what was measured is in out" in err
    assert "groups of similar speed" in out
    assert len(list(read_trace("out").durations())) >= 40


def test_ctrl_c_before_anything_was_measured(
    three: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.engine.setup.launch", interrupted)
    assert main(["profile", str(three)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; nothing was written"
    assert not Path("profiles").exists()


def test_the_model_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's nor the server's copy: with a step of 0 the weights are the same to the bit."""
    servers: list[Any] = []
    launch = paceline.engine.build.launch

    def watched(*arguments: Any, **named: Any) -> Any:
        crew, server = launch(*arguments, **named)
        servers.append(server)
        return crew, server

    monkeypatch.setattr("paceline.engine.setup.launch", watched)
    train, test = digits()
    task = pl.Task(linear(), torch.nn.functional.cross_entropy, train, test)
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(4.0)])
    done = profiling.profile(task, fleet=fleet, seconds=20.0)
    assert (done.interrupted, done.problem) == (False, None)
    for model in (task.model, servers[0].model):
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert servers[0].updates == 20 + 5


def test_the_table_says_what_ssgd_would_cost() -> None:
    """Workers of 1, 1 and 4 s: in each round of 4 s two wait 3 s each, and always for the same one."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(4.0)])
    found = stragglers(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=40)))
    assert found.waiting == pytest.approx(6 / 12)
    assert [each.ratio for each in found.workers] == [1.0, 1.0, 4.0]
    assert [each.straggling for each in found.workers] == [0.0, 0.0, 1.0]
    assert [each.mini_batches for each in found.workers] == [40, 40, 10]
    assert {(each.compute, each.transfer) for each in found.workers} == {(None, None)}
    assert found.groups == ((0, 1), (2,))


def test_who_finished_nothing_is_named() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(100.0)])
    found = stragglers(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=40)))
    assert (found.unknown, found.groups, found.waiting) == ([1], ((0,),), 0.0)
    with pytest.raises(ConfigError, match="nobody finished a mini-batch"):
        stragglers(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=0.5)))
