"""Loggers for tools that keep track of experiments: MLflow, and Weights & Biases."""

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.callbacks.base import Callback, RunInfo
from paceline.callbacks.extras import imported
from paceline.core.errors import ConfigError
from paceline.files import write_atomically
from paceline.storage.metrics import Row
from paceline.storage.spec_file import read_object

if TYPE_CHECKING:
    from paceline.engine.result import Run

TRACKED = "tracked.json"  # in the directory of a run: the tool's number of it, to continue the same one
FAILED = ("diverged", "too few workers", "no workers", "evaluation failed", "callback failed")
AN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def tracked_id(directory: Path | None, tool: str) -> str | None:
    """The number that a tool gave to the run in a directory, if it is known."""
    if directory is None or not (directory / TRACKED).exists():
        return None
    known = read_object(directory / TRACKED).get(tool)
    if known is not None and (not isinstance(known, str) or not AN_ID.fullmatch(known)):
        raise ConfigError(f"{directory / TRACKED} names no run of {tool}: {str(known)[:60]!r}; remove it")
    return known


def keep_id(directory: Path | None, tool: str, number: str) -> None:
    if directory is None:
        return
    file = directory / TRACKED
    known = read_object(file) if file.exists() else {}
    write_atomically(file, json.dumps({**known, tool: number}, sort_keys=True) + "\n")


class MLflowLogger(Callback):
    """Logs a run to MLflow: its configuration as parameters, its metrics by updates, and how it ended.

    experiment    the name of the experiment, made if there is none
    tracking_uri  where MLflow keeps it; by default what MLflow itself is set to. A server (``http://``) and a folder
                  need ``paceline[mlflow]`` alone, a database (``sqlite:///``) MLflow's full package ``mlflow``
    run_name      by default the name of the strategy
    tags          more tags of the run

    The time of a metric is the clock of the run, so that MLflow's relative time is virtual time on a simulated fleet. A
    run that is resumed from its directory continues the same run of MLflow. Evaluations between its checkpoint and the
    interruption are then there twice.
    """

    def __init__(
        self,
        experiment: str = "paceline",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._mlflow = imported("mlflow", "mlflow", "MLflowLogger")
        self._experiment, self._uri = experiment, tracking_uri
        self._name, self._tags = run_name, dict(tags or {})
        self._client: Any = None
        self._run: str | None = None
        self._began = 0  # milliseconds

    def on_start(self, run: RunInfo) -> None:
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        except self._mlflow.exceptions.MlflowException as error:
            place = self._mlflow.get_tracking_uri() if self._uri is None else self._uri
            raise ConfigError(
                f"MLflowLogger cannot use tracking_uri={place!r} ({_first_sentence(error)}): give http://HOST:PORT or "
                "a folder, or pip install mlflow, which knows databases too"
            ) from None
        known = tracked_id(run.directory, "mlflow") if run.resumed else None
        if known is None:
            self._begin(run)
        else:
            self._client.update_run(known, status="RUNNING")
            self._began = self._client.get_run(known).info.start_time
            self._run = known

    def _begin(self, run: RunInfo) -> None:
        client, entities = self._client, self._mlflow.entities
        found = client.get_experiment_by_name(self._experiment)
        experiment = client.create_experiment(self._experiment) if found is None else found.experiment_id
        name = self._name or type(run.strategy).__name__
        self._began = round(time.time() * 1000)
        made = client.create_run(experiment, start_time=self._began, tags=self._tags, run_name=name)
        self._run = made.info.run_id
        values = {_allowed(key): "" if value is None else str(value)[:500] for key, value in run.config.items()}
        client.log_batch(self._run, params=[entities.Param(key, value) for key, value in values.items()])
        keep_id(run.directory, "mlflow", self._run)
        for row in run.history:
            self.on_evaluate(row)

    def on_evaluate(self, row: Row) -> None:
        at, metric = self._began + round(row.seconds * 1000), self._mlflow.entities.Metric
        numbers = {_allowed(name): value for name, value in row.numbers().items() if not math.isnan(value)}
        metrics = [metric(name, float(value), at, row.updates) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def on_end(self, run: "Run") -> None:
        tag = self._mlflow.entities.RunTag
        said = {"ended": run.ended, **({"problem": run.problem} if run.problem else {})}
        self._client.log_batch(self._run, tags=[tag(name, text[:500]) for name, text in said.items()])
        self._end("KILLED" if run.ended == "interrupted" else "FAILED" if run.ended in FAILED else "FINISHED")

    def close(self) -> None:
        if self._run is not None:
            self._end("FAILED")

    def _end(self, status: str) -> None:
        run, self._run = self._run, None
        self._client.set_terminated(run, status=status)


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0][:200]


def _allowed(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-./: ]", "_", name)


class WandbLogger(Callback):
    """Logs a run to Weights & Biases: its configuration, its metrics by updates and seconds, and how it ended.

    project, name  as W&B calls them; by default the name is that of the strategy
    mode           ``online``, ``offline`` or ``disabled``; by default what W&B itself is set to
    directory      where W&B keeps its files; by default the directory of the run, or the current one without
    options        anything else that ``wandb.init`` takes, as ``entity="me"``

    A run that is resumed from its directory continues the same run of W&B.
    """

    def __init__(
        self,
        project: str = "paceline",
        *,
        name: str | None = None,
        mode: str | None = None,
        directory: Path | str | None = None,
        **options: Any,
    ) -> None:
        self._wandb = imported("wandb", "wandb", "WandbLogger")
        if mode not in (None, "online", "offline", "disabled"):
            raise ConfigError(f"WandbLogger cannot have mode={mode!r}: choose from online, offline, disabled")
        self._options = {"project": project, "name": name, "mode": mode, "reinit": "create_new", **options}
        self._directory = directory
        self._run: Any = None

    def on_start(self, run: RunInfo) -> None:
        known = tracked_id(run.directory, "wandb") if run.resumed else None
        options = {**self._options, "name": self._options["name"] or type(run.strategy).__name__}
        if known is not None:
            options |= {"id": known, "resume": "allow"}
        place = self._directory or run.directory
        self._run = self._wandb.init(config=dict(run.config), dir=None if place is None else str(place), **options)
        self._run.define_metric("updates")
        self._run.define_metric("*", step_metric="updates")
        keep_id(run.directory, "wandb", self._run.id)
        for row in () if known is not None else run.history:
            self.on_evaluate(row)

    def on_evaluate(self, row: Row) -> None:
        self._run.log({name: value for name, value in row.numbers().items() if not math.isnan(value)})

    def on_end(self, run: "Run") -> None:
        self._run.summary["ended"] = run.ended
        if run.problem:
            self._run.summary["problem"] = run.problem
        self._end(int(run.ended in FAILED or run.ended == "interrupted"))

    def close(self) -> None:
        if self._run is not None:
            self._end(1)

    def _end(self, code: int) -> None:
        run, self._run = self._run, None
        run.finish(exit_code=code)
