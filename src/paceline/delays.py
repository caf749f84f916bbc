"""How long a worker takes for one mini-batch: the distributions that the simulator draws from, and slow times."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, check_fields, check_most, shown
from paceline.trace.reading import Trace, read_trace

__all__ = [
    "Constant", "Delay", "Distribution", "Empirical", "Hourly", "LogNormal", "Pareto", "PerSample",
    "ShiftedExponential", "SlowSpells",
]  # fmt: skip

DRAWN_AT_ONCE = 64
MOST_HELD = 10**9  # pieces of work that have one duration
MOST_TOGETHER = 10**6  # measured durations that are drawn together
LEAST_SHAPE = 0.025  # half of the durations are over 2**40 minima
MOST_SLOWER = 1e6  # times as long, in a slow time
MOST_SIGMA = 10.0  # one duration in six is over 22,000 medians, and one in 44 over 500 million

Floats = NDArray[np.float64]


class Delay(Protocol):
    """A distribution of durations in seconds (or any unit of time), all of them positive."""

    @property
    def median(self) -> float:
        """The typical duration, by which workers of like speed are grouped."""
        ...

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        """An endless sequence of durations, one for each piece of work.

        It depends on nothing but the generator: a run that is resumed draws it again from the start.
        """
        ...


@runtime_checkable
class Distribution(Delay, Protocol):
    """A delay of which theory can say something without drawing from it. All delays here are."""

    @property
    def mean_seconds(self) -> float:
        """The mean duration; infinite for the heaviest tails."""
        ...

    def cdf(self, seconds: Floats) -> Floats:
        """The probability that a piece of work takes at most so long."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always ``value``."""

    value: float

    def __post_init__(self) -> None:
        check_fields(self)
        _check_positive(self, value=self.value)

    @property
    def median(self) -> float:
        return self.value

    @property
    def mean_seconds(self) -> float:
        return self.value

    def cdf(self, seconds: Floats) -> Floats:
        return np.where(seconds >= self.value, 1.0, 0.0)

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        return repeat(float(self.value))


@dataclass(frozen=True)
class ShiftedExponential:
    r"""$X = \text{shift} + \mathrm{Exp}(\text{mean})$, drawn anew every ``h`` pieces of work and held between.

    ``mean`` is the mean of the exponential part, not its rate. Xu, *Live Gradient Compensation*, Sec. III-B.
    """

    shift: float
    mean: float
    h: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.shift <= MOST_SECONDS:
            raise ConfigError(f"{self}: shift must be a number of at least 0, and at most {MOST_SECONDS:g}")
        _check_positive(self, mean=self.mean)
        if self.h < 1:
            raise ConfigError(f"{self}: the holding period h must be at least 1")
        check_most(self, MOST_HELD, "h")

    @property
    def median(self) -> float:
        return self.shift + self.mean * math.log(2)

    @property
    def mean_seconds(self) -> float:
        return self.shift + self.mean

    def cdf(self, seconds: Floats) -> Floats:
        return -np.expm1(-np.maximum(seconds - self.shift, 0.0) / self.mean)

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        shift, mean, h = self.shift, self.mean, self.h
        while True:
            drawn: list[float] = (shift + mean * generator.standard_exponential(DRAWN_AT_ONCE)).tolist()
            yield from chain.from_iterable(repeat(each, h) for each in drawn) if h > 1 else drawn


