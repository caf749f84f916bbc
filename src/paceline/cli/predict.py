"""``paceline predict``: what can be said before a run, in one table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature
    from paceline.prediction.sources import Predictions


def predict(  # noqa: PLR0917 - typer names the options
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[SOURCE]", help="A TOML file, a run's directory or its trace; without one, the demo."),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option("--strategy", "-s", metavar="NAME:OPTION=VALUE,...", help="Repeat for several.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write everything there.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of plain SGD, instead of the file's optimizer.")] = None,
    curvature: Annotated[float | None, typer.Option(help="The largest of the loss, if you know it.")] = None,
    model: Annotated[bool, typer.Option("--model/--no-model", help="Look at the file's model.")] = True,
    margin: Annotated[float, typer.Option(help="The recommended learning rate, as a share of the largest.")] = 0.5,
    epsilon: Annotated[float, typer.Option(help="The time is that to this share of the first error ...")] = 0.01,
    condition: Annotated[float, typer.Option(help="... along a direction so many times flatter.")] = 100.0,
) -> None:
    """Predict, without training: updates a second, staleness, and stable learning rates, each with its source."""
    from paceline.files import check_writable, write_atomically
    from paceline.prediction.predict import Goal
    from paceline.prediction.sources import predict_all, read_source

    goal = Goal(margin, epsilon, condition)
    if json_file is not None:
        check_writable(json_file, ".json")
    read = read_source(source or Path(__file__).parent.with_name("demo.toml"), strategy)
    with _watched() as progress:
        found = predict_all(read, goal, momentum=momentum, curvature=curvature, look_at_model=model, progress=progress)
    _show(found)
    if json_file is not None:
        write_atomically(json_file, json.dumps(found.table(), allow_nan=False) + "\n")
        typer.echo(f"Everything in numbers: {json_file}")


@contextmanager
def _watched() -> "Iterator[Callable[[Curvature], None] | None]":
    """On a terminal, a line that says how far the search for the curvature is."""
    from paceline.comparison.tables import console

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield None
        return
    with terminal.status("predicting ...") as status:

        def progress(found: "Curvature") -> None:
            status.update(f"curvature {found.value:.4g}, error {found.error:.2g}, after {found.products} products")

        yield progress


def _show(found: "Predictions") -> None:
    from paceline.comparison.tables import console
    from paceline.prediction.table import SOURCES, STABLE, prediction_table, title

    terminal = console()
    terminal.print(title(found), markup=False)
    terminal.print()
    terminal.print(prediction_table(found.by_strategy, found.descent, found.goal))
    goal = found.goal
    time = (
        f"Time to {goal.epsilon:g}: until the mean error is that share of the first one, at the recommended rate, "
        f"in a direction {goal.condition:g} times flatter than the sharpest; noise is left aside."
    )
    for line in (STABLE, time, SOURCES, *found.notes()):
        terminal.print(line, style="dim", markup=False)
