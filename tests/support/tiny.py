"""A small experiment as a TOML file, for tests of the commands."""

from pathlib import Path

import pytest

from paceline.cli.main import main

ROOT = Path(__file__).parents[2]
TINY = """
seeds = [0, 1]
batch_size = 8
target = 0.3
strategy = ["ssgd", "asgd", "k-sgd:quorum=2", "lgc:quorum=2,blocks=4", "gsgd"]
[task]
data = "digits"
model = "linear"
[[fleet.workers]]
count = 2
delay = "log-normal"
median = 1.0
sigma = 0.2
[[fleet.workers]]
count = 2
delay = "constant"
value = 3.0
[partition]
name = "pathological"
classes_per_worker = 4
[optimizer]
name = "SGD"
[tune]
lr = [0.1, 0.5]
[stop]
seconds = 12
"""
COMPENSATED = """
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
DIVERGING = TINY.replace('"linear"', '"mlp"\nhidden = [8]').replace("lr = [0.1, 0.5]", "lr = [1e25]")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, in an empty directory that is the current one; the terminal is 140 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return file


def changed(file: Path, old: str, new: str) -> str:
    """Write the experiment with a part of its text replaced, and return the name of the file."""
    assert old in TINY
    file.write_text(TINY.replace(old, new, 1))
    return str(file)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must exit with 2 and change nothing on disk, and return the one line on stderr."""
    before = _files()
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert _files() == before
    return output.err


def _files() -> list[Path]:
    """What is in the current directory, without what Python itself leaves there."""
    return sorted(path for path in Path.cwd().rglob("*") if "__pycache__" not in path.parts)
