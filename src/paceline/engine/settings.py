"""What a run is made of, as data: optimizer, learning rate, batch size, model, data and seed."""

from collections.abc import Mapping, Sized
from typing import Any

from paceline.data.samples import is_pair
from paceline.engine.spec import RunSpec
from paceline.learning.task import Task
from paceline.storage.description import describe


def settings_of(task: Task, spec: RunSpec, made: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run; ``made`` are those that its optimizer was made with, see ``optimizers.as_made``."""
    model = task.model
    return {
        "optimizer": _class_with_settings(made, "optimizer"),
        **({"scheduler": _class_with_settings(made, "scheduler")} if made.get("scheduler") else {}),
        "learning_rate": _learning_rate(made),
        "batch_size": describe(spec.batch_size),
        "model": {"kind": type(model).__name__, "parameters": sum(each.numel() for each in model.parameters())},
        "data": {
            "kind": _kind(task.train),
            "samples": spec.training_samples,
            **({} if task.test is None else {"test_samples": _count(task.test)}),
        },
        "seed": spec.seed,
    }


def _class_with_settings(made: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A class of torch, and its settings; of several groups of parameters, a list."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in made.items():
        where, colon, name = key.partition(": ")
        if colon and where.split(",")[0] == what and not name.startswith("_") and _is_set(name, value):
            groups.setdefault(where, {})[name] = describe(value)
    listed = list(groups.values())
    return {"kind": made[what], **(listed[0] if len(listed) == 1 else {"groups": listed} if listed else {})}


def _is_set(name: str, value: object) -> bool:
    """Does a setting say anything? Many are None, False or 0 unless they are asked for."""
    return not (value is None or (isinstance(value, bool | int | float) and not value and name != "lr"))


def _learning_rate(made: Mapping[str, Any]) -> Any:
    rates = [describe(value) for key, value in made.items() if key.startswith("optimizer") and key.endswith(": lr")]
    return rates[0] if len(set(map(str, rates))) == 1 else rates or None


def _kind(data: object) -> str:
    return "tensors" if is_pair(data) else type(data).__name__


def _count(data: Any) -> int | None:
    if is_pair(data):
        return len(data[0])
    return len(data) if isinstance(data, Sized) else None
