"""The Typer application. Commands import torch and other large packages only when they run: ``--help`` is fast."""

import shlex
from typing import Annotated

import typer

from paceline import __version__
from paceline.cli.advise import advise
from paceline.cli.common import exit_codes
from paceline.cli.compare import compare
from paceline.cli.doctor import doctor
from paceline.cli.init import init
from paceline.cli.main import echo
from paceline.cli.predict import predict
from paceline.cli.profile import profile
from paceline.cli.replay import replay
from paceline.cli.report import report
from paceline.cli.strategies import strategies
from paceline.cli.train import train
from paceline.core.errors import ConfigError

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=exit_codes("a run fails, as the help of each command says"),
)
_COMMANDS = (
    (init, "Write a first experiment with your own model.", "files cannot be written"),
    (compare, "Train with several strategies, and compare them.", "results cannot be written, or a process was killed"),
    (
        train,
        "Train with one strategy, and save the run.",
        "the run diverged, lost too many workers, or cannot be saved",
    ),
    (replay, "Repeat a run, or simulate another strategy.", "the weights differ"),
    (predict, "Predict speed, staleness and stable learning rates.", "results cannot be written"),
    (profile, "Measure the speed of real workers.", "workers failed, or results cannot be written"),
    (advise, "Say which strategy to use, and why.", "workers failed, or results cannot be written"),
    (report, "Show runs on a page or in a timeline.", "files cannot be written"),
    (strategies, "List the strategies.", None),
    (doctor, "Show and time this machine's devices.", "results cannot be written"),
)
for _command, _short_help, _failed in _COMMANDS:
    app.command(short_help=_short_help, epilog=exit_codes(_failed))(_command)


@app.callback(invoke_without_command=True)
def _paceline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Train PyTorch models on workers of unequal speed: choose who waits for whom, and see what it costs."""
    if version:
        echo(f"paceline {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        echo(context.get_help())


_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(hidden=True, add_help_option=False, context_settings=_ANY_ARGUMENTS)
def reproduce(context: typer.Context) -> None:
    _refer_to_reproductions("reproduce", context.args)


@app.command(hidden=True, add_help_option=False, context_settings=_ANY_ARGUMENTS)
def data(context: typer.Context) -> None:
    _refer_to_reproductions("data", context.args)


def _refer_to_reproductions(command: str, arguments: list[str]) -> None:
    """Refuse a command that left the package, and name the one that replaces it."""
    now = shlex.join(["python", "-m", "reproductions", *arguments])
    raise ConfigError(f"paceline {command} is no longer in the package; from the root of the repository: {now[:400]}")
