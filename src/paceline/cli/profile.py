"""``paceline profile``: a minute of a fleet's real work, who is slow in it, and which groups that suggests."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import Address, free_path, on_fleet, told
from paceline.core.errors import ConfigError
from paceline.engine.signals import Interrupted

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.config.file import Config
    from paceline.prediction.profile import Profiled
    from paceline.reports.stragglers import Stragglers
    from paceline.storage.run_directory import RunDirectory

FAILED = 1
SHORTEST = 0.5  # seconds: no run of processes is shorter than it takes to notice that they are there


def profile(  # noqa: PLR0917 - typer names the options
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file, as train takes it.")],
    fleet: Annotated[
        str | None, typer.Option(metavar="KIND", help="processes or ray; by default the file's own fleet.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 60.0,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="By default a new one under profiles/.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write everything there.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the file's first one.")] = None,
    address: Address = None,
) -> None:
    """Measure the workers of a real fleet on the file's own task: nobody waits, and nothing is trained.

    The trace goes on to paceline replay DIR --strategy ... and paceline predict DIR. Exits with 1 if workers failed.
    """
    from paceline.config.file import write_config
    from paceline.files import check_writable, write_atomically
    from paceline.reports.stragglers import stragglers
    from paceline.storage.run_directory import RunDirectory

    if not SHORTEST <= seconds < float("inf"):
        raise ConfigError(f"--seconds {seconds:g} is no time to measure in: at least {SHORTEST:g}")
    if json_file is not None:
        check_writable(json_file, ".json")
    config = _profiled(file, fleet, address, seed)
    path = output or free_path(Path("profiles") / file.stem)
    place = RunDirectory(path, {"config.toml": write_config(config)})
    place.check_empty()
    try:
        done = _measure(config, seconds, place)
    except KeyboardInterrupt:  # before there was anything, or once more
        kept = f"what was measured is in {path}" if path.exists() else "nothing was written"
        raise Interrupted(f"; {kept}") from None
    found = stragglers(done.trace)
    chosen = {"--fleet": fleet, "--address": address}
    profiled = " ".join((str(file), *(f"{option} {value}" for option, value in chosen.items() if value is not None)))
    _show(found, profiled, path)
    if json_file is not None:
        write_atomically(json_file, json.dumps(found.table(), allow_nan=False) + "\n")
        typer.echo(f"Everything in numbers: {json_file}")
    if done.interrupted:
        raise Interrupted(f" after {found.seconds:.1f} of {seconds:g} s; what was measured is in {path}")
    if done.problem:
        typer.echo(done.problem)
        raise typer.Exit(FAILED)


def _profiled(file: Path, kind: str | None, address: str | None, seed: int | None) -> "Config":
    """The configuration of the profile: the file's, with real workers, and a rule under which nobody waits."""
    from paceline.config.experiment import check
    from paceline.config.file import read_config
    from paceline.fleets.simulated.fleet import SimulatedFleet
    from paceline.strategies.names import parse_strategy

    config = on_fleet(read_config(file), kind, address)
    if isinstance(config.fleet, SimulatedFleet):
        raise ConfigError(
            f"{file.name} describes simulated workers, of which there is nothing to measure: give --fleet"
        )
    seeds = config.seeds[:1] if seed is None else (seed,)
    config = replace(config, strategies=(parse_strategy("asgd"),), seeds=seeds)
    check(config)
    return config


def _measure(config: "Config", seconds: float, place: "RunDirectory") -> "Profiled":
    from paceline.config.experiment import make_task
    from paceline.prediction.profile import profile as measure

    with _watched(seconds, config.fleet.workers) as watch:
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
def _watched(seconds: float, workers: int) -> "Iterator[Callable[[float], None] | None]":
    """A bar of the time that has passed, where somebody watches; else one line."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from paceline.callbacks.progress import EveryMinute
    from paceline.comparison.tables import console

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        typer.echo(f"measuring {workers} workers for {seconds:g} s ...", err=True)
        minute = EveryMinute()

        def log(at: float) -> None:
            if minute.due():
                told(f"{at:.0f} of {seconds:g} s")

        yield log
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[done]}"))
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task(f"measuring {workers} workers", total=seconds, done="")
        handed_in = 0

        def watch(at: float) -> None:
            nonlocal handed_in
            handed_in += 1
            bar.update(task, completed=at, done=f"{handed_in:,} mini-batches")

        yield watch


def _show(found: "Stragglers", profiled: str, path: Path) -> None:
    from paceline.comparison.tables import console
    from paceline.strategies.names import spelled

    terminal = console()
    terminal.print(stragglers_table(found))
    for worker in found.unknown:
        typer.echo(f"Worker {worker} finished nothing in {found.seconds:.1f} s: measure longer, with --seconds")
    typer.echo(f"\nUnder ssgd workers would wait {found.waiting:.0%} of their time.")
    if found.unknown:
        typer.echo(f"Trace: {path}")
        return
    groups = f"gsgd:groups={spelled(found.groups)}"
    alike = (
        "all are of like speed, one group" if len(found.groups) == 1 else f"{len(found.groups)} groups of like speed"
    )
    typer.echo(f"Suggested: {alike}: {groups}\nTrace: {path}")
    rules = " ".join(f"-s {rule}" for rule in ("ssgd", "asgd", groups))
    typer.echo(f"Next: paceline replay {path} {rules}\n      paceline predict {path} {rules}")
    typer.echo(f"      paceline train {profiled} --strategy {groups}")


def stragglers_table(found: "Stragglers") -> "Table":
    """One row a worker."""
    from rich.table import Table

    from paceline.reports.stragglers import TAIL

    group_of = {worker: number for number, group in enumerate(found.groups) for worker in group}
    title = f"{found.seconds:,.1f} s of {len(found.workers)} workers; seconds a mini-batch, medians"
    table = Table(title=title, title_justify="left", pad_edge=False, box=None, header_style="bold", expand=False)
    for heading in (
        "worker", "mini-\nbatches", "round\ntrip", f"{TAIL:.0%}\nwithin", "compute", "transfer", "times the\nfastest",
        "share of\nstraggling", "group",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for each in found.workers:
        own = [each.round_trip, each.tail, each.compute, each.transfer]
        table.add_row(
            str(each.worker),
            f"{each.mini_batches:,}",
            *("-" if value is None else f"{value:.3g}" for value in own),
            f"{each.ratio:.2f}",
            f"{each.straggling:.0%}",
            str(group_of[each.worker]),
        )
    return table
