"""How far the clocks of machines are apart, from what happened on all of them at about the same time.

Nobody leaves an all-reduce before everybody has entered it, and everybody leaves it at about the same time: after the
last one has come, as long as the exchange itself takes. So the median difference between two workers' readings at the
ends of the same exchanges is the difference of their clocks, up to the time of an exchange. A straight line through the
differences allows for a clock that is faster than another. Processes on one machine share a clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

MOST_POINTS = 64  # of the line through the differences
MOST_DRIFT = 0.01  # seconds a second
FEW = 3  # exchanges: fewer tell nothing about an uncertainty


@dataclass(frozen=True)
class ClockMarks:
    """When the same things happened by one worker's clock, in seconds since ``opened`` on it, which was ``wall``.

    clock     workers with the same one share a clock
    wall      seconds since 1970 when the recording was opened
    marks     the end of each exchange, or of each step where exchanges are not known
    exchange  seconds that an exchange takes at least, which is how far apart its ends may be
    exact     the marks are ends of exchanges
    """

    worker: int
    host: str
    clock: str
    opened: float
    wall: float
    marks: Sequence[float]
    exchange: float
    exact: bool


@dataclass(frozen=True)
class Offset:
    """A clock is ``seconds`` ahead of another one, give or take the uncertainty, and gains ``drift`` each second."""

    seconds: float
    uncertainty: float
    drift: float


def offset_of(one: ClockMarks, reference: ClockMarks) -> Offset:
    """How far the clock of one machine is ahead of that of another, at the first mark."""
    count = min(len(one.marks), len(reference.marks))
    at = reference.marks[:count]
    apart = [one.wall + mine - reference.wall - theirs for mine, theirs in zip(one.marks, at, strict=False)]
    size = -(-count // MOST_POINTS)
    blocks = [slice(begin, begin + size) for begin in range(0, count, size)]
    points = [(median(at[block]), median(apart[block])) for block in blocks]
    slopes = [(b - a) / (t - s) for place, (s, a) in enumerate(points) for t, b in points[place + 1 :] if t > s]
    drift = median(slopes) if len(points) >= FEW else 0.0
    level = [value - drift * (when - at[0]) for when, value in zip(at, apart, strict=True)]
    seconds = median(level)
    spread = median(abs(value - seconds) for value in level)
    return Offset(seconds, spread + max(one.exchange, reference.exchange), drift)


def clock_notes(workers: Sequence[ClockMarks]) -> Iterator[str]:
    """Which workers share a clock, and how far the other clocks are apart, in words."""
    reference = workers[0]
    groups: dict[str, list[ClockMarks]] = {}
    for one in workers:
        groups.setdefault(one.clock, []).append(one)
    for others in list(groups.values())[1:]:
        one = others[0]
        found = offset_of(one, reference)
        length = reference.marks[-1] - reference.marks[0]
        gains = f", and gains {found.drift * 1e6:.3g} microseconds a second" if (
            abs(found.drift) * length > found.uncertainty
        ) else ""  # fmt: skip
        numbers = ", ".join(str(each.worker) for each in others)
        what = "exchanges" if one.exact and reference.exact else "steps, which may end at different times"
        yield (
            f"The clock of {one.host} (worker {numbers}) is {_milliseconds(found.seconds)} of that of {reference.host} "
            f"(worker {reference.worker}), give or take {found.uncertainty * 1e3:.3g} ms{gains}: from the ends of "
            f"{len(one.marks)} {what}. Durations do not depend on it."
        )
    for group in groups.values():
        yield from _out_of_step(group)


def disagreement(workers: Sequence[ClockMarks]) -> str:
    """Why times of different workers cannot be compared, in words: a clock that runs too fast, or other steps."""
    reference = workers[0]
    for one in workers[1:]:
        if one.clock != reference.clock and len(one.marks) >= FEW:
            drift = offset_of(one, reference).drift
            if abs(drift) > MOST_DRIFT:
                return (
                    f"the clock of {one.host} (worker {one.worker}) gains {drift:.1%} on that of {reference.host}, so "
                    "that seconds of one are not those of the other; set the clocks, and record again"
                )
    groups: dict[str, list[ClockMarks]] = {}
    for one in workers:
        groups.setdefault(one.clock, []).append(one)
    return next((note for group in groups.values() for note in _out_of_step(group)), "")


def _milliseconds(seconds: float) -> str:
    return f"{abs(seconds) * 1e3:.4g} ms {'ahead' if seconds >= 0 else 'behind'}"


def _out_of_step(group: Sequence[ClockMarks]) -> Iterator[str]:
    """Workers on one clock whose steps of the same number do not end at about the same time."""
    first = group[0]
    if len(first.marks) < FEW:
        return
    step = median(b - a for a, b in zip(first.marks, first.marks[1:], strict=False))
    for one in group[1:]:
        pairs = zip(one.marks, first.marks, strict=False)
        late = median(one.opened + mine - first.opened - theirs for mine, theirs in pairs)
        if abs(late) > step / 2:
            yield (
                f"Steps of worker {one.worker} end {abs(late):.3g} s {'after' if late > 0 else 'before'} those of "
                f"worker {first.worker} with the same number: they began to record at different steps, or do not wait "
                "for each other."
            )
