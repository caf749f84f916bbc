"""Messages in pieces that are small enough to travel with a call.

Ray sends what is smaller than 100 KiB with the call or with its answer. Anything larger goes through the object stores
of both nodes, which takes several times as long for a message of some hundred kilobytes; but there a node gets it once
for all of its workers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PIECE = 96_000  # bytes
WITH_THE_CALL = 12 * PIECE  # a larger message goes through the object store, in one piece


def pieces_of(size: int) -> int:
    """In how many pieces so many bytes travel."""
    return max(1, -(-size // PIECE)) if size <= WITH_THE_CALL else 1


def cut(message: Bytes, pieces: int) -> list[Bytes]:
    return np.array_split(message, pieces) if pieces > 1 else [message]


def joined(pieces: Sequence[Bytes]) -> Bytes:
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
