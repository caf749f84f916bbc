"""Records of pruned samples as a run writes them, and damaged or forged at random."""

import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from paceline.pruning.record import FILE

Arrays = dict[str, NDArray[Any]]


def pruning_arrays(samples: int = 3, **changed: NDArray[Any]) -> Arrays:
    """The arrays of a whole record of a few samples that look like pictures; some of them may be changed."""
    times = np.zeros(samples, np.int32)
    times[:2] = 1, 2
    return {
        "times_pruned": times,
        "times_stood_out": np.zeros(samples, np.int32),
        "passes": np.array([[0, 1, 3, 2], [0, 2, 3, 1]]),
        "trend_samples": np.array([0, 0]),
        "trend_epochs": np.array([1, 2]),
        "trend_losses": np.array([0.5, 0.4], np.float32),
        "shown": np.array([1, 0]),
        "inputs": np.arange(32, dtype=np.float32).reshape(2, 4, 4),
        "targets": np.arange(samples) % 2,
        **changed,
    }


def write_arrays(directory: Path, arrays: Arrays) -> None:
    (directory / FILE).unlink(missing_ok=True)
    save_file({name: np.ascontiguousarray(each) for name, each in arrays.items()}, directory / FILE)


def changed_arrays(arrays: Arrays, chance: random.Random) -> Arrays:
    """A few arrays of other shapes, types, lengths and numbers; or many more samples, classes or epochs."""
    if chance.random() < 0.2:
        arrays = pruning_arrays(samples := chance.choice((3, 1000, 40_000)), targets=np.arange(samples))
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice(sorted(arrays))
        arrays[name] = changed_array(arrays[name], chance)
    if chance.random() < 0.05:
        del arrays[chance.choice(sorted(arrays))]
    return arrays


def changed_array(array: NDArray[Any], chance: random.Random) -> NDArray[Any]:
    choice = chance.randrange(7)
    if choice == 0:
        return array[..., np.newaxis] if chance.random() < 0.5 else array.reshape(-1)
    if choice == 1:
        return array.astype(chance.choice((np.float64, np.float16, np.int64, np.uint8, np.bool_)))
    if choice == 2:
        return array[: chance.randrange(len(array) + 1)]
    if choice == 3:
        return np.repeat(array, chance.choice((2, 5000)), axis=0)
    if choice == 4:  # each another number, as of epochs
        steps = np.arange(len(array) * 5000).reshape(-1, *[1] * (array.ndim - 1))
        return np.broadcast_to(steps, (len(steps), *array.shape[1:])).astype(array.dtype)
    if choice == 5 and array.dtype.kind == "f":
        return np.full_like(array, chance.choice((np.nan, np.inf, 1e30, 0)))
    found = array.copy().reshape(-1)
    if len(found):
        found[chance.randrange(len(found))] = chance.choice((0, 1, 77, 100, 255, -1, -7, 65_535, 65_536, 2**31 - 1))
    return found.reshape(array.shape)
