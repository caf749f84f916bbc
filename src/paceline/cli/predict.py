"""``paceline predict``: what can be computed before a run, in one table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import DEMO, JsonFile, Strategies, Trust
from paceline.cli.main import echo

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature
    from paceline.prediction.sources import Predictions


def predict(  # noqa: PLR0917 - typer names the options
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="TOML file, directory of a run, or trace; without one, the demo of paceline compare."
        ),
    ] = None,
    strategy: Strategies = None,
    json_file: JsonFile = None,
    momentum: Annotated[
        float | None, typer.Option(help="Assume SGD with this momentum, instead of the optimizer in FILE.")
    ] = None,
    curvature: Annotated[
        float | None,
        typer.Option(help="Largest eigenvalue of the Hessian of the loss; by default measured on the model in FILE."),
    ] = None,
    model: Annotated[
        bool,
        typer.Option("--model/--no-model", help="Build the model in FILE to measure its size and curvature."),
    ] = True,
    margin: Annotated[
        float, typer.Option(help="Recommended learning rate, as a fraction of the largest stable one.")
    ] = 0.5,
    epsilon: Annotated[
        float, typer.Option(help="Predict the time until the error is this fraction of the initial error.")
    ] = 0.01,
    condition: Annotated[
        float, typer.Option(help="Condition number of the Hessian, for that time: largest by smallest eigenvalue.")
    ] = 100.0,
    trust: Trust = False,
) -> None:
    """Predict, without training, updates per second, staleness and the largest stable learning rate of strategies.

    Each number is shown with its source: exact, a theorem, numerical integration, measured, or simulated.
    """
    from paceline.files import check_writable, write_atomically
    from paceline.prediction.predict import Goal
    from paceline.prediction.sources import predict_all, read_source

    goal = Goal(margin, epsilon, condition)
    if json_file is not None:
        check_writable(json_file, ".json")
    read = read_source(source or DEMO, strategy, trust=trust)
    with _status() as progress:
        found = predict_all(read, goal, momentum=momentum, curvature=curvature, look_at_model=model, progress=progress)
    _show(found)
    if json_file is not None:
        write_atomically(json_file, json.dumps(found.table(), allow_nan=False) + "\n")
        echo(f"All results: {json_file}")


@contextmanager
def _status() -> "Iterator[Callable[[Curvature], None] | None]":
    """A status line that shows the estimate of the curvature, if stderr is a terminal."""
    from paceline.callbacks.terminal import console

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield None
        return
    with terminal.status("predicting ...") as status:

        def progress(found: "Curvature") -> None:
            status.update(f"curvature {found.value:.4g}, error {found.error:.2g}, after {found.products} products")

        yield progress


def _show(found: "Predictions") -> None:
    from paceline.callbacks.terminal import console, print_table
    from paceline.prediction.table import SOURCES, STABLE, prediction_rows, title

    terminal = console()
    terminal.print(title(found), markup=False)
    terminal.print()
    columns, rows = prediction_rows(found.by_strategy, found.descent, found.goal)
    print_table(terminal, columns, rows, apart=True, more="see all with --json FILE.json")
    goal = found.goal
    time = (
        f"Time to {goal.epsilon:g}: until the mean error is that fraction of the initial one, at the recommended "
        f"learning rate, in a direction {goal.condition:g} times flatter than the sharpest, without gradient noise."
    )
    for line in (STABLE, time, SOURCES, *found.notes()):
        terminal.print(line, style="dim", markup=False)
