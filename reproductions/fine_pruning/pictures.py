"""What the pictures of the reproduction need, as a row of its card: the most pruned samples, classes, loss trends."""

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.images import read_cifar10
from reproductions.fine_pruning.plan import FinePruningPlan
from reproductions.fine_pruning.training import chosen_samples
from reproductions.pipeline.runs import Result

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHOWN = 40
COLUMNS = 10
TRENDS = 4  # samples


def pictures_row(data: str, plan: FinePruningPlan, runs: Sequence[Result]) -> dict[str, Any]:
    """From the pruned runs of all seeds, which train on the same samples."""
    published = read_cifar10(data).train
    samples = chosen_samples(published.labels, plan.sizes["lenet"].samples)
    labels = published.labels[samples]
    times = np.sum([run["times_pruned"] for run in runs], axis=0)
    shown = np.argsort(-times, kind="stable")[:SHOWN]
    return {
        "kind": "pictures",
        "most_pruned": [
            {"sample": int(samples[each]), "label": NAMES[labels[each]], "times": int(times[each])} for each in shown
        ],
        "mosaic": b64encode(_mosaic(published.images[samples[shown]])).decode(),
        "possible": sum(len(plan.fine.plan(1, len(run["sizes"])).pruned_epochs) for run in runs),
        "samples_by_times": np.bincount(times).tolist(),
        "times_by_class": [float(f"{times[labels == label].mean():.4g}") for label in range(len(NAMES))],
        "agreement": _agreement([np.array(run["times_pruned"]) for run in runs]),
        "trends": _trends(samples, runs),
    }


def _mosaic(images: NDArray[np.uint8]) -> bytes:
    """Pictures side by side, ten in a row, as a PNG."""
    from PIL import Image

    rows = [np.concatenate(list(row.transpose(0, 2, 3, 1)), axis=1) for row in np.split(images, len(images) // COLUMNS)]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(rows)).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _agreement(times: Sequence[NDArray[Any]]) -> float | None:
    """The correlation between runs of how often a sample was left out, mean over pairs: is it the sample, or chance?"""
    pairs = [(one, two) for number, one in enumerate(times) for two in times[number + 1 :]]
    return float(np.mean([np.corrcoef(one, two)[0, 1] for one, two in pairs])) if pairs else None


def _trends(samples: NDArray[np.int64], runs: Sequence[Result]) -> list[dict[str, Any]]:
    """Losses of a few samples in two runs: those whose last losses differ most between them, and the most pruned."""
    losses = [np.array(run["trends"], dtype=np.float64) for run in runs[:2]]  # sample, epoch; NaN where left out
    last = [np.array([_last(row) for row in each]) for each in losses]
    pruned = np.sum([np.array(run["times_pruned"][: len(losses[0])]) for run in runs[:2]], axis=0)
    order = [*np.argsort(-np.abs(last[0] - last[-1]))[: TRENDS - 1], int(np.argmax(pruned))]
    return [
        {
            "sample": int(samples[each]),
            "losses": [[None if np.isnan(value) else float(value) for value in run[each]] for run in losses],
        }
        for each in dict.fromkeys(map(int, order))
    ]


def _last(row: NDArray[np.float64]) -> float:
    known = row[~np.isnan(row)]
    return float(known[-1]) if len(known) else 0.0
