"""Independent random streams, one per purpose and worker: changing the delays does not change the mini-batches."""

from collections.abc import Mapping
from typing import Any

import numpy as np

LARGEST_SEED = 2**63 - 1  # that torch accepts
PURPOSES = ("delay", "batches", "partition", "local", "pruning", "sizes", "availability", "slowness")


def stream(seed: int, purpose: str, worker: int = 0, epoch: int | None = None) -> np.random.Generator:
    """The random generator for a purpose and a worker, for the whole run or for one epoch."""
    numbers = (PURPOSES.index(purpose), worker) if epoch is None else (PURPOSES.index(purpose), worker, epoch)
    sequence = np.random.SeedSequence(seed, spawn_key=numbers)
    return np.random.Generator(np.random.SFC64(sequence))


def stream_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a generator as plain values, for checkpoints."""
    state = generator.bit_generator.state
    return {**state, "state": {"state": state["state"]["state"].tolist()}}


def restore_stream(generator: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Set a generator to a state from ``stream_state``."""
    words = np.array(state["state"]["state"], dtype=np.uint64)
    if words.shape != (4,):
        raise ValueError(f"an array of shape {words.shape} is not the state of a random generator")
    generator.bit_generator.state = {**state, "state": {"state": words}}
