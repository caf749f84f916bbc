"""The commands. Nothing heavy is imported before one needs it: ``paceline --help`` answers at once."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from paceline import __version__
from paceline.cli.compare import compare
from paceline.cli.predict import predict
from paceline.cli.profile import profile
from paceline.cli.replay import replay
from paceline.cli.train import train
from paceline.core.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(compare)
app.command()(train)
app.command()(replay)
app.command()(predict)
app.command()(profile)


@app.callback(invoke_without_command=True)
def _paceline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Train PyTorch models on workers of unequal speed: choose who waits for whom, and see what it costs."""
    if version:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs, as train leaves them.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="One page, without network.")] = None,
    perfetto: Annotated[Path | None, typer.Option(metavar="FILE.json", help="A timeline for Perfetto.")] = None,
) -> None:
    """Show runs side by side: curves, a timeline of the workers, staleness, and who was waited for."""
    from paceline.cli.report import report as write_report

    write_report(runs, out, perfetto)


@app.command()
def strategies() -> None:
    """List the strategies: names, rules, papers."""
    from paceline.comparison.tables import console, strategies_table

    console().print(strategies_table())
    typer.echo(
        "Options follow the name: --strategy lgc:quorum=7,blocks=4. Groups of like speed are formed by themselves;"
    )
    typer.echo("another rule inside them comes last: --strategy gsgd:tolerance=0.5,inside=lgc:quorum=3,blocks=4")


_ELSEWHERE = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(hidden=True, add_help_option=False, context_settings=_ELSEWHERE)
def reproduce(context: typer.Context) -> None:
    _refer_to_reproductions("reproduce", context.args)


@app.command(hidden=True, add_help_option=False, context_settings=_ELSEWHERE)
def data(context: typer.Context) -> None:
    _refer_to_reproductions("data", context.args)


def _refer_to_reproductions(command: str, arguments: list[str]) -> None:
    """For one release: these commands left the package with the papers' experiments."""
    now = shlex.join(["python", "-m", "reproductions", *arguments])
    raise ConfigError(f"paceline {command} is no longer in the package; from the root of the repository: {now[:400]}")
