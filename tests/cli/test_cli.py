"""The command line: exit codes, messages, and what it leaves on disk."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.trace.reading import read_trace
from support.processes import PATIENCE
from support.tiny import DIVERGING, ROOT, TINY, changed, refused, tiny

__all__ = ["tiny"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("k-sgd:quorum=2", "k-sgd:quorum=5", "'k-sgd:quorum=5': a quorum of 5 does not fit 4 workers: choose 1 to 4"),
        ('"gsgd"', '"gsgd:groups=0-2/2-3"', "groups overlap: worker 2 named more than once"),
        ('"gsgd"', '"gsgd:groups=0-1/3"', "groups miss worker 2"),
        ('"gsgd"', '"gsgd:groups=0-4"', "groups name worker 4: the fleet has workers 0 to 3"),
        ("blocks=4", "blocks=3", "3 blocks do not divide a batch of 8 evenly: nearest 2"),
        ("value = 3.0", "value = 0", "value must be positive and finite, not 0"),
        ("value = 3.0", "value = nan", "value must be positive and finite, not nan"),
        ('2\ndelay = "constant"', '300\ndelay = "constant"', "with 4 samples, fewer than one batch of 8"),
        ("classes_per_worker = 4", "classes_per_worker = 1", "leaves classes out"),
        ("batch_size", "batchsize", "unknown key 'batchsize': did you mean 'batch_size'?"),
        ("batch_size = 8", "batch_size = 2000", "the data set has 1438 samples, fewer than one batch of 2000"),
        ('"SGD"', '"SDG"', "torch has no 'SDG': did you mean 'SGD'?"),
        ('"SGD"', '"LBFGS"', "LBFGS evaluates the loss by itself"),
        ('"SGD"', '"SGD"\nmomentun = 0.9', "SGD has no option 'momentun': did you mean 'momentum'?"),
        ('"SGD"', '"SGD"\nmomentum = -1.0', "SGD refuses"),
        ("[tune]", '[scheduler]\nname = "StepLR"\n[tune]', "StepLR refuses {}"),
        ("lr = [0.1, 0.5]", "lr = []", "has no learning rates to try"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    assert said in refused(["compare", changed(tiny, old, new), "--jobs", "1", "--json", "out.json"], capsys)


def test_a_partition_that_leaves_a_worker_empty_is_refused(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = TINY.replace("count = 2", "count = 10").replace("classes_per_worker = 4", "alpha = 0.0001")
    tiny.write_text(many.replace('"pathological"', '"dirichlet"'))
    assert "Dirichlet(alpha=0.0001) leaves worker" in refused(["compare", str(tiny), "--jobs", "1"], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "none.toml"], "cannot read none.toml"),
        (["compare", "tiny.toml", "--strategy", "lgcc"], "did you mean 'lgc'?"),
        (["compare", "tiny.toml", "--json", "out.txt"], "out.txt must end with .json"),
        (["compare", "tiny.toml", "--figure", "tiny.toml/x.png"], "cannot write tiny.toml/x.png"),
        (["compare", "--sedes", "3"], "No such option"),
        (["compare", "--seeds", "0"], "--seeds"),
        (["comprae"], "comprae"),
        (["train"], "Missing argument"),
        (["train", "tiny.toml"], "names 5 strategies: choose one with --strategy"),
        (
            ["train", "tiny.toml", "--strategy", "ssgd"],
            "has no single learning rate: set lr in [optimizer], or give --lr",
        ),
        (["train", "tiny.toml", "--strategy", "lgc:quorum=9", "--lr", "0.1"], "a quorum of 9 does not fit 4 workers"),
        (["train", "tiny.toml", "--strategy", "ssgd", "--lr", "0.1", "--directory", "full"], "full is not empty"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    Path("full").mkdir()
    Path("full/mine.txt").write_text("keep")
    assert said in refused(arguments, capsys)


def test_compare_shows_a_table_and_writes_figure_and_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tiny), "--jobs", "1", "--json", "out.json", "--figure", "curves.png"]) == 0
    output = capsys.readouterr()
    for word in ("lgc:quorum=2,blocks=4", "time to 30%", ": it reaches 30.0% accuracy", "Curves: curves.png"):
        assert word in output.out
    assert output.err == "20 runs in 1 process ...\n"  # and no warning of a learning rate that beat a smaller one
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(Path("out.json").read_text())
    assert told["complete"]
    assert len(told["runs"]) == 5 * 2 * 2
    assert told["settings"]["strategy"][2] == {"name": "fastest-k", "quorum": 2}
    assert " ".join(told["verdict"][0].split()) in " ".join(output.out.split())
    assert told["verdict"][0].startswith(told["rows"][0]["strategy"])
    times = [row["seconds_to_target"] for row in told["rows"] if row["seconds_to_target"] is not None]
    assert times == sorted(times)
    by_name = {row["strategy"]: row for row in told["rows"]}
    assert by_name["ssgd"]["mean_staleness"] == 0 == by_name["ssgd"]["wasted_share"]
    assert by_name["k-sgd:quorum=2"]["wasted_share"] > 0.2
    assert by_name["asgd"]["updates"] > by_name["gsgd"]["updates"] > by_name["ssgd"]["updates"]
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["curves.png", "out.json", "tiny.toml"]


def test_the_number_of_processes_changes_nothing(tiny: Path) -> None:
    arguments = ["compare", str(tiny), "--strategy", "ssgd", "--strategy", "asgd", "--seeds", "1", "--figure", "f.png"]
    assert main([*arguments, "--jobs", "1", "--json", "one.json"]) == 0
    assert main([*arguments, "--jobs", "2", "--json", "two.json"]) == 0
    assert Path("one.json").read_text() == Path("two.json").read_text()


def test_rules_that_hand_in_models_are_compared_with_the_others(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["buffered:size=8", "ringmaster:threshold=16", "diloco:every=16", "easgd:every=4"]
    tiny.write_text(TINY.replace("seconds = 12", "updates = 3").replace("lr = [0.1, 0.5]", "lr = [0.1]"))
    chosen = [argument for text in texts for argument in ("--strategy", text)]
    assert main(["compare", str(tiny), *chosen, "--seeds", "1", "--jobs", "1", "--json", "out.json"]) == 0
    told = json.loads(Path("out.json").read_text())
    assert {"diloco:every=16", "easgd:every=4"} <= {row["strategy"] for row in told["rows"]}
    assert {"name": "distributed-low-communication", "every": 16} in told["settings"]["strategy"]
    assert "diloco:every=16" in capsys.readouterr().out


def test_a_strategy_that_diverged_is_shown_as_such(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_text(DIVERGING)
    assert main(["compare", str(tiny), "--strategy", "ssgd", "--seeds", "1", "--jobs", "1"]) == 0
    assert "diverged at update" in capsys.readouterr().out


def test_train_keeps_everything_in_a_directory(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(tiny), "--strategy", "lgc:quorum=2,blocks=4", "--lr", "0.3", "--seed", "5"]) == 0
    path = Path("runs/tiny-lgc-seed5")
    assert f"Run: {path}" in capsys.readouterr().out
    files = ["config.json", "config.toml", "metrics.jsonl", "model.safetensors", "summary.json", "trace.jsonl"]
    assert sorted(each.name for each in path.iterdir()) == ["checkpoint.safetensors", *files]
    assert 'name = "live-compensation"' in (path / "config.toml").read_text()
    assert read_trace(path).about["workers"] == 4


def test_a_run_repeats_from_the_config_that_it_saved(tiny: Path) -> None:
    assert main(["train", str(tiny), "--strategy", "gsgd", "--lr", "0.3", "--directory", "one"]) == 0
    assert main(["train", "one/config.toml", "--directory", "two"]) == 0
    for name in ("config.toml", "metrics.jsonl", "trace.jsonl", "model.safetensors"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


def test_a_second_run_gets_a_directory_of_its_own(tiny: Path) -> None:
    for _ in range(2):
        assert main(["train", str(tiny), "--strategy", "ssgd", "--lr", "0.1"]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["tiny-ssgd-seed0", "tiny-ssgd-seed0-2"]


def test_a_run_that_diverged_exits_with_one(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_text(DIVERGING)
    assert main(["train", str(tiny), "--strategy", "ssgd", "--lr", "1e25"]) == 1
    assert "diverged at update" in capsys.readouterr().out


def test_the_example_is_valid_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = str(ROOT / "examples/compare.toml")
    assert main(["compare", example, "--strategy", "gsgd", "--strategy", "ssgd", "--seeds", "1", "--jobs", "1"]) == 0


def test_strategies_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["strategies"]) == 0
    listed = capsys.readouterr().out
    for word in ("ssgd", "asgd", "k-sgd:quorum=7", "lgc", "gsgd", "Gao & Chen", "Compensation"):
        assert word in listed


def test_help_and_version_import_nothing_heavy() -> None:
    script = (
        "import sys; from paceline.cli.main import main; codes = main(['--help']), main(['--version']), main([]);"
        "heavy = {'torch', 'numpy', 'ray', 'matplotlib', 'sklearn'} & set(sys.modules); assert not heavy, heavy;"
        "assert codes == (0, 0, 0), codes"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "compare" in done.stdout
    assert "paceline 0." in done.stdout


def test_the_demo_without_scikit_learn_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['sklearn'] = None; from paceline.cli.main import main;"
        "sys.exit(main(['compare', '--jobs', '1', '--figure', 'curves.png']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("the data set \"digits\" needs scikit-learn: pip install 'paceline[demo]'\n")
    assert done.stderr.count("\n") == 1


def test_a_simulated_file_can_be_trained_on_processes(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(tiny, "value = 3.0", "value = 0.03")
    tiny.write_text(tiny.read_text().replace("median = 1.0", "median = 0.01").replace("seconds = 12", "updates = 30"))
    arguments = ["train", str(tiny), "--strategy", "gsgd", "--lr", "0.3", "--fleet", "processes"]
    assert main([*arguments, "--directory", "one"]) == 0
    assert "ended by updates after 30 updates" in capsys.readouterr().out
    assert read_trace("one").about["clock"] == "real"
    assert main(["train", "one/config.toml", "--directory", "two"]) == 0  # where the fleet is written down as it was
    assert read_trace("two").about["clock"] == "real"
    capsys.readouterr()
    assert "unknown: did you mean 'processes'?" in refused([*arguments[:-1], "process"], capsys)


def test_models_are_handed_in_by_processes_and_replayed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet, rest = TINY.index("[[fleet.workers]]"), TINY.index("[partition]")
    text = f'{TINY[:fleet]}[fleet]\nkind = "processes"\nworkers = 3\nthreads = 1\n{TINY[rest:]}'
    tiny.write_text(text.replace("seconds = 12", "updates = 4").replace("lr = [0.1, 0.5]", "lr = [0.1]"))
    for strategy in ("ma:every=5", "ec-dnn-r:every=10,compression_steps=3"):
        name = strategy.partition(":")[0]
        assert main(["train", str(tiny), "--strategy", strategy, "--lr", "0.1", "--directory", name]) == 0
        assert "ended by updates after 4 updates" in capsys.readouterr().out
        assert (tiny.parent / name / "local.safetensors").exists()
        assert main(["replay", name]) == 0
        assert "The weights are the same, bit for bit." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "compare"])
def test_ctrl_c_ends_with_one_line_and_130(tiny: Path, command: str) -> None:
    changed(tiny, "seconds = 12", "seconds = 1e7")
    options = {
        "train": ["--strategy", "asgd", "--lr", "0.1", "--directory", "run"],
        "compare": ["--jobs", "2", "--json", "out.json"],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", command, str(tiny), *options[command]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until_busy(command, process)
        helpers = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.count("\n") == 1
    assert err.startswith("interrupted")
    _wait_until_gone(helpers)
    if command == "train":
        assert "everything so far is in run" in err
        files = {path.name for path in Path("run").iterdir()}
        assert {"config.toml", "model.safetensors", "summary.json", "trace.jsonl"} <= files
        assert json.loads(Path("run/summary.json").read_text())["ended"] == "interrupted"
    else:
        assert sorted(path.name for path in Path.cwd().iterdir()) == ["tiny.toml"]


def test_ctrl_c_while_a_process_is_started_is_one_line_too(tiny: Path) -> None:
    """A process that was started by half would print a traceback of its own when the one that started it is gone."""
    script = (
        "import os, signal, sys; from multiprocessing import popen_forkserver; from paceline.cli.main import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler); launch = popen_forkserver.Popen._launch\n"
        "def interrupted(popen, process):\n"
        "    launch(popen, process)\n"
        "    if 'worker' in process._target.__name__: os.kill(os.getpid(), signal.SIGINT)\n"
        "popen_forkserver.Popen._launch = interrupted\n"
        f"sys.exit(main(['compare', {str(tiny)!r}, '--jobs', '2']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted after 0 of 20 runs; nothing was written\n"


def _wait_until_busy(command: str, process: "subprocess.Popen[str]") -> None:
    """Until a run has made updates; of ``compare`` only the processes that it started can be seen."""
    deadline = time.monotonic() + PATIENCE
    metrics = Path("run/metrics.jsonl")
    while time.monotonic() < deadline and process.poll() is None:
        if command == "train" and metrics.exists() and metrics.read_text().count("\n") > 3:
            return
        if command == "compare" and len(_descendants(process.pid)) >= 4:  # fork server, resource tracker, two workers
            return
        time.sleep(0.05)
    pytest.fail(f"paceline {command} did not get to work: {process.poll()}")


def _wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if _alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} were left behind"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def test_compare_tells_what_models_of_the_workers_own_cost(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [
        "--strategy",
        "ma:every=2",
        "--strategy",
        "ec-dnn-s:every=2,compression_steps=1,relabel=0.02",
        "--strategy",
        "ssgd",
    ]
    assert main(["compare", str(tiny), *chosen, "--seeds", "1", "--jobs", "1", "--json", "out.json"]) == 0
    shown = capsys.readouterr().out
    for word in ("ma:every=2", "ec-dnn-s:every=2,", "compression_steps=1,", "worker-seconds", "relabelling"):
        assert word in shown
    rows = {row["strategy"]: row["worker_seconds"] for row in json.loads(Path("out.json").read_text())["rows"]}
    assert rows["ma:every=2"]["relabelling"] == rows["ssgd"]["relabelling"] == 0
    assert rows["ec-dnn-s:every=2,compression_steps=1,relabel=0.02"]["relabelling"] > 0


def test_train_runs_a_model_strategy_and_keeps_both_models(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(tiny), "--strategy", "e-dnn:steps=5", "--lr", "0.3", "--directory", "run"]
    assert main(arguments) == 0, capsys.readouterr().err
    assert {"model.safetensors", "local.safetensors"} <= {file.name for file in Path("run").iterdir()}


COMMANDS = ("init", "compare", "train", "replay", "predict", "profile", "report", "strategies")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_names_its_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 on success;" in shown
    assert "2 if an argument or file is invalid; 130 on Ctrl-C; 143 on SIGTERM." in shown
    assert "check-step" not in shown
    assert ("--check-lr / --no-check-lr" in shown) == (command in {"compare", "train"})


@pytest.mark.parametrize("option", ["--no-check-lr", "--no-check-step"])
def test_the_warning_about_the_learning_rate_can_be_turned_off(
    tiny: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    arguments = ["compare", str(tiny), "--strategy", "asgd", "--seeds", "1", "--jobs", "1"]
    assert main([*arguments, option]) == 0
    assert "warning" not in capsys.readouterr().err
