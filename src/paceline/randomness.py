"""One random stream per purpose and per worker, so that another delay model leaves the order of the data alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

LARGEST_SEED = 2**63 - 1  # that torch takes too
PURPOSES = ("delay", "batches", "partition", "local", "pruning")


def stream(seed: int, purpose: str, worker: int = 0, epoch: int | None = None) -> np.random.Generator:
    """A stream for the whole run, or one for an epoch of it."""
    numbers = (PURPOSES.index(purpose), worker) if epoch is None else (PURPOSES.index(purpose), worker, epoch)
    sequence = np.random.SeedSequence(seed, spawn_key=numbers)
    return np.random.Generator(np.random.SFC64(sequence))


def stream_state(generator: np.random.Generator) -> dict[str, Any]:
    """Where a stream stands, as plain values."""
    state = generator.bit_generator.state
    return {**state, "state": {"state": state["state"]["state"].tolist()}}


def restore_stream(generator: np.random.Generator, state: Mapping[str, Any]) -> None:
    words = np.array(state["state"]["state"], dtype=np.uint64)
    if words.shape != (4,):
        raise ValueError(f"{words.shape} is no state of a random stream")
    generator.bit_generator.state = {**state, "state": {"state": words}}
