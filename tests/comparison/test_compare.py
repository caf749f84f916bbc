"""``paceline.compare``: several strategies on a task of one's own, from Python."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from paceline import delays
from paceline.cli.main import main
from paceline.storage.reading import read_run

FLEET = paceline.SimulatedFleet([delays.LogNormal(1.0, 0.2)] * 3 + [delays.LogNormal(4.0, 0.2)])


def data(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 4, generator=random)
    return inputs, (inputs[:, 0] > inputs[:, 1]).long()


def task(seed: int = 0) -> paceline.Task:
    return paceline.Task(nn.Linear(4, 2), nn.functional.cross_entropy, train=data(160, 1), test=data(80, 2))


def compared(**others: Any) -> paceline.Comparison:
    arguments: dict[str, Any] = {
        "strategies": ["ssgd", paceline.FastestK(3)],
        "fleet": FLEET,
        "optimizer": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
        "learning_rates": [0.3, 1.0],
        "seeds": [0, 1, 2],
        "target": 0.8,
        "stop": paceline.Stop(seconds=40),
        "batch_size": 8,
        "jobs": 1,
        "progress": False,
        **others,
    }
    return paceline.compare(arguments.pop("task", task), **arguments)


@pytest.fixture(scope="module")
def found() -> paceline.Comparison:
    return compared()


def test_the_table_and_the_verdict(found: paceline.Comparison) -> None:
    assert [row["strategy"] for row in found.rows] == ["k-sgd:quorum=3", "ssgd"]
    assert found.table.startswith("task, 4 workers, 3 seeds, medians (range)")
    assert "time to 80%" in found.table
    first = found.verdict.splitlines()[0]
    assert "k-sgd:quorum=3" in first
    assert "reaches 80.0% accuracy after" in first
    assert "times as fast as ssgd" in first
    assert "95% interval over 3 seeds" in found.verdict
    assert "for worker 3" in found.verdict  # who was waited for
    assert str(found) == f"{found.table}\n{found.verdict}"
    html = found._repr_html_()
    assert html.count("<tr>") == 3
    assert "k-sgd:quorum=3" in html


def test_seeds_are_pairs(found: paceline.Comparison) -> None:
    first, second = found.entries
    assert [each.job.seed for each in first.outcomes] == [each.job.seed for each in second.outcomes] == [0, 1, 2]
    same = [
        one.history[0].loss == two.history[0].loss for one, two in zip(first.outcomes, second.outcomes, strict=True)
    ]
    assert all(same)  # the same first weights
    assert len({each.history[0].loss for each in first.outcomes}) == 3  # other ones for each seed
    row = found.rows[1]
    assert row["told_apart_from_the_first"] is first.told_apart(second)
    assert row["times_as_long_as_the_first"]["seeds"] == 3


def test_a_task_keeps_its_weights_for_all_seeds() -> None:
    one = compared(task=task(), strategies=["ssgd"], learning_rates=None, optimizer=sgd, seeds=[0, 1])
    first = [outcome.history[0].loss for outcome in one.outcomes]
    assert first[0] == first[1]
    assert one.rows[0]["lr"] is None


def test_prices_have_a_column_if_there_are_any(found: paceline.Comparison) -> None:
    """Four workers at 2 a second, for as long as the run took."""
    priced = compared(fleet=replace(FLEET, prices=2.0), strategies=["ssgd"], learning_rates=[0.3], seeds=[0])
    seconds = priced.outcomes[0].measures.seconds
    assert priced.rows[0]["price"] == pytest.approx(2.0 * FLEET.workers * seconds)
    assert "price" in str(priced)
    assert "price" not in found.rows[0]
    assert "price" not in str(found)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def test_it_is_the_pipeline_of_train(found: paceline.Comparison) -> None:
    outcome = next(each for each in found.outcomes if each.job == (0, 1.0, 1))
    torch.manual_seed(1)
    run = paceline.train(
        task(), strategy="ssgd", fleet=FLEET, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0), seed=1,
        stop=paceline.Stop(seconds=40), batch_size=8, progress=False,
    )  # fmt: skip
    assert [row.loss for row in run.history] == [row.loss for row in outcome.history]
    assert run.settings == outcome.settings


def test_processes_give_the_same(found: paceline.Comparison) -> None:
    assert compared(jobs=2).data() == found.data()


def test_a_script_without_a_guard_may_compare_in_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch, paceline
from paceline import delays

class Net(torch.nn.Linear):
    pass

def task(seed):
    inputs = torch.randn(64, 4)
    return paceline.Task(Net(4, 2), torch.nn.functional.cross_entropy, train=(inputs, (inputs[:, 0] > 0).long()))

found = paceline.compare(
    task, strategies=["ssgd", "asgd"], fleet=paceline.SimulatedFleet([delays.Constant(1.0)] * 2), seeds=[0],
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), stop=paceline.Stop(updates=3), jobs=2,
    batch_size=8,
)
print(len(found.rows), "rows")
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2 rows\n"), done.stderr


def test_the_page_has_the_verdict_on_top_and_the_settings_as_data(found: paceline.Comparison, tmp_path: Path) -> None:
    path = found.report(tmp_path / "page.html")
    text = path.read_text()
    verdict, runs = text.index("<h2>In short</h2>"), text.index("<h2>Runs</h2>")
    assert verdict < text.index("reaches 80.0% accuracy after") < runs
    for words in ("SGD(lr=1.0)", "Linear, 10 parameters", "tensors, 160 samples, 80 to test", "<dt>seed</dt>"):
        assert words in text
    told = json.loads(text.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    in_words = {"k-sgd:quorum=3": "K-SGD, 3 of 4", "ssgd": "synchronous SGD"}
    assert [run["name"].split(" (")[0] for run in told["runs"]] == [in_words[row["strategy"]] for row in found.rows]
    with pytest.raises(paceline.ConfigError, match=r"page.txt must end with .html"):
        found.report(tmp_path / "page.txt")


def test_the_curves(found: paceline.Comparison, tmp_path: Path) -> None:
    assert len(found.plot().axes) == 4
    found.plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_run_directories_are_kept_if_asked(tmp_path: Path) -> None:
    found = compared(directory=tmp_path / "runs", seeds=[3], learning_rates=[1.0])
    assert sorted(path.name for path in found.directories) == ["k-sgd-quorum=3-lr1-seed3", "ssgd-lr1-seed3"]
    saved = read_run(tmp_path / "runs/ssgd-lr1-seed3")
    assert saved.config["settings"] == {
        "optimizer": {"kind": "SGD", "lr": 1.0},
        "learning_rate": 1.0,
        "batch_size": 8,
        "model": {"kind": "Linear", "parameters": 10},
        "data": {"kind": "tensors", "samples": 160, "test_samples": 80},
        "seed": 3,
    }
    with pytest.raises(paceline.ConfigError, match="is not empty"):
        compared(directory=tmp_path / "runs")


def perplexity(model: nn.Module) -> dict[str, float]:
    inputs, targets = data(80, 2)
    return {"perplexity": float(nn.functional.cross_entropy(model(inputs), targets).exp())}


def test_any_metric_is_a_target() -> None:
    own = paceline.Task(nn.Linear(4, 2), nn.functional.cross_entropy, train=data(160, 1), evaluate=perplexity)
    found = compared(task=own, target=None, metric="perplexity", below=1.6, seeds=[0, 1])
    assert "time to perplexity below 1.6" in found.table
    assert "accuracy" not in found.table
    assert "reaches perplexity below 1.6 after" in found.verdict
    assert found.rows[0]["metrics"]["perplexity"] < 1.6
    assert found.rows[0]["accuracy"] is None
    assert len(found.plot().axes) == 2
    ended = paceline.Stop(seconds=40, metric="perplexity", below=1.6)
    assert compared(task=own, target=None, seeds=[0], stop=ended).plan.target == found.plan.target


def test_a_metric_that_nobody_reports_is_refused() -> None:
    with pytest.raises(paceline.ConfigError, match=r"no evaluation returns 'preplexity': choose from loss, accuracy"):
        compared(target=None, metric="preplexity", below=20.0)


def test_labels_of_ones_own() -> None:
    found = compared(strategies={"all": "ssgd", "three": paceline.FastestK(3)}, seeds=[0], learning_rates=[1.0])
    assert {row["strategy"] for row in found.rows} == {"all", "three"}
    assert "One seed: nothing can be said about chance." in found.verdict


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"strategies": []}, r'strategies=\[\]: give a list of them, such as \["ssgd", "asgd"\]'),
        ({"strategies": "ssgd"}, "strategies='ssgd': give a list"),
        ({"strategies": ["ssgd", "sync"]}, "strategies: ssgd is given twice"),
        ({"strategies": ["lgcc"]}, "did you mean 'lgc'"),
        ({"strategies": ["k-sgd:quorum=9"]}, "a quorum of 9 does not fit 4 workers"),
        ({"fleet": 4}, "fleet=4 is a number"),
        ({"seeds": []}, "give different whole numbers"),
        ({"seeds": [1, 1]}, "give different whole numbers"),
        ({"seeds": 3}, "seeds=3: give different whole numbers"),
        ({"learning_rates": []}, "learning_rates=.*give positive numbers"),
        ({"learning_rates": [0.1, -1.0]}, "give positive numbers"),
        ({"learning_rates": None}, "optimizer= cannot be called with parameters"),
        ({"jobs": 0}, "jobs=0 is not possible"),
        ({"jobs": 1.5}, "jobs=1.5 is not possible"),
        ({"target": 90}, "target=90 is no accuracy"),
        ({"target": None, "below": 2.0}, "below=2.0 is the limit of a metric: name it"),
        ({"metric": "loss", "below": 2.0}, "give one of them"),
        ({"target": None, "metric": "loss"}, "give either below or above"),
        ({"batch": 8}, "compare\\(\\) has no argument 'batch': did you mean 'batch_size'"),
        ({"checkpoint": paceline.Every(updates=1)}, "several runs, which cannot share checkpoint="),
        ({"stop": None}, "a run needs an end"),
        ({"task": 3}, "task=3 is a number"),
        ({"task": lambda seed: nn.Linear(2, 2)}, "of the seed 0, and not a paceline.Task"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(paceline.ConfigError, match=said) as caught:
        compared(**wrong)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_sent_to_processes_is_said() -> None:
    model = nn.Linear(4, 2)
    model.lock = logging.Handler().lock  # type: ignore[assignment]
    held = paceline.Task(model, nn.functional.cross_entropy, train=data(160, 1))
    with pytest.raises(paceline.ConfigError, match=r"the task cannot be sent to other processes .*: give jobs=1"):
        compared(task=held, jobs=2)


def test_the_command_writes_the_page_and_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.factory import write_experiment

    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path)
    arguments = ["compare", "experiment.toml", "-s", "ssgd", "-s", "asgd", "--jobs", "1"]
    assert main([*arguments, "--report", "page.html", "--directory", "kept"]) == 0
    assert "ends with the lowest loss" in Path("page.html").read_text()
    assert sorted(path.name for path in Path("kept").iterdir()) == ["asgd-seed0", "ssgd-seed0"]
    assert main(["replay", "kept/asgd-seed0", "--trust"]) == 0
    assert main([*arguments, "--directory", "kept"]) == 2
    assert main([*arguments, "--report", "page.txt"]) == 2
    del sys.modules["own_task"]
