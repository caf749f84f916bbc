"""A number with its source: exact, measured, simulated, ..."""

from dataclasses import dataclass
from typing import Literal

Source = Literal["exact", "quadrature", "simulation", "theorem", "measured"]
# From the most to the least certain: a number computed from several has the weakest source.
SOURCES: tuple[Source, ...] = ("exact", "theorem", "quadrature", "measured", "simulation")


@dataclass(frozen=True)
class Estimate:
    """A value and its source.

    source  ``exact``: a closed form or a finite sum; ``quadrature``: a numerical integral with about this ``error``;
            ``simulation``: random, with the standard error ``error``; ``theorem``: a bound; ``measured``: from a trace
    """

    value: float
    source: Source
    error: float | None = None  # None: unknown, or zero


def weakest(*sources: Source) -> Source:
    """The source of a number that is computed from others."""
    return max(sources, key=SOURCES.index)
