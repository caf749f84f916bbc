"""``paceline profile``: measures how fast the workers of a fleet are, and suggests groups of similar speed."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import Address, JsonFile, Seed, config_of, on_fleet, unused_path
from paceline.cli.main import FAILED, echo, log
from paceline.core.errors import ConfigError
from paceline.engine.signals import Interrupted

if TYPE_CHECKING:
    from paceline.config.file import Config
    from paceline.prediction.profile import Profiled
    from paceline.reports.stragglers import Stragglers
    from paceline.storage.run_directory import RunDirectory

SHORTEST = 0.5  # seconds: processes need about this long to start


def profile(  # noqa: PLR0917 - typer names the options
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="TOML file, as for paceline train; or directory of a recorded run.")
    ],
    fleet: Annotated[
        str | None, typer.Option(metavar="KIND", help="Fleet to measure, processes or ray; by default the one in FILE.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, in seconds.")] = 60.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Write the trace there; by default in a new one under profiles/."),
    ] = None,
    json_file: JsonFile = None,
    seed: Seed = None,
    address: Address = None,
) -> None:
    """Measure the speed of each worker of a real fleet on the task in FILE, without training.

    For a directory that paceline.record, paceline train or paceline profile wrote, nothing is measured: the same table
    is made of its trace.

    Use the trace with paceline replay DIR --strategy NAME and with paceline predict DIR.
    """
    from paceline.config.file import write_config
    from paceline.files import check_writable, write_atomically
    from paceline.reports.stragglers import stragglers
    from paceline.storage.run_directory import RunDirectory

    if file.is_dir():
        _show_recorded(file, json_file, {"--fleet": fleet, "--output": output, "--seed": seed, "--address": address})
        return
    if not SHORTEST <= seconds < float("inf"):
        raise ConfigError(f"--seconds {seconds:g} is too short to measure anything: at least {SHORTEST:g}")
    if json_file is not None:
        check_writable(json_file, ".json")
    config = _profiled(file, fleet, address, seed)
    path = output or unused_path(Path("profiles") / file.stem)
    place = RunDirectory(path, {"config.toml": write_config(config)})
    place.check_empty()
    try:
        done = _measure(config, seconds, place)
    except KeyboardInterrupt as asked:  # before the measurement, a second time, or SIGTERM
        kept = f"what was measured is in {path}" if path.exists() else "nothing was written"
        raise Interrupted(f"; {kept}", asked) from None
    found = stragglers(done.trace)
    chosen = {"--fleet": fleet, "--address": address}
    profiled = " ".join((str(file), *(f"{option} {value}" for option, value in chosen.items() if value is not None)))
    _show(found, profiled, path)
    if json_file is not None:
        write_atomically(json_file, json.dumps(found.table(), allow_nan=False) + "\n")
        echo(f"All results: {json_file}")
    if done.interrupted:
        raise Interrupted(f" after {found.seconds:.1f} of {seconds:g} s; what was measured is in {path}")
    if done.problem:
        echo(done.problem)
        raise typer.Exit(FAILED)


def _show_recorded(path: Path, json_file: Path | None, measuring: Mapping[str, object]) -> None:
    """The table of a run that was recorded."""
    from paceline.files import check_writable, write_atomically
    from paceline.reports.stragglers import stragglers
    from paceline.storage.reading import read_run

    for option, value in measuring.items():
        if value is not None:
            raise ConfigError(f"{option} is for measuring, and {path} is the directory of a run: leave it out")
    if json_file is not None:
        check_writable(json_file, ".json")
    found = stragglers(read_run(path).trace)
    _show(found, None, path)
    if json_file is not None:
        write_atomically(json_file, json.dumps(found.table(), allow_nan=False) + "\n")
        echo(f"All results: {json_file}")


def _profiled(file: Path, kind: str | None, address: str | None, seed: int | None) -> "Config":
    """The configuration in the file, with real workers and a strategy under which no worker waits."""
    from paceline.config.experiment import check
    from paceline.fleets.simulated.fleet import SimulatedFleet
    from paceline.strategies.names import parse_strategy

    config = on_fleet(config_of(file), kind, address)
    if isinstance(config.fleet, SimulatedFleet):
        raise ConfigError(
            f"{file.name} describes simulated workers, which cannot be measured: add --fleet processes or --fleet ray"
        )
    seeds = config.seeds[:1] if seed is None else (seed,)
    config = replace(config, strategies=(parse_strategy("asgd"),), seeds=seeds)
    check(config)
    return config


def _measure(config: "Config", seconds: float, place: "RunDirectory") -> "Profiled":
    from paceline.config.experiment import make_task
    from paceline.prediction.profile import profile as measure

    with _progress(seconds, config.fleet.workers) as watch:
        return measure(
            make_task(config.task, config.seeds[0]),
            fleet=config.fleet,
            seconds=seconds,
            batch_size=config.batch_size,
            partition=config.partition,
            seed=config.seeds[0],
            directory=place,
            watch=watch,
        )


@contextmanager
def _progress(seconds: float, workers: int) -> "Iterator[Callable[[float], None]]":
    """A bar with the time left on a terminal; otherwise a line at the start and one a minute."""
    from paceline.callbacks.display import Status, open_display

    if not sys.stderr.isatty():
        log(f"measuring {workers} workers for {seconds:g} s ...")
    display, handed_in = open_display(), 0

    def watch(at: float) -> None:
        nonlocal handed_in
        handed_in += 1
        if display.due():
            parts = [f"{at:.0f} of {seconds:g} s", f"{handed_in:,} mini-batches"]
            display.show(Status(f"measuring {workers} workers", min(1.0, at / seconds), max(0.0, seconds - at), parts))

    try:
        yield watch
    finally:
        display.close(None)


def _show(found: "Stragglers", profiled: str | None, path: Path) -> None:
    """Print the table, and what to do next; ``profiled`` are the arguments of the measurement, if there was one."""
    from paceline.strategies.names import spelled

    show_stragglers(found)
    for worker in found.unknown:
        echo(f"Worker {worker} finished no mini-batch in {found.seconds:.1f} s: measure longer, with --seconds")
    for note in found.notes:
        echo(note)
    echo(f"\nUnder ssgd workers would wait {found.waiting:.0%} of their time.")
    if found.unknown:
        echo(f"Trace: {path}")
        return
    groups = f"gsgd:groups={spelled(found.groups)}"
    alike = (
        "one group, all workers have similar speed"
        if len(found.groups) == 1
        else f"{len(found.groups)} groups of similar speed"
    )
    echo(f"Suggested: {alike}: {groups}\nTrace: {path}")
    rules = " ".join(f"-s {rule}" for rule in ("ssgd", "asgd", groups))
    echo(f"Next: paceline replay {path} {rules}\n      paceline predict {path} {rules}")
    if profiled is not None:
        echo(f"      paceline train {profiled} --strategy {groups}")


def show_stragglers(found: "Stragglers") -> None:
    """Print a table with one row per worker."""
    from paceline.callbacks.terminal import Column, console, print_table
    from paceline.reports.stragglers import TAIL

    group_of = {worker: number for number, group in enumerate(found.groups) for worker in group}
    columns = [
        Column("worker"),
        Column("mini-\nbatches", rank=5),
        Column("round\ntrip"),
        Column(f"{TAIL:.0%}\nwithin", rank=4),
        Column("compute", rank=2),
        Column("transfer", rank=3),
        Column("times the\nfastest"),
        Column("share of\nstraggling", rank=1),
        Column("group"),
    ]
    rows = []
    for each in found.workers:
        own = [each.round_trip, each.tail, each.compute, each.transfer]
        rows.append([
            str(each.worker),
            f"{each.mini_batches:,}",
            *("-" if value is None else f"{value:.3g}" for value in own),
            f"{each.ratio:.2f}",
            f"{each.straggling:.0%}",
            str(group_of[each.worker]),
        ])  # fmt: skip
    title = f"{found.seconds:,.1f} s of {len(found.workers)} workers; seconds per mini-batch, medians"
    print_table(console(), columns, rows, title=title, more="see all with --json FILE.json")
