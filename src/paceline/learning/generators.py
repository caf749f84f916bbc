"""The random numbers that models, data sets and losses draw: the global generators of torch, numpy and Python.

What a worker draws depends on the run's seed, the worker, and how much work it was given before: not on who else
works, in which order they arrive, or in which process. So all three generators are seeded for each ticket.
"""

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from paceline.core.codec import real, whole
from paceline.core.stateful import State

CPU = torch.device("cpu")


def work_seed(seed: int, worker: int, number: int) -> int:
    """The seed of a worker's ticket with this number, wherever it is computed; below 2^63."""
    digest = hashlib.blake2b(f"{seed} {worker} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rank_seed(seed: int, rank: int) -> int:
    """The seed of one rank of a worker: each draws numbers of its own, the first those of a worker of one process."""
    return seed if not rank else work_seed(seed, rank, 0)


def seed_generators(seed: int, device: torch.device = CPU) -> None:
    """Seed torch, on the CPU and one device, numpy and Python.

    This takes about 15 microseconds; ``torch.manual_seed`` alone, which looks for every kind of device, takes longer.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    seed_numpy_and_python(seed)


def seed_numpy_and_python(seed: int) -> None:
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def own_generators(seed: int) -> Iterator[None]:
    """Let a run draw from its seed, and leave the generators as they were before it."""
    of_python = random.getstate()
    of_numpy = get_bit_generator()
    with torch.random.fork_rng(**_in_use()):
        numpy_state = np.random.get_state(legacy=False)
        set_bit_generator(np.random.MT19937())  # perhaps it was another kind, which cannot be seeded
        torch.manual_seed(seed)
        seed_numpy_and_python(seed)
        try:
            yield
        finally:
            set_bit_generator(of_numpy)
            np.random.set_state(numpy_state)
            random.setstate(of_python)


def _in_use() -> dict[str, Any]:
    """The devices whose generators are to be kept: none before their driver is initialised, which this must not do."""
    kind = torch.accelerator.current_accelerator()
    module: Any = None if kind is None else torch.get_device_module(kind)
    if kind is None or not getattr(module, "is_initialized", bool)():
        return {"devices": []}
    return {"devices": list(range(module.device_count())), "device_type": kind.type}


class Generators:
    """Where the generators stand, for a checkpoint."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state(self) -> State:
        own = None if self._device.type == "cpu" else torch.get_device_module(self._device).get_rng_state(self._device)
        version, words, gauss = random.getstate()
        return {
            "cpu": torch.get_rng_state(),
            "device": None if own is None else own.cpu(),
            "numpy": _numpy_state(),
            "python": {"version": version, "words": np.array(words, dtype=np.int64), "gauss": gauss},
        }

    def restore(self, state: State) -> None:
        torch.set_rng_state(state["cpu"])
        if state["device"] is not None:
            torch.get_device_module(self._device).set_rng_state(state["device"], self._device)
        if "numpy" in state:  # older checkpoints have neither numpy's nor Python's
            key, position, has_gauss, gauss = (state["numpy"][name] for name in ("key", "pos", "has gauss", "gauss"))
            np.random.set_state(("MT19937", key.astype(np.uint32), whole(position), whole(has_gauss), real(gauss)))
            of_python = state["python"]
            gauss = of_python["gauss"]
            words = tuple(of_python["words"].tolist())
            random.setstate((whole(of_python["version"]), words, None if gauss is None else real(gauss)))


class Undrawn:
    """Where the generators stand, of whatever kind numpy's is, to put them back after a trial."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        self._before = _others()

    def put_back(self) -> bool:
        """Leave no trace of what was drawn; was anything?"""
        cpu, of_numpy, of_python = self._before
        drawn = self._own is not None or pickle.dumps(_others()) != pickle.dumps(self._before)
        torch.set_rng_state(torch.from_numpy(cpu))
        np.random.set_state(of_numpy)
        random.setstate(of_python)
        if self._own is not None:
            torch.get_device_module(self._device).set_rng_state(self._own, self._device)
        return drawn


def _others() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy(), np.random.get_state(legacy=False), random.getstate()


def _numpy_state() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=False)
    mersenne = state["state"]
    return {
        "key": mersenne["key"].astype(np.int64),
        "pos": int(mersenne["pos"]),
        "has gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }
