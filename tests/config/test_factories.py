"""A function of the user's own makes the task: found beside the TOML file, called with its arguments, checked."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.cli.main import main
from paceline.config.experiment import make_task
from paceline.config.file import parse_config, read_config, write_config
from paceline.config.tasks import FactoryChoice
from paceline.core.errors import ConfigError
from support.factory import EXPERIMENT, TASK, write_experiment
from support.tiny import refused


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An experiment with a module beside it, in an empty directory that is the current one."""
    monkeypatch.chdir(tmp_path)
    yield write_experiment(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_task", "own_package", "raising")]:
        del sys.modules[name]


def choice(folder: Path, factory: str = "own_task:make", **arguments: object) -> FactoryChoice:
    return FactoryChoice(factory, arguments, str(folder))


def refusal(*made: object) -> str:
    with pytest.raises(ConfigError) as caught:
        make_task(*made)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_function_gets_its_arguments_and_the_seed(experiment: Path) -> None:
    before = torch.random.get_rng_state()
    task = make_task(choice(experiment.parent, hidden=5), seed=7)
    assert task.model[0].out_features == 5  # type: ignore[index]
    assert task.model.seed == 7
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(7)
    assert torch.equal(task.model[0].weight, torch.nn.Linear(4, 5).weight)  # type: ignore[index]


def test_an_argument_of_the_file_comes_before_the_seed(experiment: Path) -> None:
    assert make_task(choice(experiment.parent, seed=3), seed=7).model.seed == 3


def test_the_tasks_of_one_seed_are_made_once(experiment: Path) -> None:
    first, again = (make_task(choice(experiment.parent), seed=1) for _ in range(2))
    assert first is again
    assert make_task(choice(experiment.parent), seed=2) is not first


def test_two_folders_may_have_modules_of_the_same_name(tmp_path: Path, experiment: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_experiment(other)
    (other / "own_task.py").write_text(TASK.replace("nn.Linear(4, hidden)", "nn.Linear(4, hidden, bias=False)"))
    biased = [
        make_task(choice(folder), seed).model[0].bias is not None  # type: ignore[index]
        for seed, folder in enumerate([tmp_path, other, tmp_path, other])
    ]
    assert biased == [True, False, True, False]
    assert sys.path.count(str(other)) == 1
    assert str(tmp_path) not in sys.path


def test_a_package_beside_the_file_can_be_named(tmp_path: Path, experiment: Path) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text("")
    (tmp_path / "own_package/task.py").write_text("from own_task import make as make\n")
    assert make_task(choice(tmp_path, "own_package.task:make"), 0).model.seed == 0


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("own_tsk:make", "there is no module 'own_tsk' in {0}: did you mean 'own_task'? (known: own_task, raising)"),
        ("own_task.deep:make", "there is no module 'own_task.deep' in {0}"),
        ("own_task:mak", "own_task has no 'mak': did you mean 'make'?"),
        ("own_task:WIDTH", "own_task:WIDTH is a int, 4, not a function that makes a task"),
        ("own_task:wrong", "own_task:wrong returned a Linear, Linear("),
        ("own_task:nothing", "own_task:nothing returned nothing: return paceline.Task("),
        ("own_task:fails", "own_task:fails raised FileNotFoundError: [Errno 2] No such file or directory: 'data.pt'"),
        ("own_task:leaves", "own_task:leaves raised SystemExit: 3 (own_task.py, line "),
        ("raising:make", "raising cannot be imported: ZeroDivisionError: division by zero (raising.py, line 1)"),
        ("json:make", "json has no 'make'"),
    ],
)
def test_what_is_no_factory_is_refused_in_one_line(
    tmp_path: Path, experiment: Path, capsys: pytest.CaptureFixture[str], factory: str, said: str
) -> None:
    (tmp_path / "raising.py").write_text("1 / 0\n")
    experiment.write_text(EXPERIMENT.replace("own_task:make", factory))
    line = refused(["train", str(experiment)], capsys)
    assert "task.factory: " + said.format(tmp_path) in line


def test_a_module_that_is_imported_already_is_not_mistaken_for_another(tmp_path: Path, experiment: Path) -> None:
    (tmp_path / "json.py").write_text(TASK)
    said = refusal(choice(tmp_path, "json:make"), 0)
    assert "json of " in said
    assert "has the name of a module that is imported already" in said


def test_a_broken_import_inside_the_module_names_the_line(tmp_path: Path, experiment: Path) -> None:
    (tmp_path / "raising.py").write_text("import os\nimport no_such_library\n")
    said = refusal(choice(tmp_path, "raising:make"), 0)
    assert (
        "raising cannot be imported: ModuleNotFoundError: No module named 'no_such_library' (raising.py, line 2)"
        in said
    )
    (tmp_path / "raising.py").write_text("def make(:\n")
    assert "SyntaxError: invalid syntax (raising.py, line 1)" in refusal(choice(tmp_path, "raising:make"), 0)


