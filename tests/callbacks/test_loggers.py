"""The callbacks that are shipped: files, TensorBoard, MLflow and W&B with the real packages, and early stopping."""

import csv
import importlib.util
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import paceline as pl
from paceline.callbacks import Row
from support.digits import digits_task, weights
from support.processes import PATIENCE
from support.told import Told

FLEET = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.5)])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def evaluate(model: nn.Module) -> dict[str, float]:
    norm = float(weights(model).norm())
    return {"loss": norm, "recall@5": norm / 2, "unknown": math.nan}


def train(*callbacks: pl.Callback, updates: int = 6, **more: Any) -> pl.Run:
    return pl.train(
        replace(digits_task(), evaluate=evaluate), strategy=pl.Synchronous(), fleet=FLEET, optimizer=sgd, batch_size=8,
        stop=pl.Stop(updates=updates), every=pl.Every(updates=2), progress=False, callbacks=callbacks, seed=4, **more,
    )  # fmt: skip


# CSV


def read(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


def test_a_csv_file_has_a_line_for_each_evaluation(tmp_path: Path) -> None:
    run = train(pl.CSVLogger(tmp_path / "new" / "log.csv"))
    found = read(tmp_path / "new" / "log.csv")
    assert [*found[0]] == [
        "updates", "seconds", "samples", "loss", "accuracy", "staleness", "training_loss", "recall@5", "unknown",
    ]  # fmt: skip
    assert repr(found) == repr([{name: float(value) for name, value in row.numbers().items()} for row in run.history])


def test_a_csv_file_is_continued_from_the_checkpoint(tmp_path: Path) -> None:
    straight = train(pl.CSVLogger(tmp_path / "straight.csv"))
    train(pl.CSVLogger(tmp_path / "log.csv"), updates=4, directory=tmp_path / "run")
    with (tmp_path / "log.csv").open("a") as file:
        file.write("5,lost\n")
    train(pl.CSVLogger(tmp_path / "log.csv"), directory=tmp_path / "run", resume=True)
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "straight.csv").read_text()
    assert len(straight.history) == 4


def test_a_metric_that_comes_later_gets_a_column(tmp_path: Path) -> None:
    seen: list[int] = []

    def growing(model: nn.Module) -> dict[str, float]:
        seen.append(len(seen))
        return {"loss": 1.0, **({"a,b": 2.0} if len(seen) > 2 else {})}

    pl.train(
        replace(digits_task(), evaluate=growing), strategy="ssgd", fleet=FLEET, optimizer=sgd, stop=pl.Stop(updates=4),
        callbacks=[pl.CSVLogger(tmp_path / "log.csv")], progress=False,
    )  # fmt: skip
    assert [row["a,b"] for row in read(tmp_path / "log.csv")][-3:] == [2.0] * 3
    assert [math.isnan(row["a,b"]) for row in read(tmp_path / "log.csv")] == [True, True, False, False, False]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match="it is a directory"):
        pl.CSVLogger(tmp_path)


# TensorBoard


