"""The five commands with ``--quick``, as people give them: real data, claims, figures; and once more, of what is kept.

Without data only that of the delay equations is run: ``make test DATA=DIR``.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from reproductions.cli import PAPERS, main
from reproductions.sdde.experiment import DELAYS
from reproductions.seeds import FILE

DATA = os.environ.get("PACELINE_DATA")
NEEDS_DATA = pytest.mark.skipif(not DATA, reason="needs real data: make test DATA=DIR")
MEASURED = ("time_saved_percent", "overhead_percent")  # by the clock, on a machine that does other things meanwhile
NO_DATA_NEEDED = "sdde"
FIGURES = {
    "lgc": ["lgc-timing.png", "lgc-accuracy.png", "lgc-convergence.png"],
    "group-sgd": [f"group-sgd-{name}.png" for name in ("svm", "logistic", "controls", "theorem")],
    "ec-dnn": ["ec-dnn-gain.png", "ec-dnn-curves.png", "ec-dnn-tables.md"],
    "fine-pruning": [
        "fine-pruning-accuracy.png", "fine-pruning-search.png", "fine-pruning-samples.png",
        "fine-pruning-most-pruned.png",
    ],
    "sdde": [f"sdde-{name}.png" for name in ("paths", "moments", "errors", "bounds")],
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have the others: no pool of processes is started."""
    monkeypatch.setattr("reproductions.pipeline.runs.usable_cores", lambda: 1)


def quick(name: str, place: Path, number: int) -> dict[str, Any]:
    """The card that a command writes; what it keeps is in ``place``."""
    card = place / f"card-{number}.json"
    data = ["--data", DATA] if DATA else []
    told = ["--work", str(place / "work"), "--json", str(card), "--figures", str(place / "figures")]
    assert main([name, "--quick", *data, *told]) == 0
    found: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
    return found


def turned(found: Mapping[str, str], committed: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Claims with another verdict than both seeds have, where both hold; and those that hold for one and not another.

    What chance decides, and so perhaps the rounding of another processor, may be told or not.
    """
    first, second = committed.values()
    assert found.keys() == first.keys(), "other claims: make the verdicts anew, python -m reproductions seeds"

    def fits(verdict: str, known: set[str]) -> bool:
        if known == {"yes"}:
            return verdict == "yes"
        return not ({verdict, *known} >= {"yes", "no"})

    return [name for name in found if name not in MEASURED and not fits(found[name], {first[name], second[name]})]


def check_trained(name: str, runs: list[dict[str, Any]]) -> None:
    """What must come of training whatever the processor."""
    if name == "lgc":
        trained = [run for run in runs if run["kind"] == "training"]
        assert [run["method"] for run in trained] == ["full", "k", "lgc"]
        assert all(run["ended"] == "updates" and run["train_loss"] < math.log(10) for run in trained)
    elif name == "group-sgd":
        ends = {(run["model"], run["strategy"]): run["loss"][-1] for run in runs if run["rates"] == "paper"}
        assert ends["svm", "gsgd"] < ends["svm", "ssgd"] < 0.5
        assert ends["logistic", "gsgd"] < ends["logistic", "ssgd"] < 0.69
    elif name == "ec-dnn":
        assert [run["method"] for run in runs] == ["ma", "ec_s", "e", "s", "ec_r", "ec_m"]
        assert all(run["problem"] is None and run["curve"][-1]["steps"] == run["steps"] for run in runs)
    elif name == "fine-pruning":
        arms = {run["arm"]: run["saved"] for run in runs if run["kind"] == "training" and run["model"] == "lenet"}
        assert {arm: round(saved, 3) for arm, saved in arms.items() if arm != "soft"} == {
            "regular": 0, "pruned": 0.15, "random": 0.15, "shortened": 0.15,
        }  # fmt: skip
        assert sum(runs[-1]["samples_by_times"]) == 1_000
        assert len(runs[-1]["most_pruned"]) == 40
    else:
        assert [run["method"] for run in runs if run["what"] == "paths"] == [*DELAYS]


@pytest.fixture
def figures(tmp_path: Path) -> Iterator[None]:
    yield
    drawn = list((tmp_path / "figures").iterdir())
    assert all(path.stat().st_size > 500 for path in drawn)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn if path.suffix == ".png")


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == NO_DATA_NEEDED else NEEDS_DATA) for name in PAPERS]
)
def test_quick(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = quick(name, tmp_path, 1)
    committed = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert turned({each["name"]: each["verdict"] for each in card["claims"] if each["verdict"] != "-"}, committed) == []
    check_trained(name, card["runs"])
    assert {path.name for path in (tmp_path / "figures").iterdir()} >= {*FIGURES[name]}
    capsys.readouterr()
    assert quick(name, tmp_path, 2) == card
    assert capsys.readouterr().err == "", "what is kept was run again"


def test_verdicts_are_compared_but_for_what_chance_decides() -> None:
    committed = {
        "0": {"holds": "yes", "chance": "yes", "fails": "no", "other": "no", "time_saved_percent": "yes"},
        "1": {"holds": "yes", "chance": "cannot be told", "fails": "no", "other": "cannot be told",
              "time_saved_percent": "yes"},
    }  # fmt: skip
    same = dict(committed["1"])
    assert turned(same, committed) == []
    assert turned({**same, "fails": "cannot be told", "time_saved_percent": "no"}, committed) == []
    assert turned(same | dict.fromkeys(same, "cannot be told"), committed) == ["holds"]
    assert turned(same | dict.fromkeys(same, "yes"), committed) == ["fails", "other"]
    assert turned(same | dict.fromkeys(same, "no"), committed) == ["holds", "chance"]
    with pytest.raises(AssertionError, match="make the verdicts anew"):
        turned({**same, "new": "yes"}, committed)
