"""What an ensemble adds to the loss of a member: Eqs. (9) and (10) of EC-DNN."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.data.partition import Indices

TINY = 1e-12  # keeps the gradient of a distance of 0 finite


@dataclass(frozen=True, slots=True)
class SoftLabels:
    """A distribution over the classes for some of the samples: ``rows[i]`` is the row of sample i, or -1."""

    rows: Indices
    labels: Tensor

    def of(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Which of the samples have labels (their places in ``indices``), and those."""
        rows = self.rows[indices]
        places = np.flatnonzero(rows >= 0)
        return torch.from_numpy(places), self.labels[torch.from_numpy(rows[places])]

    @property
    def samples(self) -> Indices:
        """Those that have labels, in the order of ``labels``."""
        having = np.flatnonzero(self.rows >= 0)
        return having[np.argsort(self.rows[having])]

    def __reduce__(self) -> tuple[Any, ...]:
        """Packed without a place for every sample that has none."""
        return soft_labels, (self.samples, self.labels, len(self.rows))


def soft_labels(samples: Indices, labels: Tensor, of: int) -> SoftLabels:
    """Labels for these samples out of so many."""
    rows = np.full(of, -1, dtype=np.int64)
    rows[samples] = np.arange(len(samples))
    return SoftLabels(rows, labels)


@dataclass(frozen=True, slots=True)
class Distillation:
    r"""$\beta$ times the cross entropy against the ensemble's outputs, Eq. (10).

    $$\beta\, L(f, \bar y) = -\beta \sum_c \bar y_c \log f_c,$$

    where $f$ are softmax outputs and $\bar y$ the pseudo labels. A sample without one adds nothing; the mean is over
    the whole mini-batch.
    """

    weight: float
    labels: SoftLabels

    def __call__(self, outputs: Tensor, indices: Indices) -> Tensor:
        places, labels = self.labels.of(indices)
        if not len(places):
            return outputs.new_zeros(())
        logarithms = torch.log_softmax(outputs[places.to(outputs.device)], dim=1)
        return -self.weight * (labels.to(outputs.device) * logarithms).sum() / len(indices)


@dataclass(frozen=True, slots=True)
class Diversity:
    r"""$\alpha$ times the negative distance to the mean of the compressed models' outputs, Eq. (9).

    $$\alpha L_{sim}(f, \bar z) = -\alpha \lVert f - \bar z \rVert_2 \quad\text{(or, squared, its square)}.$$
    """

    weight: float
    centres: SoftLabels
    squared: bool = False

    def __call__(self, outputs: Tensor, indices: Indices) -> Tensor:
        places, centres = self.centres.of(indices)
        if not len(places):
            return outputs.new_zeros(())
        apart = torch.softmax(outputs[places.to(outputs.device)], dim=1) - centres.to(outputs.device)
        squares = apart.square().sum(dim=1)
        distances = squares if self.squared else (squares + TINY).sqrt()
        return -self.weight * distances.sum() / len(indices)
