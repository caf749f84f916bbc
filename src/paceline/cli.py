"""The command line. Nothing heavy is imported before a command needs it: ``paceline --help`` answers at once.

Exit codes: 0 done; 1 a run diverged or lost too many workers; 2 something was asked for that cannot be (one line on
stderr says what, and nothing was written); 130 interrupted (one line says what is on disk).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline import __version__
from paceline.command_line import told
from paceline.compare_cli import compare
from paceline.core.errors import ConfigError
from paceline.datasets.cli import data_app
from paceline.interrupts import Interrupted
from paceline.papers.cli import reproduce
from paceline.predict.cli import predict
from paceline.profile_cli import profile
from paceline.replay_cli import replay
from paceline.train_cli import train

if TYPE_CHECKING:
    pass

REFUSED, INTERRUPTED = 2, 130

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(data_app, name="data")
app.command()(compare)
app.command()(train)
app.command()(reproduce)
app.command()(replay)
app.command()(predict)
app.command()(profile)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="paceline", standalone_mode=False)
    except ConfigError as error:
        return told(f"error: {error}", REFUSED)
    except Interrupted as error:
        return told(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return told("interrupted; nothing was written", INTERRUPTED)
    except Exception as error:
        # Typer's errors about arguments, whether it brings its own click or uses the package
        if (message := getattr(error, "format_message", None)) is None:
            raise
        return told(f"error: {message()} (see paceline --help)", REFUSED)
    return code if isinstance(code, int) else 0


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
    from paceline.reports.cli import report as write_report

    write_report(runs, out, perfetto)


@app.command()
def strategies() -> None:
    """List the strategies: names, rules, papers."""
    from paceline.tables import console, strategies_table

    console().print(strategies_table())
    typer.echo(
        "Options follow the name: --strategy lgc:quorum=7,blocks=4. Groups of like speed are formed by themselves;"
    )
    typer.echo("another rule inside them comes last: --strategy gsgd:tolerance=0.5,inside=lgc:quorum=3,blocks=4")


if __name__ == "__main__":
    sys.exit(main())
