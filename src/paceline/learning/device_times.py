"""What one worker takes on a device: for a mini-batch, for the copies that it makes, and for a step of the server.

The parts of a real worker are timed (``GradientWork``, ``Staged``, ``SlotSums``), in this process. Each time is the
median of several, after one that does not count.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline.data.samples import TensorSamples, to_device
from paceline.learning.arena.arena import Layout, ParameterArena, StagedSlot
from paceline.learning.devices import Transfers, open_device
from paceline.learning.gradients.placement import Staged
from paceline.learning.gradients.shared import SlotSums

REPEATED = 7
BATCH = 32
CLASSES = 10


@dataclass(frozen=True)
class DeviceTimes:
    """Seconds on one device; None where it cannot be used, and then why.

    mini_batch  forward and backward
    copy        weights to the device, and the gradient back to the row: what a worker adds to each mini-batch, weights
                only where the version is another than the last one's
    step        two gradients are summed up and the model moves along them, on the server
    """

    device: str
    name: str
    memory: int | None  # bytes
    mini_batch: float | None = None
    copy: float | None = None
    step: float | None = None
    error: str = ""


def mlp(inputs: int = 784, hidden: int = 512) -> nn.Module:
    """The model that is timed unless another is given: 670,000 parameters."""
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)]
    return nn.Sequential(*layers)


def time_device(device: str, make: Callable[[], nn.Module] = mlp, shape: tuple[int, ...] = (784,)) -> DeviceTimes:
    """Time a model on mini-batches of 32 samples of a shape."""
    name, memory = described(device)
    try:
        return DeviceTimes(device, name, memory, *_times(device, make, shape))
    except Exception as error:  # a driver may raise anything
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return DeviceTimes(device, name, memory, error=line[:200])


def described(device: str) -> tuple[str, int | None]:
    """The name of a device, and its memory in bytes, where they can be told."""
    if device == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
        return f"{cores} cores", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    module = torch.get_device_module(torch.device(device))
    name: str = getattr(module, "get_device_name", str)(device)
    try:
        return name, torch.accelerator.get_memory_info(device)[1]
    except (RuntimeError, NotImplementedError, AttributeError):
        return name, None


def _times(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[float, float, float]:
    device = open_device(name)
    model = make()
    parameters = list(model.parameters())
    layout = Layout(parameters, [], BATCH, pages=device.type != "cpu")
    arena = ParameterArena(layout, torch.zeros(4 * layout.stride, dtype=torch.uint8))
    for values, parameter in zip(arena[0].parameters, parameters, strict=True):
        values.copy_(parameter.data)
    staged, transfers = StagedSlot(layout, device), Transfers.of(device)
    for parameter, values in zip(parameters, staged.parameters, strict=True):
        parameter.data = values
    placement = Staged(staged, transfers, [])
    samples = TensorSamples(torch.rand(BATCH, *shape), torch.zeros(BATCH, dtype=torch.int64))
    inputs, targets = samples.fetch(torch.arange(BATCH).numpy())

    def mini_batch() -> None:
        for parameter in parameters:
            parameter.grad = None
        there: tuple[Tensor, Tensor] = to_device((inputs, targets), device)
        torch.autograd.backward(cross_entropy(model(there[0]), there[1]))
        transfers.finish()

    def copy() -> None:
        placement.download(arena[0], None)
        placement.hand_in(arena[2], [p.grad for p in parameters if p.grad is not None], [])
        placement.finish()

    def step() -> None:
        sums.add(((0, -0.01), (1, -0.01)), arena[0].vectors, arena[1].vectors)

    placement.download(arena[0], None)
    sums = SlotSums(arena.matrices(2))
    with torch.no_grad():
        step()
    return _median(mini_batch), _median(copy), _median(step)


def _median(action: Callable[[], None]) -> float:
    action()
    times = []
    for _ in range(REPEATED):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return median(times)
