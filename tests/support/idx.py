"""The idx format, in which MNIST was published."""

import struct

import numpy as np
from numpy.typing import NDArray


def idx(array: NDArray[np.uint8]) -> bytes:
    """An array of bytes as the content of a file."""
    return struct.pack(f">I{array.ndim}I", 0x800 | array.ndim, *array.shape) + array.tobytes()
