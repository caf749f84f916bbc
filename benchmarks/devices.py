"""What one worker takes on each device of this machine, for three models: a table to send.

    python benchmarks/devices.py [--save]

Runs anywhere, and takes a minute. Times are medians, in milliseconds: of a mini-batch of 32 samples (forward and
backward), of the copies that a worker on a device makes (weights there, the gradient back), and of a step of the server
along two gradients. ``--save`` writes benchmarks/results/devices.json, which is what to send, with the kind of machine.
"""

import platform

import torch
from against_ddp import CASES
from measuring import parse, write

from paceline.learning.device_times import DeviceTimes, time_device
from paceline.learning.devices import accelerators


def in_milliseconds(found: DeviceTimes) -> dict[str, float | str]:
    if found.error:
        return {"error": found.error}
    times = {"mini-batch": found.mini_batch, "copy": found.copy, "step": found.step}
    return {name: round(1e3 * seconds, 3) for name, seconds in times.items() if seconds is not None}


def main() -> None:
    save = parse().save
    torch.set_num_threads(1)  # as a worker on a device has, or one of many on the CPU
    table: dict[str, dict[str, dict[str, float | str]]] = {}
    about: dict[str, str] = {}
    for device in ["cpu", *accelerators()]:
        for model, case in CASES.items():
            found = time_device(device, case.make, case.shape)
            table.setdefault(device, {})[model] = in_milliseconds(found)
            about[device] = found.name
            print(f"{device:8} {model:20} {table[device][model]}", flush=True)
    write("devices", {"system": platform.platform(), "devices": about, "milliseconds": table}, save=save)


if __name__ == "__main__":
    main()
