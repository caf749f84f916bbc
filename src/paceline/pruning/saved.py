"""The record of pruning on disk, ``pruning.safetensors`` in a run's directory, with what its pictures need."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.files import write_atomically
from paceline.pruning.record import PruningRecord, record_of

if TYPE_CHECKING:
    from paceline.data.samples import Samples

FILE = "pruning.safetensors"
SHOWN = 40  # of the most pruned samples, the inputs are kept


@dataclass(frozen=True, eq=False)
class SavedPruning:
    """A record, the class of each sample where there are classes, and the inputs of the most pruned samples."""

    record: PruningRecord
    targets: NDArray[Any] | None
    shown: NDArray[np.int64]
    inputs: NDArray[Any]


def write_pruning(directory: Path, record: PruningRecord, samples: "Samples") -> None:
    """Write the record of a run."""
    from safetensors.numpy import save

    arrays = record.arrays()
    arrays["shown"] = most_pruned(record, SHOWN)
    arrays["inputs"] = samples.fetch(arrays["shown"])[0].cpu().numpy().copy() if _has_tensors(samples) else np.empty(0)
    targets = samples.listed_targets()
    if targets is not None and targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer):
        arrays["targets"] = targets.astype(np.int64)
    write_atomically(directory / FILE, save({name: np.ascontiguousarray(each) for name, each in arrays.items()}))


def read_pruning(directory: Path) -> SavedPruning | None:
    """The record of a run, if it pruned."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = directory / FILE
    if not path.exists():
        return None
    try:
        arrays = load_file(path)
        return SavedPruning(record_of(arrays), arrays.get("targets"), arrays["shown"], arrays["inputs"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def most_pruned(record: PruningRecord, most: int) -> NDArray[np.int64]:
    """The samples that were pruned most often, the most often first; at least once each."""
    order = np.argsort(-record.times_pruned.astype(np.int64), kind="stable")[:most]
    return order[record.times_pruned[order] > 0]


def _has_tensors(samples: "Samples") -> bool:
    return len(samples) > 0 and hasattr(samples.fetch(np.zeros(1, dtype=np.int64))[0], "numpy")
