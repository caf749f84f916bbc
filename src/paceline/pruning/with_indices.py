"""A data set that hands out the index of each item with it, so that losses can be told whose they are."""

from typing import Any

from torch.utils.data import Dataset

from paceline.core.errors import ConfigError
from paceline.data.samples import MapDataset


class WithIndices(Dataset[tuple[int, Any]]):
    """Items of a map-style data set as ``(index, item)``; whatever the items are, a batch is ``(indices, batch)``.

        loader = DataLoader(WithIndices(dataset), batch_size=128, sampler=sampler)
        for indices, (inputs, targets) in loader: ...

    A data set that changes its length is refused: indices would no longer mean the same samples.
    """

    def __init__(self, dataset: MapDataset) -> None:
        self.dataset = dataset
        self._length = len(dataset)

    def __len__(self) -> int:
        self._check_length()
        return self._length

    def __getitem__(self, index: int) -> tuple[int, Any]:
        self._check_length()
        return index, self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Any]]:
        """A whole batch at once, as torch's loaders ask for it, and as the data set itself may offer it."""
        self._check_length()
        together = getattr(self.dataset, "__getitems__", None)
        items = together(indices) if together is not None else [self.dataset[index] for index in indices]
        return list(zip(indices, items, strict=True))

    def _check_length(self) -> None:
        if (length := len(self.dataset)) != self._length:
            raise ConfigError(
                f"the data set has {length:,} samples, and had {self._length:,}: what was observed no longer fits; "
                "make a new WithIndices and a new sampler"
            )
