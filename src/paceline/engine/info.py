"""What callbacks are told when a run begins."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from paceline.callbacks.base import RunInfo
from paceline.engine.loop import Loop
from paceline.engine.setup import Setup
from paceline.engine.spec import RunSpec
from paceline.fleets.replayed import Replayed
from paceline.storage.description import describe, spell
from paceline.storage.metrics import Row
from paceline.storage.run_directory import RunDirectory


def run_info(
    spec: RunSpec, setup: Setup, loop: Loop, history: Sequence[Row], opened: RunDirectory | None, *,
    settings: Mapping[str, Any],
) -> RunInfo:  # fmt: skip
    """What callbacks are told when a run begins; ``settings`` are those of ``settings_of``."""
    return RunInfo(
        strategy=spec.strategy,
        fleet=spec.fleet.fleet if isinstance(spec.fleet, Replayed) else spec.fleet,
        stop=spec.stop,
        config=MappingProxyType(_config(spec, settings)),
        directory=opened.path if opened else None,
        resumed=opened is not None and opened.resumed,
        updates=setup.server.updates,
        history=tuple(history),
        epoch_samples=setup.epoch_samples,
        ledger=loop.coordinator.ledger,
    )


def _config(spec: RunSpec, settings: Mapping[str, Any]) -> dict[str, float | str | None]:
    """What a run was started with, as numbers and texts by flat names, such as ``optimizer.momentum``."""
    values: dict[str, object] = {
        field.name: getattr(spec, field.name) for field in fields(spec) if field.metadata.get("compared", True)
    }
    values |= {"workers": spec.fleet.workers, "scheduler": None}
    for name, value in settings.items():
        if isinstance(value, Mapping) and "kind" in value:
            values[name] = value["kind"]
            values |= {f"{name}.{key}": each for key, each in value.items() if key not in ("kind", "lr")}
        else:
            values[name] = value
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> float | str | None:
    described = describe(value)
    return described if described is None or isinstance(described, bool | int | float | str) else spell(described)