def test_tensorboard_shows_every_metric(tmp_path: Path) -> None:
    run = train(pl.TensorBoard(tmp_path / "curves"))
    events = EventAccumulator(str(tmp_path / "curves"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("recall@5")]
    assert shown == [(row.updates, pytest.approx(row.metrics["recall@5"])) for row in run.history]


def test_tensorboard_needs_a_place() -> None:
    with pytest.raises(pl.ConfigError, match=r"^TensorBoard has nowhere to write: give TensorBoard\(directory\)"):
        train(pl.TensorBoard())


# MLflow


def mlflow_client(place: Path) -> Any:
    import mlflow

    return mlflow.MlflowClient(tracking_uri=place.as_uri())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where MLflow keeps its files."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mlruns"


@pytest.mark.filterwarnings("ignore:.*filesystem.*:FutureWarning")
def test_mlflow_gets_the_configuration_the_metrics_and_the_end(files: Path, tmp_path: Path) -> None:
    uri = files.as_uri()
    run = train(pl.MLflowLogger("mine", tracking_uri=uri, run_name="first", tags={"who": "me"}))
    client = mlflow_client(files)
    (logged,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert logged.info.run_name == "first"
    assert logged.info.status == "FINISHED"
    expected = {"strategy": "Synchronous()", "optimizer": "SGD", "learning_rate": "0.1", "batch_size": "8", "seed": "4"}
    assert expected.items() <= logged.data.params.items()
    assert {"ended": "updates", "who": "me"}.items() <= logged.data.tags.items()
    points = client.get_metric_history(logged.info.run_id, "recall_5")
    assert [(each.step, each.value) for each in points] == [
        (row.updates, row.metrics["recall@5"]) for row in run.history
    ]
    assert [each.timestamp - logged.info.start_time for each in points] == [
        round(1000 * row.seconds) for row in run.history
    ]
    assert "unknown" not in logged.data.metrics


@pytest.mark.skipif(importlib.util.find_spec("sqlalchemy") is not None, reason="MLflow's full package knows databases")
def test_a_place_that_mlflow_cannot_use_is_refused_before_the_run(files: Path) -> None:
    with pytest.raises(
        pl.ConfigError, match=r"tracking_uri='sqlite:///runs.db' \(.*unsupported URI.*pip install mlflow"
    ):
        train(pl.MLflowLogger(tracking_uri="sqlite:///runs.db"))


@pytest.mark.filterwarnings("ignore:.*filesystem.*:FutureWarning")
def test_mlflow_continues_the_run_that_is_resumed(files: Path, tmp_path: Path) -> None:
    uri = files.as_uri()
    train(pl.MLflowLogger(tracking_uri=uri), updates=4, directory=tmp_path / "run")
    run = train(pl.MLflowLogger(tracking_uri=uri), directory=tmp_path / "run", resume=True)
    client = mlflow_client(files)
    (logged,) = client.search_runs([client.get_experiment_by_name("paceline").experiment_id])
    points = client.get_metric_history(logged.info.run_id, "loss")
    assert [each.step for each in points] == [row.updates for row in run.history] == [0, 2, 4, 6]
    (tmp_path / "run" / "tracked.json").write_text('{"mlflow": "../../elsewhere"}')
    with pytest.raises(pl.ConfigError, match="names no run of mlflow"):
        train(pl.MLflowLogger(tracking_uri=uri), updates=8, directory=tmp_path / "run", resume=True)


@pytest.mark.filterwarnings("ignore:.*filesystem.*:FutureWarning")
def test_mlflow_tells_a_run_that_failed(files: Path, tmp_path: Path) -> None:
    logger = pl.MLflowLogger(tracking_uri=files.as_uri())
    with pytest.raises(ValueError, match="mine"):
        train(logger, Told(on_update=[None, ValueError("mine")]))
    client = mlflow_client(files)
    (logged,) = client.search_runs([client.get_experiment_by_name("paceline").experiment_id])
    assert (logged.info.status, logged.data.tags["ended"]) == ("FAILED", "callback failed")
    assert logged.data.tags["problem"] == "Told.on_update raised ValueError: mine"


# W&B, offline


def records(place: Path) -> Iterator[Any]:
    """What W&B wrote: a log in blocks of 32 KiB of records, whose parts have headers of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (file,) = place.glob("*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def logged_rows(place: Path) -> list[dict[str, Any]]:
    found = [record.history for record in records(place) if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in each.item} for each in found
    ]


OFFLINE = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import paceline as pl
from callbacks.test_loggers import train
from pathlib import Path
import os
place = Path(sys.argv[2])
os.chdir(place)
train(pl.WandbLogger("mine", name="first", mode="offline"), updates=4, directory=place / "run")
train(pl.WandbLogger("mine", mode="offline"), directory=place / "run", resume=True)
print(sorted(each.name for each in place.iterdir()))
"""


def test_wandb_gets_the_configuration_the_metrics_and_the_end(tmp_path: Path) -> None:
    """In a process of its own, with which W&B's service ends."""
    here = Path(__file__).parents[1]
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    environment |= {
        name: str(tmp_path / "home" / name) for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    }
    (tmp_path / "home").mkdir()
    (tmp_path / "place").mkdir()
    command = [sys.executable, "-c", OFFLINE, f"{here}:{here.parent / 'src'}", str(tmp_path / "place")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "['run']"
    first, second = sorted((tmp_path / "place" / "run" / "wandb").glob("offline-run-*"), key=lambda each: each.name)
    (one,), (other,) = ([*place.glob("*.wandb")] for place in (first, second))
    assert one.name == other.name  # the same run, continued
    assert [row["updates"] for row in logged_rows(first)] == [0, 2, 4]
    assert [row["updates"] for row in logged_rows(second)] == [6]
    assert {"loss", "recall@5", "seconds", "samples"} <= logged_rows(first)[0].keys()
    begun = next(record.run for record in records(first) if record.WhichOneof("record_type") == "run")
    config = {update.key: json.loads(update.value_json) for update in begun.config.update}
    expected = {"strategy": "Synchronous()", "optimizer": "SGD", "learning_rate": 0.1, "batch_size": 8, "seed": 4}
    assert expected.items() <= config.items()
    assert (begun.project, begun.display_name) == ("mine", "first")
    summary = {
        item.key or ".".join(item.nested_key): json.loads(item.value_json)
        for record in records(second)
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }
    assert summary["ended"] == "updates"


def test_wandb_refuses_a_mode_that_there_is_not() -> None:
    with pytest.raises(pl.ConfigError, match=r"mode='of': choose from online, offline, disabled"):
        pl.WandbLogger(mode="of")


@pytest.mark.parametrize(
    ("module", "make", "said"),
    [
        ("mlflow", pl.MLflowLogger, "MLflowLogger needs the package mlflow: pip install 'paceline[mlflow]'"),
        ("wandb", pl.WandbLogger, "WandbLogger needs the package wandb: pip install 'paceline[wandb]'"),
        (
            "torch.utils.tensorboard",
            pl.TensorBoard,
            "TensorBoard needs the package tensorboard: pip install 'paceline[tensorboard]'",
        ),
    ],
)
def test_a_missing_package_is_one_line(module: str, make: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(pl.ConfigError) as error:
        make()
    assert str(error.value) == said


# Early stopping


def stopping(values: list[float], **options: Any) -> tuple[int, str | None]:
    """At which evaluation it ends a run, and why."""
    callback = pl.EarlyStopping(**options)
    for number, value in enumerate(values):
        if (
            why := callback.on_evaluate(Row(number, 0.0, 0, value, value, 0.0, 0.0, {callback.metric: value}))
        ) is not None:
            return number, why
    return len(values), None


@pytest.mark.parametrize(
    ("values", "options", "at"),
    [
        ([3.0, 2.0, 2.5, 2.0, 1.0], {"patience": 2}, 3),
        ([3.0, 2.0, 2.5, 1.9, 2.0, 2.0], {"patience": 2}, 5),
        ([0.1, 0.2, 0.15, 0.12, 0.3], {"patience": 2, "mode": "max", "metric": "accuracy"}, 3),
        ([3.0, 2.95, 2.9, 2.5], {"patience": 2, "min_delta": 0.2}, 2),
        ([3.0, math.nan, math.nan], {"patience": 2}, 2),
        ([math.nan, 3.0, 2.0], {"patience": 2}, 3),
        ([3.0, 2.0, 1.0], {"patience": 1}, 3),
    ],
)
def test_early_stopping_counts_evaluations_without_an_improvement(values: list[float], options: Any, at: int) -> None:
    number, why = stopping(values, **options)
    assert number == at
    metric = options.get("metric", "loss")
    assert why == (f"{metric} did not improve in {options['patience']} evaluations" if at < len(values) else None)


def test_early_stopping_ends_a_run_and_again_when_it_is_resumed(tmp_path: Path) -> None:
    first_weights = weights(digits_task().model)
    worse = replace(digits_task(), evaluate=lambda model: {"f1": -float((weights(model) - first_weights).norm())})

    def run(patience: int, **more: Any) -> pl.Run:
        return pl.train(
            worse, strategy="ssgd", fleet=FLEET, optimizer=sgd, stop=pl.Stop(updates=40), every=pl.Every(updates=2),
            callbacks=[pl.EarlyStopping("f1", patience, "max")], directory=tmp_path / "run", progress=False, **more,
        )  # fmt: skip

    first = run(3)
    assert (first.ended, first.history[-1].updates) == ("f1 did not improve in 3 evaluations", 6)
    assert run(3, resume=True).history[-1].updates == 6
    assert run(5, resume=True).history[-1].updates == 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"patience": 0}, "EarlyStopping cannot have patience=0: at least 1"),
        ({"patience": 2.5}, "EarlyStopping cannot have patience=2.5: give a whole number"),
        ({"mode": "least"}, "EarlyStopping cannot have mode='least': choose from min, max"),
        ({"min_delta": -1.0}, "EarlyStopping cannot have min_delta=-1.0: at least 0, and finite"),
        ({"metric": 3}, "EarlyStopping cannot have metric=3: give a text"),
    ],
)
def test_wrong_early_stopping_is_refused(given: Any, said: str) -> None:
    with pytest.raises(pl.ConfigError) as error:
        pl.EarlyStopping(**given)
    assert str(error.value) == said


def test_early_stopping_on_a_metric_that_nobody_reports_is_refused(tmp_path: Path) -> None:
    said = r"^EarlyStopping waits for 'f1', which the evaluation does not return: choose from loss, recall@5, unknown$"
    with pytest.raises(pl.ConfigError, match=said):
        train(pl.EarlyStopping("f1"), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
