"""``paceline doctor``: what this machine offers workers, and what one worker takes on each of its devices."""

import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.cli.common import JsonFile

if TYPE_CHECKING:
    from paceline.learning.device_times import DeviceTimes

GIB = 1 << 30


def doctor(json_file: JsonFile = None) -> None:
    """Show the devices of this machine, and time one worker's mini-batch, copies and step on each of them.

    The mini-batch is 32 samples through a perceptron of 670,000 parameters. Use it to see whether a device is found,
    and what copying to it costs.
    """
    import torch

    from paceline.files import check_writable, write_atomically
    from paceline.learning.device_times import time_device
    from paceline.learning.devices import accelerators

    if json_file is not None:
        check_writable(json_file, ".json")
    found = accelerators()
    times = [time_device(device) for device in ["cpu", *found]]
    about = {
        "paceline": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "ray": _version("ray"),
        "start": "fork",
        "accelerators": found,
    }
    _show(about, times)
    if json_file is not None:
        values = {**about, "devices": [vars(each) for each in times]}
        write_atomically(json_file, json.dumps(values, indent=2) + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _show(about: dict[str, Any], times: "list[DeviceTimes]") -> None:
    from paceline.callbacks.terminal import Column, console, print_table

    terminal = console()
    ray = f"Ray {about['ray']}" if about["ray"] else "Ray is not installed: RayFleet cannot be used"
    for line in (
        f"Paceline {about['paceline']}, torch {about['torch']}, Python {about['python']}, {ray}",
        about["system"],
        'Workers are forked from a process that initialises no driver; start="spawn" where a library cannot be forked',
        f"Accelerators: {', '.join(about['accelerators']) or 'none, workers compute on the CPU'}",
    ):
        terminal.print(line, markup=False)
    terminal.print()
    columns = [
        Column("device", left=True),
        Column("name", least=16, left=True),
        Column("memory"),
        Column("mini-batch"),
        Column("copy"),
        Column("step"),
    ]
    rows = [
        [each.device, each.error or each.name, _gib(each.memory), *map(_ms, (each.mini_batch, each.copy, each.step))]
        for each in times
    ]
    print_table(terminal, columns, rows)
    terminal.print(
        "mini-batch: forward and backward of 32 samples; copy: weights to the device and the gradient back, which the "
        "CPU needs no copy for but the gradient; step: two gradients summed up by the server",
        markup=False,
    )


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.1f} GiB"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"
