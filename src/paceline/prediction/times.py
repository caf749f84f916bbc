r"""How long workers take, as advice needs it: from a recording, without its warm-up, tested for drift, drawn by blocks.

**Warm-up.** The first piece of each worker is left out, and what comes before the time that leaves the mean of the rest
most certain (MSER-5: means of five pieces $y_d, \dots, y_n$, the $d$ with the smallest
$\sum_{i \ge d} (y_i - \bar y)^2 / (n - d)^2$), of the worker that takes longest to settle, but at most a quarter of the
recording. White, *An effective truncation heuristic for bias reduction in simulation output*, 1997.

**Drift.** Kendall's rank correlation of a worker's durations with time, on means of blocks, at 1 % over all workers; it
is told if the last third also takes 10 % more or less than the first.

**Blocks.** A draw puts random stretches of the recording one after the other, as many as fill it. All workers have the
same stretches, so workers that were slow together stay so, and slowness lasts as long as it did, but for the ends of a
stretch. (The circular block bootstrap; Politis & Romano, 1992.) Workers go through their durations in that order. Under
a rule that lets a worker wait, it falls behind in them: what was at one time then is not quite so in the simulation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from scipy.stats import kendalltau

from paceline.core.errors import ConfigError
from paceline.delays import Delay, Empirical, PerSample
from paceline.fleets.simulated.fleet import Network, SimulatedFleet
from paceline.trace.durations import seconds_a_mini_batch
from paceline.trace.history import Observer, TicketTimes
from paceline.trace.reading import Trace

FEWEST = 12  # pieces of each worker after the warm-up
BLOCKS = 6, 30  # least and most, with about three pieces of the slowest worker in each
MOST_WARM_UP = 0.25
BATCH = 5  # pieces, of MSER-5
CERTAINTY = 0.01
GAP_TIMES, GAP_SHARE = 20, 0.25  # of what a worker takes as a rule, and of the recording: longer is a pause
CHANGE = 1.1


@dataclass
class Pieces:
    """The pieces of work of one worker, in order: when they began, what they took, and what of it was transfer."""

    began: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    transfer: list[float] = field(default_factory=list)
    cut: int = 0

    def since(self, time: float) -> "Pieces":
        """Those that began later, but not the first of all."""
        first = max(1, int(np.searchsorted(self.began, time)))
        return Pieces(self.began[first:], self.seconds[first:], self.transfer[-len(self.began[first:]) or None :])


class _Reader(Observer):
    """Collects the pieces of each worker."""

    def __init__(self, workers: int) -> None:
        self.by_worker = {worker: Pieces() for worker in range(workers)}
        self._computed: float | None = None

    def computed(self, times: TicketTimes, seconds: float) -> None:
        self._computed = seconds

    def arrived(self, times: TicketTimes) -> None:
        own, computed = self.by_worker.setdefault(times.ticket.worker, Pieces()), self._computed
        self._computed = None
        if (seconds := seconds_a_mini_batch(times)) is None:
            own.cut += 1
            return
        own.began.append(times.started)
        own.seconds.append(seconds)
        if computed is not None:
            own.transfer.append(max(0.0, times.ended - times.started - computed))

    def halted(self, times: TicketTimes) -> None:
        self.by_worker.setdefault(times.ticket.worker, Pieces()).cut += 1


@dataclass(frozen=True)
class Recorded:
    """The durations of a recorded run after its warm-up, which ended at ``begin``; ``notes`` say what is in doubt."""

    pieces: Mapping[int, Pieces]
    begin: float
    end: float
    latency: float
    batch_size: int | None
    prices: Sequence[float]
    notes: Sequence[str]

    @property
    def blocks(self) -> int:
        least, most = BLOCKS
        return max(least, min(most, min(len(own.seconds) for own in self.pieces.values()) // 3))

    @property
    def transfers(self) -> Mapping[int, float]:
        """What of a round trip is no computing, by worker: the median; nothing where that was not told."""
        return {worker: median(own.transfer) for worker, own in self.pieces.items() if own.transfer}

    def fleet(self) -> SimulatedFleet:
        """The workers as they were recorded, again and again in the same order."""
        return self._fleet({worker: own.seconds for worker, own in self.pieces.items()})

    def drawn(self, seed: int) -> SimulatedFleet:
        """The workers with stretches of the recording in a random order, the same ones for all."""
        generator, length = np.random.default_rng(seed), (self.end - self.begin) / self.blocks
        starts = self.begin + (self.end - self.begin) * generator.random(self.blocks)
        found: dict[int, list[float]] = {}
        for worker, own in self.pieces.items():
            taken = [place for start in starts for place in self._stretch(own.began, start, length)]
            found[worker] = [own.seconds[place] for place in taken] or own.seconds
        return self._fleet(found)

    def _stretch(self, began: Sequence[float], start: float, length: float) -> list[int]:
        """The places of what began in a stretch of time, which continues at the beginning beyond the end."""
        first, last = np.searchsorted(began, [start, start + length])
        over = start + length - self.end
        wrapped = int(np.searchsorted(began, self.begin + over)) if over > 0 else 0
        return [*range(int(first), int(last)), *range(wrapped)]

    def _fleet(self, seconds: Mapping[int, Sequence[float]]) -> SimulatedFleet:
        delays = [self._delay(worker, own) for worker, own in sorted(seconds.items())]
        prices = self.prices if len(self.prices) == len(delays) else ()
        return SimulatedFleet(delays, network=Network(latency=self.latency), prices=prices)

    def _delay(self, worker: int, seconds: Sequence[float]) -> Delay:
        """With a fixed part, the transfer, where it is known: a smaller mini-batch does not shorten it."""
        fixed = min(self.transfers.get(worker, 0.0), 0.95 * min(self.pieces[worker].seconds))
        if self.batch_size is None or not fixed:
            return Empirical(seconds, in_order=True)
        return PerSample(fixed, Empirical([(each - fixed) / self.batch_size for each in seconds], in_order=True))


def recorded_times(trace: Trace, batch_size: int | None = None) -> Recorded:
    """What a trace tells of its workers' durations; raises ``ConfigError`` if that is not enough to advise."""
    about = trace.about
    reader = _Reader(int(about.get("workers", 0)))
    history = trace.follow(reader)
    if len(reader.by_worker) < 2:
        raise ConfigError("the recording is of one worker, who waits for nobody: there is nothing to advise")
    if about.get("clocks"):
        raise ConfigError(f"the recording cannot be trusted: {about['clocks']}")
    begin = _warm_up_end(reader.by_worker, history.now)
    after = {worker: own.since(begin) for worker, own in sorted(reader.by_worker.items())}
    _check_long_enough(after, reader.by_worker, history.now)
    _check_gaps(after, history.now - begin)
    notes = [*map(str, about.get("notes", ())), *_notes(reader.by_worker, after, begin)]
    return Recorded(
        after, begin, history.now, float(about.get("transfer_seconds", 0.0)), batch_size, about.get("prices", ()), notes
    )


