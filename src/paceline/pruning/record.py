"""Record of which samples a run left out, in memory and on disk."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.files import check_regular, write_atomically

if TYPE_CHECKING:
    from paceline.data.samples import Samples


FOLLOWED = 256  # samples of which every loss is recorded


class Trends:
    """Rows of (sample, epoch, loss), twelve bytes each; a list of tuples would take about a hundred."""

    def __init__(self, rows: Iterable[tuple[int, int, float]] = ()) -> None:
        self._samples, self._epochs, self._losses = array("i"), array("i"), array("f")
        self += rows

    def __iadd__(self, rows: Iterable[tuple[int, int, float]]) -> "Trends":
        for sample, epoch, loss in rows:
            self._samples.append(sample)
            self._epochs.append(epoch)
            self._losses.append(loss)
        return self

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        return zip(self._samples, self._epochs, self._losses, strict=True)

    def __len__(self) -> int:
        return len(self._samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trends) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def columns(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Samples, epochs and losses, copied."""
        return np.array(self._samples), np.array(self._epochs), np.array(self._losses)


@dataclass(eq=False)
class PruningRecord:
    """How often each sample was left out or stood out, and every loss of a few random samples (``followed``).

    ``passes`` has a row for each epoch of a worker's shard: worker, epoch (from 1), samples in the shard, samples that
    were kept. ``trends`` has a row for each loss of a followed sample: sample, epoch, loss.
    """

    times_pruned: NDArray[np.uint16]
    times_stood_out: NDArray[np.uint16]
    followed: Indices
    passes: list[tuple[int, int, int, int]] = field(default_factory=list)
    trends: Trends = field(default_factory=Trends)

    @property
    def pruned_share(self) -> float:
        """The share of samples that was left out, over all epochs that were started."""
        held = sum(row[2] for row in self.passes)
        return 1 - sum(row[3] for row in self.passes) / held if held else 0.0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The record as arrays, for a file."""
        samples, epochs, losses = self.trends.columns()
        return {
            "times_pruned": self.times_pruned.astype(np.int32),
            "times_stood_out": self.times_stood_out.astype(np.int32),
            "passes": np.array(self.passes, dtype=np.int64).reshape(-1, 4),
            "trend_samples": samples.astype(np.int64),
            "trend_epochs": epochs.astype(np.int64),
            "trend_losses": losses.astype(np.float32),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load a record from ``arrays()``."""
        for own, saved in ((self.times_pruned, "times_pruned"), (self.times_stood_out, "times_stood_out")):
            if arrays[saved].shape != own.shape:
                raise ValueError(f"{saved} of {arrays[saved].shape}, not {own.shape}")
            own[:] = arrays[saved]
        self.passes[:], self.trends = _rows(arrays)


def _rows(arrays: Mapping[str, NDArray[Any]]) -> tuple[list[tuple[int, int, int, int]], Trends]:
    """Passes and trends."""
    passes = [(int(w), int(e), int(held), int(kept)) for w, e, held, kept in arrays["passes"]]
    trends = zip(arrays["trend_samples"], arrays["trend_epochs"], arrays["trend_losses"], strict=True)
    return passes, Trends((int(sample), int(epoch), float(loss)) for sample, epoch, loss in trends)


def new_record(samples: int, generator: np.random.Generator) -> PruningRecord:
    """An empty record for a number of samples; the followed ones are chosen at random."""
    followed = np.sort(generator.choice(samples, size=min(FOLLOWED, samples), replace=False)).astype(np.int64)
    return PruningRecord(np.zeros(samples, dtype=np.uint16), np.zeros(samples, dtype=np.uint16), followed)


def record_of(arrays: Mapping[str, NDArray[Any]]) -> PruningRecord:
    """The record with these ``arrays()``."""
    return PruningRecord(
        arrays["times_pruned"].astype(np.uint16),
        arrays["times_stood_out"].astype(np.uint16),
        np.unique(arrays["trend_samples"]),
        *_rows(arrays),
    )