@dataclass(frozen=True)
class LogNormal:
    r"""$X = \text{median} \cdot e^{\sigma Z}$ with a standard normal $Z$."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        check_fields(self)
        check_most(self, MOST_SIGMA, "sigma")
        _check_positive(self, median=self.median, sigma=self.sigma)

    @property
    def mean_seconds(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def cdf(self, seconds: Floats) -> Floats:
        from scipy.special import ndtr

        with np.errstate(divide="ignore"):
            values: Floats = ndtr(np.log(np.maximum(seconds, 0.0) / self.median) / self.sigma)
        return values

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        while True:
            yield from (self.median * np.exp(self.sigma * generator.standard_normal(DRAWN_AT_ONCE))).tolist()


@dataclass(frozen=True)
class Pareto:
    r"""$P(X > x) = (\text{minimum}/x)^{\text{shape}}$ for $x \ge$ ``minimum``: rare but very long stalls."""

    minimum: float
    shape: float

    def __post_init__(self) -> None:
        check_fields(self)
        _check_positive(self, minimum=self.minimum, shape=self.shape)
        if self.shape < LEAST_SHAPE:
            half = f"half of the durations would be over 2**{1 / self.shape:.3g} times the minimum"
            raise ConfigError(f"{self}: {half}; shape is at least {LEAST_SHAPE}")

    @property
    def median(self) -> float:
        return float(self.minimum * 2 ** (1 / self.shape))

    @property
    def mean_seconds(self) -> float:
        return self.minimum * self.shape / (self.shape - 1) if self.shape > 1 else math.inf

    def cdf(self, seconds: Floats) -> Floats:
        return -np.expm1(-self.shape * np.log(np.maximum(seconds / self.minimum, 1.0)))

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        while True:
            yield from (self.minimum * np.exp(generator.standard_exponential(DRAWN_AT_ONCE) / self.shape)).tolist()


@dataclass(frozen=True)
class Empirical:
    """Measured durations: drawn at random with replacement, or gone through ``in_order`` again and again.

    With a ``block`` of more than one, so many durations that followed each other are drawn together, from a random
    place on and beyond the last to the first: slowness lasts as long as it did, but for the ends of blocks. (The
    circular block bootstrap; Politis & Romano, 1992.)
    """

    values: Sequence[float]
    in_order: bool = False
    block: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block < 1 or (self.block > 1 and self.in_order):
            why = "at least 1" if self.block < 1 else "in_order goes through all of them: leave one of the two out"
            raise ConfigError(f"Empirical cannot have block={self.block}: {why}")
        check_most(self, MOST_TOGETHER, "block")
        try:
            object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"Empirical cannot have values={shown(self.values)}: give a list of seconds") from None
        if not self.values:
            raise ConfigError("Empirical needs at least one measured duration, and got none")
        for value in self.values:
            if not 0 < value <= MOST_SECONDS:
                raise ConfigError(f"Empirical cannot have a duration of {value}: more than 0, at most {MOST_SECONDS:g}")

    @classmethod
    def from_trace(
        cls, trace: Trace | Path | str, worker: int | None = None, in_order: bool = False, block: int = 1
    ) -> "Empirical":
        """What a mini-batch took in a recorded run, whatever the kind of work was: of one worker, or of all.

        Messages and labels by other workers' models are left out. Of work that a recall ended early, the time of the
        blocks that were done is scaled up.
        """
        recorded = trace if isinstance(trace, Trace) else read_trace(trace)
        values = [seconds for who, seconds in recorded.durations() if worker is None or who == worker]
        if not values:
            raise ConfigError(
                f"the trace has no finished work of {'any worker' if worker is None else f'worker {worker}'}"
            )
        return cls(values, in_order, block)

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def mean_seconds(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def cdf(self, seconds: Floats) -> Floats:
        return np.searchsorted(np.sort(self.values), seconds, side="right") / len(self.values)

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        return cycle(self.values) if self.in_order else self._drawn(generator)

    def _drawn(self, generator: np.random.Generator) -> Iterator[float]:
        values: Floats = np.asarray(self.values)
        while self.block > 1:
            yield from values.take(int(generator.integers(len(values))) + np.arange(self.block), mode="wrap").tolist()
        while True:
            yield from values[generator.integers(len(values), size=DRAWN_AT_ONCE)].tolist()


@dataclass(frozen=True)
class PerSample:
    r"""$X = \text{fixed} + b\,\text{each}$ for a mini-batch of $b$ samples.

    ``each`` is a distribution of the seconds of one sample, drawn once for each mini-batch, and ``fixed`` what a
    mini-batch takes besides. How many samples there are is known where it is drawn: it needs a ``batch_size``. Without
    it a delay is that of a mini-batch of the mean size, and in proportion to the samples of others.
    """

    fixed: float
    each: Delay

    def __post_init__(self) -> None:
        number = isinstance(self.fixed, int | float) and not isinstance(self.fixed, bool)
        if not number or not 0 <= self.fixed <= MOST_SECONDS:
            raise ConfigError(f"PerSample cannot have fixed={shown(self.fixed)}: seconds, from 0 to {MOST_SECONDS:g}")
        check_delay(self.each)
        if isinstance(self.each, PerSample | Stretched):
            raise ConfigError("PerSample cannot have another PerSample inside: give the seconds of a sample")

    @property
    def median(self) -> float:
        """That of one sample, without the fixed part."""
        return self.each.median

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        return self.each.durations(generator)


@dataclass(frozen=True)
class Stretched:
    """A delay times a ``factor``, and ``fixed`` seconds more: that of a mini-batch of a certain size."""

    delay: Delay
    factor: float
    fixed: float = 0.0

    @property
    def median(self) -> float:
        return self.fixed + self.factor * self.delay.median

    @property
    def mean_seconds(self) -> float:
        mean: float = self.delay.mean_seconds  # type: ignore[attr-defined]
        return self.fixed + self.factor * mean

    def cdf(self, seconds: Floats) -> Floats:
        found: Floats = self.delay.cdf((seconds - self.fixed) / self.factor)  # type: ignore[attr-defined]
        return found

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        return (self.fixed + self.factor * seconds for seconds in self.delay.durations(generator))


@dataclass(frozen=True)
class SlowSpells:
    r"""From time to time the workers of a machine, or all workers, take ``factor`` times as long, together.

    A spell lasts ``lasts`` seconds in the mean, and begins ``every`` seconds in the mean after the last one ended, both
    exponential. Machines have spells of their own (``together="machine"``; by ``Machines``, else each worker is one),
    or all have the same (``"fleet"``). Work has the factor of the moment in which it begins.
    """

    factor: float
    lasts: float
    every: float
    together: Literal["machine", "fleet"] = "machine"

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("factor", "lasts", "every"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"SlowSpells cannot have {name}={getattr(self, name):g}: more than 0")
        check_most(self, MOST_SLOWER, "factor")
        check_most(self, MOST_SECONDS, "lasts", "every")
        if self.together not in ("machine", "fleet"):
            raise ConfigError(f"together={self.together!r} is unknown: choose machine or fleet")


@dataclass(frozen=True)
class Hourly:
    """All workers take ``factors[k]`` times as long in the k-th hour of the run, and so on from the start again.

    ``hour`` is how many seconds one of these hours has. Work has the factor of the moment in which it begins.
    """

    factors: Sequence[float]
    hour: float = 3600.0

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            object.__setattr__(self, "factors", tuple(float(factor) for factor in self.factors))
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"Hourly cannot have factors={shown(self.factors)}: give a list of numbers") from None
        if not self.factors or not all(0 < factor <= MOST_SLOWER for factor in self.factors):
            raise ConfigError(f"Hourly cannot have factors={shown(self.factors)}: each over 0, at most {MOST_SLOWER:g}")
        if not 0 < self.hour <= MOST_SECONDS:
            raise ConfigError(f"Hourly cannot have hour={self.hour:g}: seconds, more than 0, at most {MOST_SECONDS:g}")

    def factor(self, seconds: float) -> float:
        return self.factors[int(seconds // self.hour) % len(self.factors)]


def parts_of(delay: Delay, samples: float, reference: float) -> tuple[float, float]:
    """The fixed part of a mini-batch of so many samples, and the factor of what is drawn from a delay.

    A delay that says nothing of samples is that of a mini-batch of ``reference`` samples.
    """
    return (delay.fixed, samples) if isinstance(delay, PerSample) else (0.0, samples / reference)


def of_size(delay: Delay, drawn: float, samples: float, reference: float) -> float:
    """What a mini-batch of so many samples takes, where this was drawn from a delay."""
    fixed, factor = parts_of(delay, samples, reference)
    return drawn if factor == 1.0 and not fixed else fixed + factor * drawn


def sized(delay: Delay, samples: float, reference: float) -> Delay:
    """The delay of a mini-batch of so many samples: of the same family, where it is one."""
    fixed, factor = parts_of(delay, samples, reference)
    drawn = delay.each if isinstance(delay, PerSample) else delay
    if (fixed, factor) == (0.0, 1.0):
        return drawn
    if isinstance(drawn, Constant):
        return Constant(fixed + factor * drawn.value)
    if isinstance(drawn, ShiftedExponential):
        return ShiftedExponential(fixed + factor * drawn.shift, factor * drawn.mean, drawn.h)
    if isinstance(drawn, Empirical):
        return Empirical([fixed + factor * value for value in drawn.values], drawn.in_order, drawn.block)
    if isinstance(drawn, LogNormal) and not fixed:
        return LogNormal(factor * drawn.median, drawn.sigma)
    if isinstance(drawn, Pareto) and not fixed:
        return Pareto(factor * drawn.minimum, drawn.shape)
    return Stretched(drawn, factor, fixed)


def check_delay(delay: object) -> None:
    """Raise ``ConfigError`` for what tells no durations."""
    if isinstance(delay, type) or not callable(getattr(delay, "durations", None)):
        number = isinstance(delay, int | float) and not isinstance(delay, bool)
        instead = f"Constant({delay})" if number else "a Delay, such as Constant(1.0) or LogNormal(1.0, 0.2)"
        raise ConfigError(f"{shown(delay)} is no distribution of durations: give {instead}")


def _check_positive(delay: object, **parameters: float) -> None:
    for name, value in parameters.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{delay}: {name} must be positive and finite, not {value}")
    check_most(delay, MOST_SECONDS, *parameters)
