"""Integrals of functions that take many points at once: one call of the function for all pieces of a refinement."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
AT_ONCE = 1 << 16  # values of the function kept at a time, more or less
MOST_PIECES = 4096  # where rounding keeps the halves from agreeing, refining would never end


def integrate(function: Callable[[Floats], Floats], edges: Sequence[float], relative: float) -> tuple[Floats, float]:
    """The integral from the first edge to the last, and about how wrong it is: of the largest value, ``relative``.

    function  from points to an array (points, values); smooth between the edges
    edges     in increasing order. Pieces between them are halved until the halves agree with the whole.
    """
    lows, highs = np.asarray(edges[:-1], dtype=np.float64), np.asarray(edges[1:], dtype=np.float64)
    wholes = _gauss(function, lows, highs)
    total, error = np.zeros(wholes.shape[1]), 0.0
    while True:
        middles = (lows + highs) / 2
        halves = _gauss(function, np.concatenate([lows, middles]), np.concatenate([middles, highs]))
        left, right = halves[: len(lows)], halves[len(lows) :]
        better = left + right
        errors = np.abs(better - wholes).max(axis=1)
        scale = np.abs(total + better.sum(axis=0)).max()
        agreed = (errors <= relative * scale / max(16, len(lows))) | (len(lows) > MOST_PIECES + len(edges))
        total += better[agreed].sum(axis=0)
        error += float(errors[agreed].sum())
        rest = ~agreed
        if not rest.any():
            return total, error
        lows, highs = np.concatenate([lows[rest], middles[rest]]), np.concatenate([middles[rest], highs[rest]])
        wholes = np.concatenate([left[rest], right[rest]])


def _gauss(function: Callable[[Floats], Floats], lows: Floats, highs: Floats) -> Floats:
    """The rule of Gauss and Legendre on each piece."""
    found = []
    values_of_a_point = 1
    begin = 0
    while begin < len(lows):
        pieces = slice(begin, begin + max(1, AT_ONCE // (len(NODES) * values_of_a_point)))
        half = (highs[pieces] - lows[pieces]) / 2
        points = (lows[pieces] + half)[:, None] + half[:, None] * NODES
        values = function(points.ravel()).reshape(*points.shape, -1)
        found.append(half[:, None] * np.einsum("n,pnv->pv", WEIGHTS, values))
        values_of_a_point = values.shape[2]
        begin = pieces.stop
    return np.concatenate(found)
