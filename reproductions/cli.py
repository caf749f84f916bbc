"""The command line of the reproductions. What a command needs is imported when it runs.

python -m reproductions PAPER [--quick | --full [--runs N]] [--data DIR] [--json FILE] [--figures DIR] [--seed N]
                              [--work DIR]
python -m reproductions seeds [--data DIR]
python -m reproductions pages [--docs DIR]
python -m reproductions fetch mnist cifar10 --to DIR
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.main import run_program
from paceline.core.errors import CannotWrite, ConfigError
from paceline.engine.signals import Interrupted
from paceline.files import check_parent, check_place, write_atomically
from reproductions.pipeline.plan import Options

if TYPE_CHECKING:
    from reproductions.pipeline.paper import Paper

PROGRAM = "python -m reproductions"
PAPERS = {
    "lgc": "Live gradient compensation: time saved, and accuracy on CIFAR-10.",
    "group-sgd": "Group SGD: logistic regression and a smooth SVM on MNIST.",
    "ec-dnn": "Ensembles of outputs against averages of parameters, on CIFAR-10.",
    "fine-pruning": "Data fine-pruning: samples saved and accuracy, on CIFAR-10.",
    "sdde": "Asynchronous SGD and its delay differential equation. Needs no data.",
}

RESULTS_OF = "reproductions/results/{}"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    return run_program(PROGRAM, lambda: app, arguments)


@app.callback(invoke_without_command=True)
def _reproductions(context: typer.Context) -> None:
    """Run a paper's experiments and set its claims beside what is found; a claim that does not hold is shown so."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def reproduce(
    name: str, options: Options, json: Path | None = None, figures: Path | None = None, table: Path | None = None
) -> None:
    """Reproduce a paper by its name, print the card, and write what was asked for."""
    for place in (json, table):
        if place is not None:
            check_place(place)
    if figures is not None:
        check_place(figures / "figure.png")
    if options.quick and options.full:
        raise ConfigError("--quick and --full cannot both be: under a minute, or the paper's own length")
    if options.runs is not None and not options.full:
        raise ConfigError(f"--runs {options.runs} needs --full: only the runs of a campaign are counted")
    work = options.work or Path("runs") / f"reproduce-{name}"
    check_parent(work / "run.json")
    from paceline.callbacks.terminal import console
    from reproductions.pipeline.card import card_table, markdown

    paper = paper_of(name)
    where = RESULTS_OF.format(name) if options.full else str(work)
    kept = f"finished runs are in {where}: the same command continues"
    try:
        card = paper.reproduce(replace(options, work=work))
    except KeyboardInterrupt as asked:
        raise Interrupted(f"; {kept if work.exists() else 'nothing kept'}", asked) from None
    except CannotWrite as error:
        raise CannotWrite(f"{error}; {kept}") from None
    console().print(card_table(card))
    if options.full:
        typer.echo(f"{name}: {card.settings['runs']}")
    if json is not None:
        card.write(json)
        typer.echo(f"Card and runs: {json}")
    if table is not None:
        write_atomically(table, markdown(card.claims))
        typer.echo(f"Table for a page: {table}")
    if figures is not None:
        drawn = ", ".join(map(str, paper.figures(card, figures)))
        typer.echo(f"Figures: {drawn or 'none yet, for want of runs'}")


def paper_of(name: str) -> "Paper[Any]":
    """A paper by its name; this imports what it needs."""
    paper: Paper[Any] = import_module(f"reproductions.{name.replace('-', '_')}.paper").PAPER
    return paper


def _add_paper(name: str, help_text: str) -> None:
    @app.command(name, help=help_text)
    def command(  # noqa: PLR0917 - typer names the options
        data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets are.")] = None,
        quick: Annotated[bool, typer.Option("--quick", help="Under a minute: training on a reduced scale.")] = False,
        full: Annotated[
            bool, typer.Option("--full", help="The paper's own length: hours, continued where committed results end.")
        ] = False,
        runs: Annotated[
            int | None,
            typer.Option("--runs", min=0, metavar="N", help="With --full: make N runs, then the card. 0 only reads."),
        ] = None,
        json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write card and runs there.")] = None,
        figures: Annotated[
            Path | None, typer.Option("--figures", metavar="DIR", help="Draw the figures there.")
        ] = None,
        table: Annotated[
            Path | None, typer.Option("--table", metavar="FILE", help="Write the claims there as a Markdown table.")
        ] = None,
        seed: Annotated[int, typer.Option(min=0, metavar="N", help="Added to the seeds of all runs.")] = 0,
        work: Annotated[
            Path | None, typer.Option("--work", metavar="DIR", help=f"Keeps finished runs; else runs/reproduce-{name}.")
        ] = None,
    ) -> None:
        reproduce(name, Options(data, quick, work, seed=seed, full=full, runs=runs), json, figures, table)


for _name, _help in PAPERS.items():
    _add_paper(_name, _help)


@app.command()
def seeds(
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets are.")] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="Keeps finished runs.")] = Path("runs") / "seeds",
) -> None:
    """Run --quick of all papers with two seeds, keep the verdicts, and tell what holds with the first alone."""
    from reproductions.seeds import FILE, write_verdicts

    check_parent(work / "run.json")
    for name, claims in write_verdicts(data, work).items():
        typer.echo(f"{name}: {', '.join(claims) or 'what holds with one seed holds with the other'}")
    typer.echo(f"Verdicts: {FILE}")


@app.command()
def pages(
    docs: Annotated[Path, typer.Option(metavar="DIR", help="The folder of evidence.md and results.")] = Path("docs"),
) -> None:
    """Write what the campaigns came to so far into the pages and tables of docs. Nothing is trained."""
    from reproductions.pages import write_pages

    if not (docs / "evidence.md").is_file():
        raise ConfigError(f"--docs {docs}: there is no evidence.md; give the folder docs of a checkout")
    typer.echo(f"Written: {', '.join(map(str, write_pages(docs)))}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="mnist, cifar10, or both.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Each data set gets a folder of its own in there.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="A web folder that has the files; else public ones.")
    ] = None,
) -> None:
    """Download data sets as published, check them, and continue where an earlier try was interrupted."""
    from reproductions.datasets.fetch import check_name

    for name in names:
        check_name(name)
    for name in names:
        _fetch(name, to, source)


def _fetch(name: str, to: Path, source: str | None) -> None:
    from reproductions.datasets.fetch import fetch as fetch_dataset

    reported: set[str] = set()
    try:
        with _progress() as show:

            def progress(file: str, done: int, size: int) -> None:
                reported.add(file)
                show(file, done, size)

            folder = fetch_dataset(name, to, base_url=source, progress=progress)
    except KeyboardInterrupt as asked:
        kept = f"the same command continues with what is in {to}" if to.exists() else "nothing was written"
        raise Interrupted(f"; {kept}", asked) from None
    typer.echo(f"{name} is {'' if reported else 'already '}in {folder}: use it with --data {to}")


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
