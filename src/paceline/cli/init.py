"""``paceline init``: writes a first experiment with a model of your own."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.main import echo
from paceline.core.errors import ConfigError
from paceline.files import check_place, is_there, write_atomically

STARTER = {"task.py": "task.txt", "paceline.toml": "paceline.toml"}  # what is written, and the file that it is from


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to write to; by default the current one.")
    ] = Path(),
) -> None:
    """Write an experiment that runs as it is: paceline.toml, and task.py with a model and data to replace by your own.

    Files that are there already are never overwritten.
    """
    written = {directory / name: source for name, source in STARTER.items()}
    for path in written:
        if is_there(path):
            raise ConfigError(f"{path} is there already, and is not overwritten: paceline init DIR writes elsewhere")
        check_place(path)
    for path, source in written.items():
        text = (files("paceline.cli") / "starter" / source).read_text(encoding="utf-8")
        write_atomically(path, text)
    experiment = directory / "paceline.toml"
    echo(f"{directory / 'task.py'}: a model, a loss and data, to replace by your own")
    echo(f"{experiment}: the fleet, the rules and the learning rates to compare")
    echo(f"Next: paceline compare {experiment}")
