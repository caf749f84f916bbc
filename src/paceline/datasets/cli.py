"""``paceline data``: real data sets from the command line. What fetches is imported when it is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from paceline.engine.signals import Interrupted, terminable

data_app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@data_app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    """Get real data sets."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist or cifar10.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The data set gets a folder of its own in there.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="A web folder that has the files; else public ones.")
    ] = None,
) -> None:
    """Download a data set as published, check it, and go on where an earlier try was interrupted."""
    from paceline.datasets.fetch import fetch as fetch_dataset

    told: set[str] = set()
    try:
        with terminable(), _progress() as show:

            def progress(file: str, done: int, size: int) -> None:
                told.add(file)
                show(file, done, size)

            folder = fetch_dataset(name, to, base_url=source, progress=progress)
    except KeyboardInterrupt as asked:
        kept = f"the same command goes on with what is in {to}" if to.exists() else "nothing was written"
        raise Interrupted(f"; {kept}", asked) from None
    typer.echo(f"{name} is {'' if told else 'already '}in {folder}: use it with --data {to}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file on a terminal, a line for each file elsewhere; on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    terminal = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks = {}
    with Progress(*columns, console=terminal, disable=not terminal.is_terminal) as bar:

        def show(file: str, done: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=size, completed=done)
                if not terminal.is_terminal:
                    typer.echo(f"fetching {file} ({size / 1e6:.1f} MB) ...", err=True)
            bar.update(tasks[file], completed=done)

        yield show