FILE = "pruning.safetensors"
SHOWN = 40  # most pruned samples whose inputs are saved for the report


@dataclass(frozen=True, eq=False)
class SavedPruning:
    """A record from disk, with the class of each sample if it has one, and the inputs of the most pruned samples."""

    record: PruningRecord
    targets: NDArray[Any] | None
    shown: NDArray[np.int64]
    inputs: NDArray[Any]


def write_pruning(directory: Path, record: PruningRecord, samples: "Samples") -> None:
    """Write the record of a run into its directory."""
    from safetensors.numpy import save

    arrays = record.arrays()
    arrays["shown"] = most_pruned(record, SHOWN)
    arrays["inputs"] = _inputs(samples, arrays["shown"])
    targets = samples.listed_targets()
    if targets is not None and targets.ndim == 1 and np.issubdtype(targets.dtype, np.integer):
        arrays["targets"] = targets.astype(np.int64)
    write_atomically(directory / FILE, save({name: np.ascontiguousarray(each) for name, each in arrays.items()}))


def read_pruning(directory: Path) -> SavedPruning | None:
    """The record in the directory of a run, or None if the run did not prune."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = directory / FILE
    check_regular(path)
    if not path.exists():
        return None
    try:
        arrays = load_file(path)
        _check(arrays)
        return SavedPruning(record_of(arrays), arrays.get("targets"), arrays["shown"], arrays["inputs"])
    except (OSError, SafetensorError, KeyError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse what no run has written; ``ValueError`` says which array."""
    samples, shown, inputs = len(arrays["times_pruned"]), arrays["shown"], arrays["inputs"]
    indices = dict.fromkeys(("trend_samples", "shown"), samples)
    below = {"times_pruned": 1 << 16, "times_stood_out": 1 << 16, "passes": 1 << 31, "trend_epochs": 1 << 31, **indices}
    for name, most in below.items():
        each = arrays[name]
        if each.dtype.kind not in "iu" or each.ndim != (2 if name == "passes" else 1):
            raise ValueError(f"{name} is of {each.dtype} and shape {each.shape}")
        if each.size and not 0 <= int(each.min()) <= int(each.max()) < most:
            raise ValueError(f"{name} has numbers that are not from 0 to {most - 1}")
    passes, targets, losses = arrays["passes"], arrays.get("targets", shown), arrays["trend_losses"]
    if passes.shape[1] != 4 or (passes[:, 3] > passes[:, 2]).any():
        raise ValueError("passes do not keep some of the samples of a shard each")
    if targets.ndim != 1 or targets.dtype.kind not in "iu" or losses.ndim != 1 or losses.dtype.kind != "f":
        raise ValueError("targets and trend_losses are not a number for each sample and loss")
    if len(arrays["times_stood_out"]) != samples or len(shown) > SHOWN:
        raise ValueError(f"{samples} samples, {len(arrays['times_stood_out'])} that stood out, {len(shown)} shown")
    if inputs.dtype.kind not in "biuf" or (inputs.size and len(inputs) != len(shown)):
        raise ValueError(f"inputs of {inputs.dtype} and shape {inputs.shape} for {len(shown)} samples")


def most_pruned(record: PruningRecord, most: int) -> NDArray[np.int64]:
    """The samples that were pruned most often, in descending order, without those that never were."""
    order = np.argsort(-record.times_pruned.astype(np.int64), kind="stable")[:most]
    return order[record.times_pruned[order] > 0]


def _inputs(samples: "Samples", shown: NDArray[np.int64]) -> NDArray[Any]:
    """The inputs of some samples, where a batch is (inputs, targets) and the inputs are one tensor."""
    batch = samples.fetch(shown) if len(shown) else None
    inputs: Any = batch[0] if isinstance(batch, list | tuple) and len(batch) == 2 else None
    return inputs.cpu().numpy().copy() if hasattr(inputs, "numpy") else np.empty(0)
