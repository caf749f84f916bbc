"""An iterator over indices that knows how many are left."""

from collections.abc import Mapping
from itertools import compress, islice, repeat
from operator import length_hint

import numpy as np
from numpy.typing import NDArray


class Rest(compress):  # type: ignore[type-arg]  # compress takes no argument when it runs
    """Goes through indices, without making a list of them.

    It has a state for loaders that keep those of iterators (torchdata's ``StatefulDataLoader``): they take it when an
    index is handed to a worker process, long before its loss is observed. A subclass of ``compress``, because an
    iterator written in Python would cost more time than all the rest.
    """

    _all_true: "repeat[bool]"

    def __new__(cls, indices: NDArray[np.int32]) -> "Rest":
        all_true = repeat(True, len(indices))
        self = super().__new__(cls, memoryview(np.ascontiguousarray(indices).data), all_true)
        self._all_true = all_true
        return self

    def state_dict(self) -> dict[str, int]:
        return {"left": length_hint(self._all_true)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where the state was taken: leave out what was handed out then."""
        beyond = length_hint(self._all_true) - state["left"]
        next(islice(self, beyond, beyond), None)
