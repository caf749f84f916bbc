"""What callbacks are told when a run begins."""

from collections.abc import Sequence
from dataclasses import fields
from types import MappingProxyType

from paceline.callbacks.base import RunInfo
from paceline.engine.loop import Loop
from paceline.engine.setup import Setup
from paceline.engine.spec import RunSpec
from paceline.fleets.replayed import Replayed
from paceline.storage.description import describe, spell
from paceline.storage.metrics import Row
from paceline.storage.run_directory import RunDirectory


def run_info(spec: RunSpec, setup: Setup, loop: Loop, history: Sequence[Row], opened: RunDirectory | None) -> RunInfo:
    """What callbacks are told when a run begins."""
    return RunInfo(
        strategy=spec.strategy,
        fleet=spec.fleet.fleet if isinstance(spec.fleet, Replayed) else spec.fleet,
        stop=spec.stop,
        config=MappingProxyType(_config(spec, setup)),
        directory=opened.path if opened else None,
        resumed=opened is not None and opened.resumed,
        updates=setup.server.updates,
        history=tuple(history),
        epoch_samples=setup.epoch_samples,
        ledger=loop.coordinator.ledger,
    )


def _config(spec: RunSpec, setup: Setup) -> dict[str, float | str | None]:
    """What a run was started with, as numbers and texts. Parameter groups after the first are left out."""
    made = setup.server.made
    settings = {name.partition(": ")[2]: value for name, value in made.items() if name.startswith("optimizer: ")}
    settings = settings or {
        name.partition(": ")[2]: value for name, value in made.items() if name.startswith("optimizer, group 0: ")
    }
    values: dict[str, object] = {
        field.name: getattr(spec, field.name) for field in fields(spec) if field.metadata.get("compared", True)
    }
    values |= {"workers": spec.fleet.workers, "optimizer": made["optimizer"], "learning_rate": settings.pop("lr", None)}
    values |= {"scheduler": made["scheduler"]} | {f"optimizer.{name}": value for name, value in settings.items()}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> float | str | None:
    described = describe(value)
    return described if described is None or isinstance(described, bool | int | float | str) else spell(described)
