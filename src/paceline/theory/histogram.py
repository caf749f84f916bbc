"""How often each delay is: what the functions of this package take as ``delays``."""

import math
import operator
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError

Delays = int | Mapping[int, float]


def probabilities(delays: Delays) -> NDArray[np.float64]:
    """The probability of each delay 0, 1, ..., up to the largest that occurs.

    ``delays`` is one whole number of updates, or a mapping from delays to probabilities that add up to 1.
    """
    if not isinstance(delays, Mapping):
        delays = {_whole(delays): 1.0}
    elif not delays:
        raise ConfigError("the histogram of delays is empty: give at least one delay, such as {0: 1.0}")
    for delay, share in delays.items():
        if _whole(delay) < 0:
            raise ConfigError(f"a delay of {delay} updates is not possible: at least 0")
        if not 0 <= share <= 1 + 1e-9:
            raise ConfigError(f"the delay {delay} cannot have a probability of {share}: from 0 to 1")
    total = math.fsum(delays.values())
    if abs(total - 1) > 1e-9:
        raise ConfigError(f"the probabilities of the delays add up to {total:.9g}, not to 1: divide each by their sum")
    shares = np.zeros(1 + max(delay for delay, share in delays.items() if share > 0))
    for delay, share in delays.items():
        if share > 0:
            shares[delay] = share
    return shares


def check_momentum(momentum: float) -> None:
    """Momentum as torch's SGD has it, below 1."""
    if not 0 <= momentum < 1:
        raise ConfigError(f"a momentum of {momentum} is not possible: at least 0 and below 1")


def _whole(delay: object) -> int:
    try:
        return operator.index(delay)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"a delay of {delay!r} is not a whole number of updates: for one between 1 and 2 give {{1: 0.5, 2: 0.5}}"
        ) from None
