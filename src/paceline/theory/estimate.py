"""A number together with where it comes from."""

from dataclasses import dataclass
from typing import Literal

Source = Literal["exact", "quadrature", "simulation", "theorem", "measured"]
# From the surest to the least sure: a number made of several has the source of the weakest.
SOURCES: tuple[Source, ...] = ("exact", "theorem", "quadrature", "measured", "simulation")


@dataclass(frozen=True)
class Estimate:
    """A value and its source.

    source  ``exact``: a closed form or a finite sum; ``quadrature``: an integral, to about ``error``; ``simulation``:
            drawn, with the standard error ``error``; ``theorem``: a bound; ``measured``: read off a recorded run
    """

    value: float
    source: Source
    error: float | None = None  # None: not told, or none


def weakest(*sources: Source) -> Source:
    """The source of a number that is made of others."""
    return max(sources, key=SOURCES.index)
