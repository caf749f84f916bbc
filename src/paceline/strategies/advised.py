"""A rule that measures its workers, chooses whom to wait for and who computes how much, and chooses anew."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import ClassVar, NamedTuple

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Remember, Resize, Within
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.regrouped import EVERYBODY
from paceline.strategies.unequal_batches import check_total_fits, dealt_anew, fixed_part, sizes_by_speed

QUORUM = "quorum"  # of the present choice; 0 or none: everybody
SINCE = "since"  # the round in which it was chosen
BEGAN = "began"  # when the rounds began that are being judged
JUDGED = "judged"  # the round in which they began
LEAST, MOST = "least", "most"  # seconds that one of them may take
SPREAD = "spread"  # of the seconds of single rounds, as expected: their standard deviation
LOOK = "look"  # the round in which to look again
WAIT = "wait"  # windows before the next choice
CHOSEN = "chosen"  # whether a choice was made since the workers changed or were looked at again

ALL = 10**9  # as a quorum: everybody
QUORUMS = (7 / 8, 3 / 4, 5 / 8, 1 / 2)  # of the workers, besides all but one
CERTAIN = 2.0  # standard errors that a gain has to be worth
STEADY = 4  # windows: a choice that was wrong before they were over doubles the wait for the next one
LONGEST = 16  # windows that are waited
UNUSUAL = 3.0  # standard errors by which rounds may differ from what was expected


class Choice(NamedTuple):
    """How many are waited for, who computes how much, and the seconds for a whole batch in each round so far."""

    quorum: int
    sizes: Mapping[int, int]
    name: str
    rounds: Sequence[float]

    @property
    def seconds(self) -> float:
        return fmean(self.rounds)


@dataclass(frozen=True)
class Advised(Strategy):
    r"""Measure the workers for ``window`` rounds, then choose whom to wait for and who computes how much; go on so.

    Every choice makes the same update, the mean over ``total`` ($B$) samples at the newest weights,

    $$w_{t+1} = w_t - \eta \sum_{i \in S_t} \frac{b_i}{\sum_{j \in S_t} b_j}\, g(w_t; \xi_{t,i}), \qquad
    \mathrm{E} \sum_{i \in S_t} b_i \approx B,$$

    so one learning rate is right for all of them, nothing is ever stale, and only the seconds for $B$ samples differ.
    Chosen are $K = |S_t|$, the first workers to hand in, and the sizes $b_i$:

    * everybody, with equal sizes: ``Synchronous``;
    * everybody, with sizes by measured speed: ``UnequalBatches``;
    * the first $K < P$, with equal sizes of $B/K$: ``FastestK``, for slowness that comes and goes. $K$ is all but one,
      or 7/8, 3/4, 5/8 or half of the $P$ workers. Not with ``drop_late=False``.

    At first all wait for everybody, with equal sizes. From the last ``window`` rounds follow the seconds $T_j$ that
    each choice would have taken for round $j$: a worker that took $d_{ij}$ for $b_i$ samples takes
    $a_i + (d_{ij} - a_i)\, b'_i / b_i$ for $b'_i$, with a fixed part $a_i$ as in ``UnequalBatches``, and $T_j$ is the
    $K$-th smallest. Of the choices within the factor $1 + \mu$ (``margin``) of the shortest mean the first in the list
    is the best. It is taken if its mean is shorter than that of the present one by this factor, and by twice the
    standard error of the difference, round by round.

    **Anew.** While all are waited for, this is asked again three times in a window. While late workers are stopped,
    what they would have taken is not seen: the rule then waits for everybody for a window when half a window of rounds
    took longer or shorter than before, by the margin and three standard errors; when they took longer than before the
    choice; and every so many rounds that looking costs at most the share ``cost`` of the time. Workers that join or
    leave are looked at too. Sizes with which half a window of rounds took longer than with equal ones are taken back. A
    choice that was wrong before four windows were over doubles the wait for the next one, up to 16 windows. The
    ``Resize`` in the trace says why.

    **Wins** where speeds are not known beforehand, or change. **Loses** against the best rule what looking costs,
    against ``Synchronous`` where speeds change faster than in a few windows, and against stale rules where much noise
    forgives staleness: those need a learning rate of their own.

    **Memory**: one gradient a worker.

    The criterion is Paceline's own; its parts are those of ``UnequalBatches`` and ``FastestK``.
    """

    total: int = field(kw_only=True)
    window: int = 9
    margin: float = 0.1
    cost: float = 0.05
    drop_late: bool = True
    deals_sizes: ClassVar[str] = "it deals sizes among all workers"
    rounds_of_its_own: ClassVar[str] = "it chooses whom to wait for by itself"
    gradients_only: ClassVar[str] = "it sizes the gradients of common rounds"
    whole_fleet: ClassVar[str] = deals_sizes
    blocks: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.total < 1:
            raise ConfigError(f"a total of {self.total} samples is not possible: at least 1 for each worker")
        if self.window < 2:
            raise ConfigError(f"a window of {self.window} tells no error of a mean: at least 2 rounds")
        if not 0 <= self.margin < math.inf:
            raise ConfigError(f"a margin of {self.margin} is not possible: at least 0")
        if not 0 < self.cost <= 1:
            raise ConfigError(f"a cost of {self.cost} is not possible: more than 0, and at most 1")

    @property
    def most_samples(self) -> int:
        """Of all workers' mini-batches together: those of which half may be late."""
        return 2 * self.total if self.drop_late else self.total

    def check(self, workers: int, batch_size: int | None) -> None:
        check_total_fits(self.total, workers)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        changes = self._changes(ledger)
        quorum = ledger.memory.get(QUORUM, 0)
        for change in changes:
            if isinstance(change, Remember) and change.name == QUORUM:
                quorum = change.value
        rule = _first(int(quorum) or ALL)
        parts = ledger.split(EVERYBODY, window=self.window)
        return [*changes, *(Within(number, decision) for number, part in parts for decision in rule.decide(part))]

    def _changes(self, ledger: Ledger) -> list[Decision]:
        sizes, workers, memory = ledger.sizes, ledger.workers, ledger.memory
        if len(sizes) != len(workers) or any(worker not in sizes for worker in ledger.idle):
            if not workers:
                return []
            return self._look(ledger, f"{len(workers)} workers: all are waited for, for {self.window} rounds")
        if not ledger.idle or ledger.handed_in or ledger.running:
            return []  # in the middle of a round
        if memory.get(QUORUM, 0):
            return self._judge(ledger)
        waited = ledger.round - int(memory.get(SINCE, 0))
        if memory.get(CHOSEN, 0) and waited % max(1, self.window // 3):
            return []
        chosen = self._choose(ledger) if waited >= self.window * memory.get(WAIT, 1) else []
        return chosen or (self._undo(ledger) if memory.get(CHOSEN, 0) and waited >= self.half else [])

    @property
    def half(self) -> int:
        """A half of the window: the rounds that a choice is judged by."""
        return (self.window + 1) // 2

    def _look(
        self, ledger: Ledger, why: str, *, shares: Mapping[int, int] | None = None, failed: bool = False
    ) -> list[Decision]:
        """Wait for all, who share the total as they shared the samples before; a choice that ``failed`` costs time."""
        memory, shared = ledger.memory, ledger.sizes if shares is None else shares
        lasted = ledger.round - int(memory.get(SINCE, 0)) >= STEADY * self.window
        wait = 1 if lasted else memory.get(WAIT, 1)
        told = {QUORUM: 0, SINCE: ledger.round, WAIT: min(2 * wait, LONGEST) if failed else wait, CHOSEN: 0}
        return [Resize(dealt_anew(shared, ledger.workers, self.total), why), *_remembered(ledger, told)]

    def _undo(self, ledger: Ledger) -> list[Decision]:
        """Would rounds be shorter with equal sizes, by the last half of a window?"""
        took, sizes = ledger.last_seconds, ledger.sizes
        equal = dealt_anew({}, sizes, self.total)
        if sizes == equal or any(len(took.get(worker, ())) < self.half for worker in sizes):
            return []
        places = range(-self.half, 0)
        now = fmean(max(took[worker][place] for worker in sizes) for place in places)
        then = fmean(max(took[worker][place] * equal[worker] / sizes[worker] for worker in sizes) for place in places)
        if now <= (1 + self.margin) * then:
            return []
        failed = ledger.round - int(ledger.memory[SINCE]) < STEADY * self.window
        why = f"synchronous: {self.total} samples take {now:.4g} s with unequal mini-batches, by the last {self.half}"
        return self._look(ledger, f"{why} rounds, and {then:.4g} s without", shares={}, failed=failed)

    def _choose(self, ledger: Ledger) -> list[Decision]:
        """The best choice by the last rounds, or the present one."""
        took = ledger.last_seconds
        if any(len(took.get(worker, ())) < self.window for worker in ledger.sizes):
            return []
        present, others = self._choices(ledger, took)
        shortest = min(each.seconds for each in others)
        best = next(each for each in others if each.seconds <= (1 + self.margin) * shortest)  # drops the least work
        ahead = [was - then for was, then in zip(present.rounds, best.rounds, strict=True)]
        unsure = CERTAIN * stdev(ahead) / math.sqrt(self.window)
        stays = fmean(ahead) <= max(self.margin * best.seconds, unsure)
        if stays and ledger.memory.get(CHOSEN, 0):
            return []
        last = f"by the last {self.window} rounds"
        if stays:
            why = (
                f"{present.name}, as it is: {self.total} samples take {present.seconds:.4g} s; at best "
                f"{best.seconds:.4g} s, with {best.name}, {last}"
            )
            return [Resize(dict(ledger.sizes), why), *_remembered(ledger, {CHOSEN: 1})]
        why = f"{best.name}: {self.total} samples take {best.seconds:.4g} s instead of {present.seconds:.4g} s, {last}"
        quorum = best.quorum if best.quorum < len(ledger.workers) else 0
        told: dict[str, float] = {QUORUM: quorum, SINCE: ledger.round, CHOSEN: 1}
        if quorum:
            costs = (present.seconds - best.seconds) / (self.cost * best.seconds)
            told |= {LOOK: ledger.round + math.ceil(max(2.0, costs) * self.window), SPREAD: stdev(best.rounds)}
            told |= {BEGAN: ledger.now, JUDGED: ledger.round, LEAST: 0.0, MOST: present.seconds}
        return [Resize(best.sizes, why), *_remembered(ledger, told)]

    def _choices(self, ledger: Ledger, took: Mapping[int, Sequence[float]]) -> tuple[Choice, list[Choice]]:
        """The present choice as it was measured, and the others as they would have been."""
        sizes, workers = ledger.sizes, sorted(ledger.sizes)
        typical = {worker: median(took[worker]) for worker in workers}
        former = ledger.former_seconds
        fixed = {worker: fixed_part(sizes[worker], typical[worker], former.get(worker)) for worker in workers}
        speeds = [sizes[worker] / (typical[worker] - fixed[worker]) for worker in workers]
        starts = [fixed[worker] for worker in workers]

        def choice(quorum: int, dealt: Sequence[int], name: str) -> Choice:
            rounds = []
            for place in range(-self.window, 0):
                at = sorted(
                    (max(0.0, took[w][place] - fixed[w]) * size / sizes[w] + min(fixed[w], took[w][place]), size)
                    for w, size in zip(workers, dealt, strict=True)
                )[:quorum]
                rounds.append(at[-1][0] * self.total / sum(size for _, size in at))
            return Choice(quorum, dict(zip(workers, dealt, strict=True)), name, rounds)

        number = len(workers)
        equal = sizes_by_speed([1.0] * number, self.total)
        now = tuple(sizes[worker] for worker in workers)
        by_speed = sizes_by_speed(speeds, self.total, fixed=starts)
        present, *others = (
            choice(number, dealt, "synchronous" if dealt == equal else "unequal mini-batches")
            for dealt in (now, equal, by_speed)
        )
        for quorum in quorums(number) if self.drop_late else ():
            dealt = sizes_by_speed([1.0] * number, math.ceil(self.total * number / quorum))
            others.append(choice(quorum, dealt, f"the first {quorum} of {number}"))
        return present, others

    def _judge(self, ledger: Ledger) -> list[Decision]:
        """Late workers are stopped: do rounds still take what they took, and is it time to look at everybody again?"""
        memory = ledger.memory
        if ledger.round >= memory[LOOK]:
            rounds = ledger.round - int(memory[SINCE])
            return self._look(ledger, f"looks at everybody again, after {rounds} rounds")
        rounds = ledger.round - int(memory[JUDGED])
        if rounds < self.half:
            return []
        seconds = (ledger.now - memory[BEGAN]) / rounds
        first, told = memory[JUDGED] == memory[SINCE], {BEGAN: ledger.now, JUDGED: float(ledger.round)}
        if memory[LEAST] <= seconds <= memory[MOST]:
            if first:  # from now on they have to take as long
                unusual = UNUSUAL * memory[SPREAD] * math.sqrt(2 / self.half)
                told[LEAST] = seconds / (1 + self.margin) - unusual
                told[MOST] = seconds * (1 + self.margin) + unusual
            return _remembered(ledger, told)
        than = f"less than {memory[LEAST]:.4g} s" if seconds < memory[LEAST] else f"more than {memory[MOST]:.4g} s"
        return self._look(ledger, f"looks at everybody again: a round takes {seconds:.4g} s, {than}", failed=first)


def _remembered(ledger: Ledger, told: Mapping[str, float]) -> list[Decision]:
    return [Remember(name, value) for name, value in told.items() if ledger.memory.get(name) != value]


def quorums(workers: int) -> list[int]:
    """How many may be waited for: all but one, and some shares, of at least half."""
    found = {workers - 1, *(math.ceil(share * workers) for share in QUORUMS)}
    return sorted((each for each in found if 0 < each < workers), reverse=True)


@lru_cache(maxsize=256)
def _first(quorum: int) -> FastestK:
    """The first so many of a round; with as many as there are workers, everybody."""
    return FastestK(quorum)