def test_arguments_are_checked_against_the_function(tmp_path: Path, experiment: Path) -> None:
    said = refusal(choice(tmp_path, hiden=3), 0)
    assert "task.arguments: own_task:make has no argument 'hiden': did you mean 'hidden'?" in said
    assert "task.arguments: 'size' is missing: own_task:needs needs it" in refusal(
        choice(tmp_path, "own_task:needs"), 0
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"own_task:make"', '"own_task"', "factory = 'own_task' names no function: write module:function"),
        ('"own_task:make"', '"own-task:make"', "factory = 'own-task:make' names no function"),
        ('"own_task:make"', "3", "task.factory: must be a text, not 3"),
        ('"own_task:make"', '"own_task:make"\ndata = "digits"', "the factory makes data and model: leave data out"),
        ('"own_task:make"', '"own_task:make"\nargument = 1', "task: unknown key 'argument'"),
        ("hidden = 6", "hidden = 2026-01-01", "task.arguments.hidden: datetime.date(2026, 1, 1) is no number, text"),
        ("hidden = 6", "hidden = [1, nan]", "task.arguments.hidden[1]: nan is not finite"),
    ],
)
def test_a_section_that_cannot_be_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(EXPERIMENT.replace(old, new))
    assert said in str(caught.value)


def test_the_configuration_keeps_the_folder(experiment: Path, tmp_path: Path) -> None:
    Path("nowhere").mkdir()
    config = read_config(Path("nowhere/../experiment.toml"))
    assert config.task == FactoryChoice("own_task:make", {"hidden": 6}, str(tmp_path))
    assert parse_config(write_config(config)) == config


def test_a_run_is_replayed_resumed_and_reported_where_its_code_is_trusted(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "experiment.toml", "--directory", "run", "--seed", "2"]) == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    for arguments in (["replay", "../run"], ["train", "--resume", "../run"]):
        assert f"names code, own_task:make in {tmp_path}, which is not run: add --trust" in refused(arguments, capsys)
    assert main(["replay", "../run", "--trust"]) == 0
    assert "The weights are the same, bit for bit." in capsys.readouterr().out
    assert main(["train", "--resume", "../run", "--trust"]) == 0
    assert main(["train", "../experiment.toml", "--resume", "../run", "--seed", "2"]) == 0
    assert main(["replay", "../run", "--strategy", "asgd"]) == 0  # runs no code
    assert main(["report", "../run", "--out", "page.html"]) == 0
    capsys.readouterr()
    assert main(["predict", "../run", "--strategy", "asgd"]) == 0
    assert "The model is not looked at: own_task:make is code" in " ".join(capsys.readouterr().out.split())
    assert main(["predict", "../run", "--strategy", "asgd", "--trust"]) == 0
    assert "largest curvature of the model's loss" in capsys.readouterr().out


def test_an_interrupted_run_says_how_to_resume(experiment: Path) -> None:
    from paceline.storage.run_directory import RunDirectory

    place = RunDirectory("run", {"config.toml": ""}, names_code=True)
    assert place.how_to_resume().startswith("paceline train --resume run --trust continues")


def test_worker_processes_import_the_module(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "experiment.toml", "--fleet", "processes", "--directory", "run"]) == 0
    assert "ended by updates after 6 updates" in capsys.readouterr().out
    assert main(["replay", "run", "--trust"]) == 0
    assert "The weights are the same, bit for bit." in capsys.readouterr().out


def test_the_workers_of_a_profile_import_the_module(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "experiment.toml", "--fleet", "processes", "--seconds", "1", "--output", "seen"]) == 0
    assert "Trace: seen" in capsys.readouterr().out


def test_a_comparison_in_processes_is_that_in_one(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "experiment.toml", "--strategy", "ssgd", "--strategy", "asgd", "--figure", "f.png"]
    assert main([*arguments, "--jobs", "1", "--json", "one.json"]) == 0
    assert "own_task:make, 2 workers" in capsys.readouterr().out
    assert main([*arguments, "--jobs", "2", "--json", "two.json"]) == 0
    assert Path("one.json").read_text() == Path("two.json").read_text()


def test_an_error_in_a_process_of_a_comparison_is_one_line(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.write_text(EXPERIMENT.replace("own_task:make", "own_task:fails"))
    assert "own_task:fails raised FileNotFoundError" in refused(["compare", str(experiment), "--jobs", "2"], capsys)
