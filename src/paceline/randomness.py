"""One random stream per purpose and per worker, so that another delay model leaves the order of the data alone."""

import numpy as np

PURPOSES = ("delay", "batches", "partition", "local")


def stream(seed: int, purpose: str, worker: int = 0) -> np.random.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES.index(purpose), worker))
    return np.random.Generator(np.random.SFC64(sequence))
