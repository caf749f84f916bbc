"""What pruning did in a run, sample by sample: kept beside the run, and drawn in its report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.sampling.partition import Indices

FOLLOWED = 256  # samples whose every loss is kept


@dataclass(eq=False)
class PruningRecord:
    """Counts over the whole run, and the losses of a few samples that were chosen beforehand.

    ``passes`` has a row for each pass of a worker through its shard: worker, epoch (from 1), samples that it holds,
    samples that were kept. ``trends`` has a row for each loss of a followed sample: sample, epoch, loss.
    """

    times_pruned: NDArray[np.uint16]
    times_stood_out: NDArray[np.uint16]
    followed: Indices
    passes: list[tuple[int, int, int, int]] = field(default_factory=list)
    trends: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def pruned_share(self) -> float:
        """The share of the samples that was left out of the passes that were begun."""
        held = sum(row[2] for row in self.passes)
        return 1 - sum(row[3] for row in self.passes) / held if held else 0.0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays, to be written."""
        samples, epochs, losses = zip(*self.trends, strict=True) if self.trends else ((), (), ())
        return {
            "times_pruned": self.times_pruned.astype(np.int32),
            "times_stood_out": self.times_stood_out.astype(np.int32),
            "passes": np.array(self.passes, dtype=np.int64).reshape(-1, 4),
            "trend_samples": np.array(samples, dtype=np.int64),
            "trend_epochs": np.array(epochs, dtype=np.int64),
            "trend_losses": np.array(losses, dtype=np.float32),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on with the record that was written as these arrays."""
        for own, saved in ((self.times_pruned, "times_pruned"), (self.times_stood_out, "times_stood_out")):
            if arrays[saved].shape != own.shape:
                raise ValueError(f"{saved} of {arrays[saved].shape}, not {own.shape}")
            own[:] = arrays[saved]
        self.passes[:], self.trends[:] = _rows(arrays)


def _rows(arrays: Mapping[str, NDArray[Any]]) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int, float]]]:
    """Passes and trends."""
    passes = [(int(w), int(e), int(held), int(kept)) for w, e, held, kept in arrays["passes"]]
    trends = zip(arrays["trend_samples"], arrays["trend_epochs"], arrays["trend_losses"], strict=True)
    return passes, [(int(sample), int(epoch), float(loss)) for sample, epoch, loss in trends]


def new_record(samples: int, generator: np.random.Generator) -> PruningRecord:
    """An empty record of so many samples; which are followed is drawn by lot."""
    followed = np.sort(generator.choice(samples, size=min(FOLLOWED, samples), replace=False)).astype(np.int64)
    return PruningRecord(np.zeros(samples, dtype=np.uint16), np.zeros(samples, dtype=np.uint16), followed)


def record_of(arrays: Mapping[str, NDArray[Any]]) -> PruningRecord:
    """The record that was written as these arrays."""
    return PruningRecord(
        arrays["times_pruned"].astype(np.uint16),
        arrays["times_stood_out"].astype(np.uint16),
        np.unique(arrays["trend_samples"]),
        *_rows(arrays),
    )