def _warm_up_end(pieces: Mapping[int, Pieces], end: float) -> float:
    latest = 0.0
    for own in pieces.values():
        batches = [fmean(own.seconds[place : place + BATCH]) for place in range(0, len(own.seconds) - BATCH + 1, BATCH)]
        if len(batches) < 4:
            continue
        scores = [float(np.var(batches[cut:])) / (len(batches) - cut) for cut in range(len(batches) // 2)]
        latest = max(latest, own.began[BATCH * int(np.argmin(scores))])
    return min(latest, MOST_WARM_UP * end)


def _check_long_enough(after: Mapping[int, Pieces], whole: Mapping[int, Pieces], end: float) -> None:
    worker = min(after, key=lambda worker: len(after[worker].seconds))
    count = len(after[worker].seconds)
    if count >= FEWEST:
        return
    if not whole[worker].seconds:
        raise ConfigError(
            f"the recording is too short to tell: worker {worker} finished nothing in {end:.3g} s; record at least "
            f"{2 * FEWEST} mini-batches of each worker"
        )
    each = fmean(whole[worker].seconds)
    more = max((FEWEST - count) * each, (FEWEST - count) * end / max(1, len(whole[worker].seconds)))
    raise ConfigError(
        f"the recording is too short to tell: worker {worker} has {count} mini-batches after the warm-up, and {FEWEST} "
        f"are needed; record about {1.5 * more:.2g} s more"
    )


def _check_gaps(after: Mapping[int, Pieces], seconds: float) -> None:
    """A pause of the job is no slowness of a worker."""
    for worker, own in after.items():
        longest, usual = max(own.seconds), median(own.seconds)
        if longest > GAP_TIMES * usual and longest > GAP_SHARE * seconds:
            at = own.began[own.seconds.index(longest)]
            raise ConfigError(
                f"the recording has a gap: at {at:.3g} s worker {worker} took {longest:.3g} s for a mini-batch, "
                f"{longest / usual:.0f} times as long as usual; record again without a pause"
            )


def _notes(whole: Mapping[int, Pieces], after: Mapping[int, Pieces], begin: float) -> list[str]:
    notes = [f"Warm-up: the first {begin:.3g} s and the first piece of each worker are left out."]
    drifting = [text for worker, own in after.items() if (text := _drift(worker, own, len(after)))]
    notes += drifting or ["No worker's speed drifts in the rest (Kendall's test at 1 %)."]
    cut = {worker: own.cut for worker, own in whole.items() if own.cut}
    if cut:
        notes.append(
            f"Work was stopped or cut short ({', '.join(f'worker {who}: {count}' for who, count in cut.items())}): "
            "what it would have taken is not known, and these workers may be slower than they seem."
        )
    return notes


def _drift(worker: int, own: Pieces, workers: int) -> str | None:
    means = [float(each.mean()) for each in np.array_split(np.array(own.seconds), min(20, len(own.seconds)))]
    with np.errstate(all="ignore"):
        certainty = float(kendalltau(range(len(means)), means).pvalue)
    third = len(own.seconds) // 3
    change = median(own.seconds[-third:]) / median(own.seconds[:third])
    if math.isnan(certainty) or certainty * workers >= CERTAINTY or 1 / CHANGE < change < CHANGE:
        return None
    return (
        f"Worker {worker} drifts: its last third takes {change:.2f} times as long as its first. The advice is for the "
        "mean of the recording, not for what comes."
    )
