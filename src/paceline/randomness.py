"""One random stream per purpose and per worker, so that another delay model leaves the order of the data alone."""

import numpy as np

PURPOSES = ("delay", "batches", "partition", "local", "pruning")


def stream(seed: int, purpose: str, worker: int = 0, epoch: int | None = None) -> np.random.Generator:
    """A stream for the whole run, or one for an epoch of it."""
    numbers = (PURPOSES.index(purpose), worker) if epoch is None else (PURPOSES.index(purpose), worker, epoch)
    sequence = np.random.SeedSequence(seed, spawn_key=numbers)
    return np.random.Generator(np.random.SFC64(sequence))
