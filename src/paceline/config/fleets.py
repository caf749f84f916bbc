"""The ``[fleet]`` section of a TOML file, read strictly and written back: simulated workers, processes, or Ray's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.fields import (
    as_table,
    as_written,
    build,
    name_in,
    named,
    nearest,
    read_value,
    refuse_unknown,
    table_of,
)
from paceline.core.messages import Joined, Leaving, Left
from paceline.delays import (
    Constant,
    Delay,
    Empirical,
    Hourly,
    LogNormal,
    Pareto,
    PerSample,
    ShiftedExponential,
    SlowSpells,
)
from paceline.fleets.base import check_number
from paceline.fleets.processes.fleet import ProcessFleet
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.notices import RAY
from paceline.fleets.simulated.cluster import Machines
from paceline.fleets.simulated.conditions import Availability
from paceline.fleets.simulated.fleet import Network, SimulatedFleet

DELAYS: Mapping[str, type[Any]] = {
    "constant": Constant,
    "shifted-exponential": ShiftedExponential,
    "log-normal": LogNormal,
    "pareto": Pareto,
    "empirical": Empirical,
}
KINDS = ("simulated", "processes", "ray")
AnyFleet = SimulatedFleet | ProcessFleet | RayFleet
SIMULATED_CHOICES = ("recall", "ties", "evaluation", "wire")
SIMULATED_TABLES: Mapping[str, type[Any]] = {"machines": Machines, "availability": Availability}
SLOWNESS: Mapping[str, type[Any]] = {"spells": SlowSpells, "hourly": Hourly}
CHANGES: Mapping[str, type[Any]] = {"leaves": Left, "joins": Joined, "is to leave": Leaving}
PROCESS_CHOICES: Mapping[str, Any] = {
    "workers": int, "threads": int, "replace": bool, "min_workers": int, "labels": tuple[str, ...],
    "state": str, "ranks_per_worker": int, "start": str, "staging": bool,
}  # fmt: skip
RAY_CHOICES: Mapping[str, Any] = {
    "workers": int, "address": str, "placement": str, "share_memory": bool, "shards": int, "wire": str,
    "replace": bool, "min_workers": int, "labels": tuple[str, ...], "state": str, "notices": tuple[str, ...],
}  # fmt: skip


def read_fleet(table: dict[str, Any]) -> AnyFleet:
    readers: Mapping[str, Callable[[dict[str, Any]], AnyFleet]]
    readers = {"simulated": _simulated, "processes": _processes, "ray": _ray}
    rest = dict(table)
    if (kind := rest.pop("kind", KINDS[0])) not in KINDS:
        known = nearest(kind, KINDS) if isinstance(kind, str) else f"choose from {', '.join(KINDS)}"
        raise ConfigError(f"fleet.kind: {as_written(kind)} is unknown: {known}")
    try:
        return readers[kind](rest)
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith("fleet") else f"fleet: {error}") from None


def of_the_user(fleet: AnyFleet) -> AnyFleet:
    """A fleet that was read from a file which the user names, and so runs: a Ray address in it is the user's own.

    It is connected to, as code that the file names is run. This machine's token takes more: see ``RayFleet``.
    """
    if isinstance(fleet, RayFleet) and not fleet.trust_address:
        return replace(fleet, trust_address="without token")
    return fleet


def cluster_of(fleet: AnyFleet) -> str | None:
    """The address of the cluster that a fleet is on, or "auto": it has to be named again to resume a run."""
    return fleet.address if isinstance(fleet, RayFleet) else None


def as_processes(fleet: AnyFleet) -> ProcessFleet:
    """The same workers as processes: what was simulated to take some time is made to take it."""
    return (
        fleet
        if isinstance(fleet, ProcessFleet)
        else ProcessFleet(fleet.workers, slow=_slowness(fleet), labels=fleet.labels)
    )


def as_ray(fleet: AnyFleet, address: str | None) -> RayFleet:
    """The same workers as actors of the cluster at an address."""
    if isinstance(fleet, RayFleet):
        return fleet if address is None else replace(fleet, address=address, trust_address=True)
    return RayFleet(fleet.workers, address=address, slow=_slowness(fleet))


def _slowness(fleet: AnyFleet) -> Mapping[int, float | Delay]:
    """How slow real workers have to be made."""
    if not isinstance(fleet, SimulatedFleet):
        return fleet.slow
    for name in ("changes", "availability", "slowness"):
        if getattr(fleet, name):
            raise ConfigError(f"real workers do not come, go and slow down as foretold: leave fleet.{name} out")
    return dict(enumerate(fleet.worker_delays))


def fleet_table(fleet: AnyFleet) -> dict[str, Any]:
    if isinstance(fleet, RayFleet):
        return _ray_table(fleet)
    return _simulated_table(fleet) if isinstance(fleet, SimulatedFleet) else _process_table(fleet)


def _simulated(table: dict[str, Any]) -> SimulatedFleet:
    others = ("kind", "workers", "network", "changes", "slowness", "server_seconds", "threads")
    refuse_unknown(table, (*others, *SIMULATED_TABLES, *SIMULATED_CHOICES), "fleet")
    workers = table.get("workers")
    if not isinstance(workers, list) or not workers:
        raise ConfigError("fleet: describe the workers in one or several [[fleet.workers]], each with count and delay")
    described: list[tuple[Delay, str, float | None]] = []
    for number, each in enumerate(workers):
        described += _workers(dict(as_table(each, f"fleet.workers[{number}]")), f"fleet.workers[{number}]")
        check_number(len(described))
    labels = tuple(label for _, label, _ in described)
    prices = tuple(price for _, _, price in described)
    if None in prices and any(price is not None for price in prices):
        raise ConfigError(f"fleet.workers: worker {prices.index(None)} has no price, and others have: give all or none")
    choices = {name: read_value(str, table[name], f"fleet.{name}") for name in SIMULATED_CHOICES if name in table}
    return SimulatedFleet(
        delays=tuple(delay for delay, _, _ in described),
        network=build(Network, as_table(table.get("network", {}), "fleet.network"), "fleet.network"),
        changes=tuple(named(CHANGES, each, "what", where) for each, where in _tables(table, "changes")),
        slowness=tuple(named(SLOWNESS, each, "kind", where) for each, where in _tables(table, "slowness")),
        labels=labels if any(labels) else (),
        prices=tuple(price for price in prices if price is not None),
        **{
            name: build(kind, as_table(table[name], f"fleet.{name}"), f"fleet.{name}")
            for name, kind in SIMULATED_TABLES.items()
            if name in table
        },
        server_seconds=read_value(float, table.get("server_seconds", 0.0), "fleet.server_seconds"),
        threads=read_value(int, table["threads"], "fleet.threads") if "threads" in table else None,
        **choices,
    )


def _tables(table: dict[str, Any], name: str) -> list[tuple[dict[str, Any], str]]:
    """Each table of a list of them, and where it is."""
    given = table.get(name, [])
    if not isinstance(given, list):
        raise ConfigError(f"fleet.{name}: must be a list of tables, [[fleet.{name}]], not {as_written(given)}")
    places = [f"fleet.{name}[{number}]" for number in range(len(given))]
    return [(as_table(each, where), where) for each, where in zip(given, places, strict=True)]


def _workers(table: dict[str, Any], where: str) -> list[tuple[Delay, str, float | None]]:
    count = read_value(int, table.pop("count", 1), f"{where}.count")
    if count < 1:
        raise ConfigError(f"{where}.count: {count} workers are not possible: at least 1")
    check_number(count)
    label: str = read_value(str, table.pop("label", ""), f"{where}.label")
    fixed = read_value(float, table.pop("fixed"), f"{where}.fixed") if "fixed" in table else None
    price = read_value(float, table.pop("price"), f"{where}.price") if "price" in table else None
    delay: Delay = named(DELAYS, table, "delay", where)
    return [(delay if fixed is None else PerSample(fixed, delay), label, price)] * count


def _processes(table: dict[str, Any]) -> ProcessFleet:
    refuse_unknown(table, ("kind", "slow", "deadline", "devices", *PROCESS_CHOICES), "fleet")
    chosen: dict[str, Any] = {}
    if "devices" in table:
        given = table["devices"]
        chosen["devices"] = given if isinstance(given, str) else read_value(tuple[str, ...], given, "fleet.devices")
    return ProcessFleet(**_real(table, PROCESS_CHOICES), **chosen)


def _ray(table: dict[str, Any]) -> RayFleet:
    refuse_unknown(table, ("kind", "slow", "deadline", "resources_per_worker", *RAY_CHOICES), "fleet")
    chosen: dict[str, Any] = {}
    if "resources_per_worker" in table:
        amounts = as_table(table["resources_per_worker"], "fleet.resources_per_worker")
        chosen["resources_per_worker"] = {
            name: read_value(float, amount, f"fleet.resources_per_worker.{name}") for name, amount in amounts.items()
        }
    # whoever wrote the file may not be whoever runs it: see ``of_the_user``
    return RayFleet(**_real(table, RAY_CHOICES), **chosen, trust_address=False)


def _real(table: dict[str, Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    """What real workers have in common."""
    if "workers" not in table:
        raise ConfigError("fleet: 'workers' is missing: give workers = 4, how many there are")
    slow = table.get("slow", [])
    if not isinstance(slow, list):
        raise ConfigError(f"fleet.slow: must be a list of tables, [[fleet.slow]], not {as_written(slow)}")
    return {
        "slow": dict(
            _slow(dict(as_table(each, where)), where) for i, each in enumerate(slow) for where in [f"fleet.slow[{i}]"]
        ),
        "deadline": build(SilenceTimeout, as_table(table.get("deadline", {}), "fleet.deadline"), "fleet.deadline"),
        **{name: read_value(kind, table[name], f"fleet.{name}") for name, kind in choices.items() if name in table},
    }


def _slow(table: dict[str, Any], where: str) -> tuple[int, float | Delay]:
    if "worker" not in table:
        raise ConfigError(f"{where}: 'worker' is missing: say which one is slow, from 0 on")
    worker = read_value(int, table.pop("worker"), f"{where}.worker")
    if "times" not in table:
        return worker, named(DELAYS, table, "delay", where)
    refuse_unknown(table, ("times",), where)
    times: float = read_value(float, table["times"], f"{where}.times")
    return worker, times


def _simulated_table(fleet: SimulatedFleet) -> dict[str, Any]:
    workers: list[dict[str, Any]] = []
    labels, prices = fleet.labels or [""] * fleet.workers, fleet.worker_prices or [None] * fleet.workers
    for delay, label, price in zip(fleet.worker_delays, labels, prices, strict=True):
        described = {**_delay_table(delay), **({"label": label} if label else {})}
        if price is not None:
            described["price"] = price
        if workers and {**described, "count": workers[-1]["count"]} == workers[-1]:
            workers[-1]["count"] += 1
        else:
            workers.append({"count": 1, **described})
    changes = [{"what": name_in(CHANGES, each), **table_of(each)} for each in fleet.changes]
    slowness = [{"kind": name_in(SLOWNESS, each), **table_of(each)} for each in fleet.slowness]
    table = {name: getattr(fleet, name) for name in SIMULATED_CHOICES if name != "wire" or fleet.wire != "float32"}
    return {
        **table,
        **({"server_seconds": float(fleet.server_seconds)} if fleet.server_seconds else {}),
        **({} if fleet.threads is None else {"threads": fleet.threads}),
        "network": table_of(fleet.network),
        **{name: table_of(each) for name in SIMULATED_TABLES if (each := getattr(fleet, name)) is not None},
        "workers": workers,
        **({"changes": changes} if changes else {}),
        **({"slowness": slowness} if slowness else {}),
    }


def _delay_table(delay: Delay) -> dict[str, Any]:
    """With ``fixed``, the delay is that of one sample."""
    drawn = delay.each if isinstance(delay, PerSample) else delay
    fixed = {"fixed": float(delay.fixed)} if isinstance(delay, PerSample) else {}
    return {"delay": name_in(DELAYS, drawn), **table_of(drawn), **fixed}


def _process_table(fleet: ProcessFleet) -> dict[str, Any]:
    table = {"kind": "processes", **_real_table(fleet, PROCESS_CHOICES)}
    defaults = {"ranks_per_worker": 1, "start": "fork", "staging": False}  # older versions do not know them
    table = {name: value for name, value in table.items() if name not in defaults or value != defaults[name]}
    return table if fleet.devices is None else {**table, "devices": _names(fleet.devices)}


def _names(devices: str | Sequence[str]) -> str | list[str]:
    return devices if isinstance(devices, str) else list(devices)


def _ray_table(fleet: RayFleet) -> dict[str, Any]:
    resources = dict(fleet.resources_per_worker)
    table = {**_real_table(fleet, RAY_CHOICES), "notices": list(fleet.notices)}
    if table["notices"] == [RAY]:  # older versions do not know them
        del table["notices"]
    return {
        "kind": "ray",
        **table,
        **({"resources_per_worker": resources} if resources else {}),
    }


def _real_table(fleet: ProcessFleet | RayFleet, choices: Mapping[str, Any]) -> dict[str, Any]:
    slow = [
        {"worker": worker, "times": float(each)}
        if isinstance(each, int | float)
        else {"worker": worker, "delay": name_in(DELAYS, each), **table_of(each)}
        for worker, each in sorted(fleet.slow.items())
    ]
    chosen = {name: getattr(fleet, name) for name in choices if getattr(fleet, name) not in (None, ())}
    return {**chosen, "deadline": table_of(fleet.deadline), **({"slow": slow} if slow else {})}
