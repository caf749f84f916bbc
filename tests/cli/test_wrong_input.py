"""Every command with files that are none, and values that cannot be: one line, exit code 2, nothing written."""

import copy
import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.cli.main import _printable_logs, exit_code, main
from paceline.config.experiment import check
from paceline.config.file import parse_config
from paceline.core import errors
from paceline.strategies.names import parse_strategy
from support.saved_runs import save_run
from support.tiny import ROOT, TINY

LR = ["--strategy", "ssgd", "--lr", "0.1"]
READING = {
    "compare": ["compare", "FILE", "--jobs", "1"],
    "train": ["train", "FILE", *LR],
    "train --resume": ["train", "--resume", "FILE"],
    "profile": ["profile", "FILE", "--fleet", "processes"],
    "predict": ["predict", "FILE"],
    "replay": ["replay", "FILE"],
    "replay --strategy": ["replay", "FILE", "-s", "asgd"],
    "report": ["report", "FILE", "--out", "page.html"],
}
NO_FILES = {
    "missing": "nothing-here",
    "directory": "folder",
    "empty": "empty.toml",
    "binary": "binary.toml",
    "not UTF-8": "latin.toml",
    "deep": "deep.toml",
    "pipe": "pipe",
    "pipe with a suffix": "pipe.jsonl",
    "device": "/dev/zero",
    "terminal": "/dev/tty",
    "loop": "loop",
    "too long": "x" * 300,
    "below a file": "tiny.toml/config.toml",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    (place / "folder").mkdir()
    (place / "tiny.toml").write_text(TINY)
    (place / "empty.toml").write_text("")
    (place / "binary.toml").write_bytes(bytes(range(256)) * 4)
    (place / "latin.toml").write_bytes(TINY.encode() + b"# \xe4")
    (place / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    os.mkfifo(place / "pipe")
    os.mkfifo(place / "pipe.jsonl")
    (place / "loop").symlink_to("loop")
    save_run(place / "run", pl.Synchronous(), seconds=5.0)
    return place


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    yield place
    assert sorted(place.rglob("*")) == before


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2, arguments
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert len(output.err) < 600
    return output.err


@pytest.mark.parametrize("command", READING)
def test_what_is_no_file_is_refused(here: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    for file in NO_FILES.values():
        refused([file if each == "FILE" else each for each in READING[command]], capsys)


OPTIONS = [
    *(["train", "tiny.toml", "--strategy", "ssgd", "--lr", value] for value in ("nan", "inf", "0", "-1", "x", "1e999")),
    *(["train", "tiny.toml", *LR, "--seed", value] for value in ("-1", "x", "1.5", str(2**63))),
    *(["train", "tiny.toml", *LR, "--checkpoint", value] for value in ("0", "-3", "x")),
    ["train", "tiny.toml", *LR, "--fleet", "cloud"],
    ["train", "tiny.toml", *LR, "--address", "10.0.0.1:6379"],
    ["train", "tiny.toml", *LR, "--resume", "run", "--directory", "other"],
    ["train", "tiny.toml", *LR, "--directory", "tiny.toml"],
    ["train", "tiny.toml", *LR, "--directory", "pipe"],
    ["train", "tiny.toml", *LR, "--directory", "tiny.toml/run"],
    ["train", "tiny.toml", *LR, "--directory", "run"],
    *(["compare", "tiny.toml", "--seeds", value] for value in ("0", "x", "-1")),
    *(["compare", "tiny.toml", "--jobs", value] for value in ("0", "x")),
    ["compare", "tiny.toml", "--jobs", "1", "--figure", "folder"],
    ["compare", "tiny.toml", "--jobs", "1", "--figure", "folder/curves.gif"],
    *(["profile", "tiny.toml", "--fleet", "processes", "--seconds", value] for value in ("nan", "0", "-1", "inf", "x")),
    ["profile", "tiny.toml"],
    ["profile", "tiny.toml", "--fleet", "processes", "--output", "run"],
    *(["predict", "tiny.toml", "--momentum", value] for value in ("nan", "1", "-2", "inf", "x")),
    *(["predict", "tiny.toml", "--curvature", value] for value in ("nan", "0", "-2", "inf", "x")),
    *(["predict", "tiny.toml", "--margin", value] for value in ("nan", "0", "1", "x")),
    *(["predict", "tiny.toml", "--epsilon", value] for value in ("nan", "0", "1", "x")),
    *(["predict", "tiny.toml", "--condition", value] for value in ("nan", "0", "inf", "x")),
    ["predict", "tiny.toml", "-s", "lgc:quorum=99"],
    ["predict", "tiny.toml", "--json", "folder"],
    ["report"],
    ["report", "run"],
    ["report", "run", "--out", "page.txt"],
    ["report", "run", "--out", "tiny.toml/page.html"],
    ["report", "run", "tiny.toml", "--out", "page.html"],
    ["replay"],
    ["replay", "run"],
    ["replay", "run", "-s", "lgc:quorum=99"],
    ["replay", "run", "-s", "x:y=z"],
    ["reproduce"],
    ["reproduce", "lgc", "--quick", "--help"],
    ["data", "fetch", "mnist", "--to", "data"],
    ["nothing"],
    ["--nothing"],
]


@pytest.mark.parametrize("command", ["train", "compare", "profile", "predict", "report", "replay", "other"])
def test_values_that_cannot_be_are_refused(here: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    known = ("train", "compare", "profile", "predict", "report", "replay")
    for arguments in OPTIONS:
        if arguments[0] == command or (command == "other" and arguments[0] not in known):
            refused(arguments, capsys)


@pytest.mark.parametrize(
    "text",
    [
        "gsgd:inside=" * 300 + "ssgd",
        "ma:every=2,waits=" * 300 + "ssgd",
        "gsgd:groups=0-99999999999",
        "gsgd:groups=0-999999999",
        "gsgd:groups=" + "9" * 5000,
        "gsgd:groups=" + "/".join(f"{i}-9999" for i in range(3)),
        "gsgd:tolerance=nan",
        "lgc:quorum=" + "9" * 5000,
        "lgc:quorum=1e999",
        "lgc:quorum=seven",
        "lgc:quorum=true",
        "x" * 100_000,
        ":" * 1000,
        "lgc:" + "a=1," * 1000,
        "\x00",
    ],
    ids=lambda text: text[:24],
)
def test_a_strategy_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(pl.ConfigError) as error:
        parse_strategy(text).strategy([1.0, 1.0, 2.0, 2.0])
    assert len(str(error.value)) < 600


def test_rules_inside_rules_in_tables_are_bounded() -> None:
    nested = 'name = "ssgd"'
    for _ in range(50):
        nested = f'name = "gsgd", inside = {{{nested}}}'
    text = TINY.replace(
        'strategy = ["ssgd", "asgd", "k-sgd:quorum=2", "lgc:quorum=2,blocks=4", "gsgd"]', f"strategy = {{{nested}}}"
    )
    with pytest.raises(pl.ConfigError, match="nested deeper than 8"):
        parse_config(text)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("count = 2", "count = 2147483648", "2,147,483,648 workers are more than can be kept account of"),
        ("seeds = [0, 1]", f"seeds = [{2**63}]", "from 0 to 2\\*\\*63 - 1"),
        ("batch_size = 8", "batch_size = 0", "batch_size=0 is not possible"),
        ("batch_size = 8", f"batch_size = {2**41}", "batch_size=2199023255552 is not possible: at most 1,099,511"),
        ("batch_size = 8", f"batch_size = {10**400}", "batch_size: a number of about 401 digits is not possible"),
        ("batch_size = 8", "batch_size = 1" + "0" * 5000, "is not read: one of its numbers has thousands of digits"),
        ("seeds = [0, 1]", f"seeds = [0, {10**400}]", r"seeds\[1\]: a number of about 401 digits is not possible"),
        (
            "[tune]\nlr = [0.1, 0.5]",
            f"lr = {10**305}",
            "lr: a number of about 306 digits is not possible",
        ),
        ('model = "linear"', 'model = "mlp"\nhidden = [2147483648]', "hidden layers of widths"),
        ("[tune]\nlr = [0.1, 0.5]", "lr = nan", "lr=nan is not finite"),
        ("[tune]\nlr = [0.1, 0.5]", "lr = -1.0", "lr=-1.0 is no learning rate"),
        ("[tune]\nlr = [0.1, 0.5]", "lr = 0", "lr=0 is no learning rate"),
        ("[tune]\nlr = [0.1, 0.5]", 'lr = "0.1"', "lr='0.1' is no learning rate"),
        ("[tune]\nlr = [0.1, 0.5]", "lr = 0.1\nweight_decay = inf", "weight_decay=inf is not finite"),
        ("[tune]\nlr = [0.1, 0.5]", 'lr = 0.1\nmomentum = 0.9\ndampening = "much"', "SGD"),
        ("[tune]\nlr = [0.1, 0.5]", 'lr = 0.1\n[scheduler]\nname = "StepLR"\nstep_size = "x"', "StepLR"),
    ],
)
def test_a_value_in_a_file_is_refused_with_its_name(old: str, new: str, said: str) -> None:
    assert old in TINY
    with pytest.raises(pl.ConfigError, match=said):
        check(parse_config(TINY.replace(old, new, 1)))


VALUES: list[str] = [
    "-1", "0", "2147483648", str(10**30), "-2.5", "inf", "nan", '"x"', "true", "1979-05-27", "[]", "[1]", '["x"]',
    "[[]]", "[nan]", "{}", "{a = 1}", "[{}]",
]  # fmt: skip


def test_a_value_of_any_other_kind_anywhere_in_a_file_is_refused_or_taken() -> None:
    """What is taken is checked as far as it can be without training."""
    table = tomllib.loads((ROOT / "examples/compare.toml").read_text())
    texts = {f"{key} = {value}" for key in table for value in VALUES}
    sections = {key: value for key, value in table.items() if isinstance(value, dict)}
    tried = 0
    for wrong in (
        *sorted(texts),
        *(f"[{name}]\n{key} = {value}" for name, own in sections.items() for key in own for value in VALUES),
    ):
        tried += 1
        with_wrong = _replaced(copy.deepcopy(table), tomllib.loads(wrong))
        said = _refusal(with_wrong)
        assert "\n" not in said
        assert len(said) < 600
    assert tried > 500


def _replaced(table: dict[str, Any], wrong: dict[str, Any]) -> dict[str, Any]:
    for key, value in wrong.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict) and value and value.keys() <= table[key].keys():
            table[key].update(value)
        else:
            table[key] = value
    return table


def _refusal(table: dict[str, Any]) -> str:
    from paceline.config.file import _config

    try:
        _config(table, None)
    except pl.ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (pl.ConfigError("it cannot be"), 2),
        (pl.PacelineError("a broken\nfile"), 2),
        (pl.strategy.IllegalDecision("a rule asks for what must not be"), 1),
        (pl.strategy.ImpossibleEvent("a fleet tells what cannot be"), 1),
        (errors.Diverged("not finite"), 1),
        (errors.WorkerFailed("worker 2 failed"), 1),
        (errors.TooFewWorkers("one is left"), 1),
        (errors.CannotWrite("cannot write it"), 1),
        (BrokenProcessPool("a child process terminated abruptly"), 1),
        (PermissionError(13, "Permission denied", "file"), 2),
        (ZeroDivisionError("a fault of Paceline's own"), None),
    ],
)
def test_every_error_on_purpose_is_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int | None
) -> None:
    assert exit_code(error) == code
    assert capsys.readouterr().err.count("\n") == (code is not None)


