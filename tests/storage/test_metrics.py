"""The rows of metrics.jsonl: written, read back, and refused where they are not what they should be."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from paceline.core.codec import LONGEST_NAME, MOST_METRICS
from paceline.core.errors import ConfigError
from paceline.storage.metrics import Metrics, MetricsFile, Row, read_rows, row_from

OLD = {
    "updates": 3, "seconds": 1.5, "samples": 96, "loss": 0.5, "accuracy": None, "staleness": 0.0, "training_loss": None,
}  # fmt: skip


def row(**metrics: float) -> Row:
    loss, accuracy = metrics.get("loss", math.nan), metrics.get("accuracy", math.nan)
    return Row(3, 1.5, 96, loss, accuracy, 0.0, 0.75, Metrics(metrics))


@pytest.mark.parametrize(
    "metrics",
    [
        {"loss": 0.5},
        {"loss": 0.5, "accuracy": 0.25},
        {"perplexity": 12.5},
        {"loss": 0.5, "perplexity": math.inf, "seconds": -1.0},
        {},
    ],
)
def test_a_row_is_read_back(tmp_path: Path, metrics: dict[str, float]) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", resumed=False)
    file.append(row(**metrics))
    file.close()
    (found,) = read_rows(tmp_path / "metrics.jsonl")
    assert repr(found) == repr(row(**metrics))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert ("metrics" in line) == bool(metrics.keys() - {"loss", "accuracy"})


def test_a_metric_that_is_not_a_number_was_reported_all_the_same(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", resumed=False)
    file.append(row(loss=math.nan))
    file.close()
    (found,) = read_rows(tmp_path / "metrics.jsonl")
    assert [*found.metrics] == ["loss"]
    assert math.isnan(found.metrics["loss"])


def test_a_file_from_before_there_were_other_metrics_is_read() -> None:
    assert row_from(OLD).metrics == {"loss": 0.5}
    assert row_from({**OLD, "accuracy": 0.25}).metrics == {"loss": 0.5, "accuracy": 0.25}


def test_metrics_cannot_be_changed_and_can_be_compared() -> None:
    one = row(loss=1.0, f1=0.5)
    assert one == row(loss=1.0, f1=0.5) != row(loss=1.0, f1=0.75)
    assert len({one, row(loss=1.0, f1=0.5)}) == 1
    assert repr(one.metrics) == "{'loss': 1.0, 'f1': 0.5}"


def test_a_metric_with_the_name_of_another_field_keeps_its_own() -> None:
    assert row(loss=1.0, f1=0.5, seconds=9.0).numbers() == {
        "updates": 3, "seconds": 1.5, "samples": 96, "loss": 1.0, "accuracy": pytest.approx(math.nan, nan_ok=True),
        "staleness": 0.0, "training_loss": 0.75, "f1": 0.5, "metrics/seconds": 9.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        {"f1": "0.5"},
        {"f1": True},
        {"f1": {}},
        {"f1": [1.0]},
        {"": 1.0},
        {"a\nb": 1.0},
        {"n" * (LONGEST_NAME + 1): 1.0},
        {str(number): 1.0 for number in range(MOST_METRICS + 1)},
        None,
        1.0,
    ],
)
def test_metrics_that_cannot_be_are_refused(tmp_path: Path, metrics: Any) -> None:
    line = json.dumps({**OLD, "metrics": metrics})
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n{json.dumps(OLD)}\n")
    with pytest.raises(ConfigError, match=r"^line 1 of .* cannot be understood"):
        read_rows(tmp_path / "metrics.jsonl")


def test_as_many_metrics_as_are_allowed_are_read() -> None:
    metrics = {"n" * (LONGEST_NAME - 4) + f"{number:04}": 1.0 for number in range(MOST_METRICS)}
    assert row_from({**OLD, "metrics": metrics}).metrics == metrics
