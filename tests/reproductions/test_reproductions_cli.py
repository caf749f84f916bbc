"""``python -m reproductions``: its commands, what it refuses, and that it is no part of the wheel."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline.cli.main
from paceline.core.errors import CannotWrite, ConfigError
from reproductions.cli import PAPERS, main, paper_of
from reproductions.pipeline.paper import Paper
from reproductions.pipeline.plan import Options

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lcg"], "lcg"),
        (["lgc", "--nothing"], "--nothing"),
        (["sdde", "--seed", "-1"], "--seed"),
        (["group-sgd"], "python -m reproductions fetch mnist --to DIR"),
        (["group-sgd", "--data", "/nowhere"], "python -m reproductions fetch mnist --to /nowhere"),
        (["group-sgd", "--quick", "--data", "file"], "python -m reproductions fetch mnist --to file"),
        (["lgc", "--full"], "python -m reproductions fetch cifar10 --to DIR"),
        (["sdde", "--full", "--data", "/nowhere"], "python -m reproductions fetch cifar10 --to /nowhere"),
        (["lgc", "--quick", "--full"], "--quick and --full cannot both be"),
        (["lgc", "--runs", "2"], "--runs 2 needs --full"),
        (["lgc", "--table", "folder"], "folder"),
        (["group-sgd", "--json", "/"], "it is a directory"),
        (["sdde", "--json", "folder"], "folder"),
        (["sdde", "--figures", "file"], "file"),
        (["sdde", "--json", "/proc/paceline/card.json"], "/proc/paceline"),
        (["lgc", "--work", "/proc/paceline/work"], "/proc/paceline"),
        (["group-sgd", "--work", "file"], "file"),
        (["fetch"], "NAME"),
        (["fetch", "mnist"], "--to"),
        (["fetch", "mnist", "imagenet", "--to", "data"], "there is no data set 'imagenet'"),
        (["fetch", "mnist", "--to", "file"], "file"),
        (["fetch", "mnist", "--to", "/proc/paceline/data"], "/proc/paceline"),
        *((["fetch", "mnist", "--to", "data", "--from", url], url) for url in ("x", "ftp://a/b", "file:///etc")),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert message in output.err
    assert output.err.count("\n") == 1
    assert "paceline --help" not in output.err
    assert sorted(path.name for path in here.iterdir()) == ["file", "folder"]


def test_a_campaign_whose_results_cannot_be_written_is_refused_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "group-sgd").write_text("")
    with pytest.raises(ConfigError, match="group-sgd is not a writable directory"):  # and not: where are the data?
        paper_of("group-sgd").reproduce(Options(full=True, runs=1, results=tmp_path))


@pytest.mark.parametrize(
    ("option", "place"), [("--full", "reproductions/results/group-sgd"), ("--quick", "runs/reproduce-group-sgd")]
)
def test_a_full_disk_is_told_with_the_place_of_finished_runs(
    option: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(paper: Paper[Any], options: Options) -> None:
        raise CannotWrite("cannot write x.json: the disk is full")

    monkeypatch.setattr(Paper, "reproduce", fail)
    assert main(["group-sgd", option]) == 1
    told = "cannot write x.json: the disk is full; finished runs are in"
    assert capsys.readouterr().err == f"error: {told} {place}: the same command continues\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    words = capsys.readouterr().out.split()
    assert {*PAPERS, "fetch"} <= set(words)


@pytest.mark.parametrize("name", PAPERS)
def test_every_command_has_its_paper(name: str) -> None:
    paper = paper_of(name)
    assert paper.name == name
    assert (paper.quick.seed, paper.usual.seed) == (0, 0)


def test_help_is_light() -> None:
    code = (
        "import sys; from reproductions.cli import main; main(['lgc', '--help']);"
        "heavy = {'torch', 'numpy', 'ray', 'matplotlib', 'sklearn'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        (["reproduce", "lgc", "--quick", "--data", "my data"], "python -m reproductions lgc --quick --data 'my data'"),
        (["reproduce", "--help"], "python -m reproductions --help"),
        (["data", "fetch", "mnist", "--to", "data"], "python -m reproductions fetch mnist --to data"),
    ],
)
def test_the_former_commands_say_where_they_are(
    capsys: pytest.CaptureFixture[str], arguments: list[str], now: str
) -> None:
    assert paceline.cli.main.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.endswith(f": {now}\n")
    assert output.err.count("\n") == 1


def test_the_library_imports_nothing_of_the_reproductions() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "reproductions"], file