@pytest.mark.parametrize("command", ["train", "predict"])
def test_the_name_of_a_file_gives_no_orders_to_a_terminal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(tmp_path / "a\x1b[2J\x07b.toml")
    assert main([command, name]) == 2
    said = capsys.readouterr().err
    assert r"a\x1b[2J\x07b.toml" in said
    assert said.rstrip("\n").isprintable()


def test_nor_does_what_is_logged() -> None:
    """As a program prints it that has not set up logging."""
    record = logging.LogRecord("paceline", logging.WARNING, "", 0, "worker %s left\n\tthen", ("\x1b]0;x\x07",), None)
    with _printable_logs():
        assert logging.lastResort is not None
        assert logging.lastResort.format(record) == "worker \\x1b]0;x\\x07 left\n\tthen"
    assert logging.lastResort.format(record) == "worker \x1b]0;x\x07 left\n\tthen"


CLOSED = """
import os, sys
for number in {closed}:
    os.close(number)
sys.stdin = sys.stdout = sys.stderr = None
from paceline.cli.main import main
code = main(["report", "nowhere"])
opened = os.open("file", os.O_CREAT | os.O_WRONLY)
os.write(opened, str((code, opened > 2)).encode())
os._exit(0)
"""


@pytest.mark.parametrize("closed", [(0, 1, 2), (2,)])
def test_what_is_opened_takes_no_place_of_a_stream_that_is_closed(closed: tuple[int, ...], tmp_path: Path) -> None:
    """``paceline ... >&-``: else lines for the terminal would go into a file of the run."""
    subprocess.run([sys.executable, "-c", CLOSED.format(closed=closed)], cwd=tmp_path, check=False)
    assert (tmp_path / "file").read_text() == "(2, True)"
