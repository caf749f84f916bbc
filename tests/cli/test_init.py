"""``paceline init``: an experiment that runs as it is, in an empty folder."""

import json
from pathlib import Path

import pytest

from paceline.cli.main import main
from support.tiny import refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_it_writes_is_compared_trained_and_predicted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["paceline.toml", "task.py"]
    assert "Next: paceline compare paceline.toml" in capsys.readouterr().out
    assert main(["compare", "paceline.toml", "--seeds", "1", "--jobs", "1", "--json", "all.json"]) == 0
    told = json.loads(Path("all.json").read_text())
    assert {row["strategy"] for row in told["rows"]} == {"ssgd", "asgd", "lgc:quorum=6,blocks=4", "gsgd"}
    assert sum(row["seconds_to_target"] is not None for row in told["rows"]) >= 3
    assert main(["train", "paceline.toml", "--strategy", "ssgd", "--directory", "run"]) == 0
    capsys.readouterr()
    assert main(["predict", "paceline.toml"]) == 0
    assert "largest curvature of the model's loss" in capsys.readouterr().out


def test_another_directory_is_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "new/one"]) == 0
    assert "Next: paceline compare new/one/paceline.toml" in capsys.readouterr().out
    assert Path("new/one/task.py").is_file()


@pytest.mark.parametrize("name", ["task.py", "paceline.toml"])
def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    Path(name).write_text("mine")
    assert f"{name} is there already, and is not overwritten" in refused(["init"], capsys)
    assert Path(name).read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("mine")
    assert "cannot write file/task.py" in refused(["init", "file"], capsys)
