"""Mini-batches sized by measured speed, so that unequal workers hand in at the same time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import ClassVar

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Resize, Within
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.grouped import Grouped
from paceline.strategies.inner import Inner, check_with_inner
from paceline.strategies.regrouped import EVERYBODY, Regrouped
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.traits import check_inside, deals_sizes, said


@dataclass(frozen=True)
class UnequalBatches(Strategy):
    r"""Size the workers' mini-batches by their measured speed, so that all of them hand in at the same time.

    $$w_{t+1} = w_t - \eta_t \sum_{i=1}^{P} \frac{b_i}{B}\, g(w_t; \xi_{t,i}), \qquad |\xi_{t,i}| = b_i, \qquad
    \sum_{i=1}^{P} b_i = B,$$

    with $B$ = ``total`` samples an update, however many workers are there: with ``Synchronous`` inside, the step is the
    mean over all $B$ samples, as that of one large batch. A worker takes $a_i + b_i / v_i$ seconds for $b_i$ samples.
    What it takes now is the median of its last ``window`` mini-batches of this size. The fixed part $a_i$ follows from
    that and what another size took before; without one it is taken to be 0. The best sizes are whole numbers with the
    shortest round, $\max_i a_i + b_i / v_i$. Sizes stay as they are until the best ones $b'$ would make a round shorter
    by more than the ``margin`` $\mu$:

    $$\max_i \left(a_i + \frac{b_i}{v_i}\right) > (1 + \mu) \max_i \left(a_i + \frac{b'_i}{v_i}\right).$$

    So as long as no ratio of two workers' times changes by more than the factor $1 + \mu$, nothing changes.

    Speeds are looked at whenever as many pieces as there are workers were handed in. Workers with fewer than ``window``
    pieces of their size keep it. At first all have the same size, or those of ``train(batch_size=[...])``. When a
    worker leaves, the others share its samples in proportion to their own; one that joins begins with the mean size.

    ``inside`` says who waits for whom: ``Synchronous``, ``FastestK`` or ``LiveCompensation``, whose ``blocks`` divide
    every size.
    """

    inside: Inner = Synchronous()  # type: ignore[assignment]
    total: int = field(kw_only=True)
    margin: float = 0.1
    window: int = 9
    deals_sizes: ClassVar[str] = "it deals sizes among all workers"

    def __post_init__(self) -> None:
        check_with_inner(self, "inside")
        if self.total < 1:
            raise ConfigError(f"a total of {self.total} samples is not possible: at least 1 for each worker")
        if not self.margin >= 0:
            raise ConfigError(f"a margin of {self.margin} is not possible: at least 0")
        if self.window < 1:
            raise ConfigError(f"a window of {self.window} measures nothing: at least 1 piece of work")
        check_inside(self.inside, "UnequalBatches")
        refused = isinstance(self.inside, Asynchronous | Grouped | Regrouped)
        refused = refused or bool(said(self.inside, "rounds_of_its_own")) or deals_sizes(self.inside)
        if refused or getattr(self.inside, "aggregation", None) is not None:
            raise ConfigError(
                f"UnequalBatches cannot have {type(self.inside).__name__} inside: it sizes the gradients of common "
                "rounds; choose Synchronous, FastestK or LiveCompensation"
            )
        if self.total % self.blocks:
            raise ConfigError(f"a total of {self.total} samples is no multiple of {self.blocks} blocks")

    @property
    def blocks(self) -> int:
        """What every size is a multiple of."""
        return max(1, int(getattr(self.inside, "blocks", 1)))

    def check(self, workers: int, batch_size: int | None) -> None:
        check_total_fits(self.total, workers, self.blocks)
        check_fits(self.inside, workers, batch_size)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        resize = self._resize(ledger)
        decisions: list[Decision] = [] if resize is None else [resize]
        decisions += [
            Within(number, decision)
            for number, part in ledger.split(EVERYBODY, window=self.window)
            for decision in self.inside.decide(part)
        ]
        return decisions

    def _resize(self, ledger: Ledger) -> Resize | None:
        sizes, workers = ledger.sizes, ledger.workers
        if len(sizes) != len(workers) or any(worker not in sizes for worker in ledger.idle):
            if not workers:
                return None
            found = dealt_anew(sizes, workers, self.total, self.blocks)
            return Resize(found, f"{len(found)} workers share {self.total} samples")
        return self._by_speed(ledger, seconds) if (seconds := ledger.seconds) else None

    def _by_speed(self, ledger: Ledger, seconds: Mapping[int, float]) -> Resize | None:
        sizes, former = ledger.sizes, ledger.former_seconds
        measured = sorted(worker for worker in sizes if worker in seconds)
        if len(measured) < 2:
            return None
        total = sum(sizes[worker] for worker in measured)
        fixed = {worker: fixed_part(sizes[worker], seconds[worker], former.get(worker)) for worker in measured}
        speeds = {worker: sizes[worker] / (seconds[worker] - fixed[worker]) for worker in measured}
        best = sizes_by_speed([*speeds.values()], total, self.blocks, fixed=[*fixed.values()])
        found = dict(zip(measured, best, strict=True))
        now = max(seconds[worker] for worker in measured)
        then = max(fixed[worker] + found[worker] / speeds[worker] for worker in measured)
        if now <= (1 + self.margin) * then:
            return None
        slowest = max(measured, key=seconds.__getitem__)
        return Resize(
            {worker: found.get(worker, size) for worker, size in sizes.items()},
            f"worker {slowest} takes {now:.4g} s for {sizes[slowest]} samples; with other sizes all take {then:.4g} s",
        )


def dealt_anew(sizes: Mapping[int, int], workers: Iterable[int], total: int, multiple: int = 1) -> dict[int, int]:
    """So many samples for the workers that are here, shared as before; who is new has the mean size."""
    present = sorted(workers)
    known = [sizes[worker] for worker in present if worker in sizes] or [1]
    speeds = [sizes.get(worker, sum(known) / len(known)) for worker in present]
    return dict(zip(present, sizes_by_speed(speeds, total, multiple), strict=True))


CERTAIN = 1.25  # sizes that differ by this factor tell of the fixed part
CHANGED = 0.8  # a larger mini-batch that takes less than this share: the worker has become another one
SLOPE = 0.05  # at least this share of the time goes with the samples: none can have any number of them


def fixed_part(size: int, seconds: float, former: tuple[int, float] | None) -> float:
    """What of a mini-batch's seconds does not depend on its size, as far as another size and its seconds tell."""
    if former is None:
        return 0.0
    other, took = former
    less, more = sorted([(size, seconds), (other, took)])
    if more[0] < CERTAIN * less[0] or more[1] < CHANGED * less[1]:
        return 0.0
    each = max(0.0, (more[1] - less[1]) / (more[0] - less[0]))
    return min(max(0.0, seconds - each * size), (1 - SLOPE) * seconds)


def sizes_by_speed(
    speeds: Sequence[float], total: int, multiple: int = 1, *, fixed: Sequence[float] = ()
) -> tuple[int, ...]:
    r"""Deal ``total`` samples to workers of these speeds (samples a second) so that a round is as short as can be.

    The sizes $b_i$ are whole numbers, each at least ``multiple`` and a multiple of it, with the smallest
    $\max_i a_i + b_i / v_i$. The $a_i$ are the seconds that a mini-batch takes besides, ``fixed``; by default 0.
    """
    left, rest = divmod(total, multiple)
    if rest or left < len(speeds) or not speeds:
        raise ConfigError(
            f"{total} samples cannot be dealt to {len(speeds)} workers in multiples of {multiple}: each needs one"
        )
    if not all(0 < speed < float("inf") for speed in speeds):
        raise ConfigError(f"speeds={[*speeds][:8]} are not possible: each is positive and finite")
    starts, rates = fixed or [0.0] * len(speeds), [speed / multiple for speed in speeds]
    units = [1] * len(speeds)
    others = {*range(len(speeds))}
    while others:
        round_ = (left + sum(starts[w] * rates[w] for w in others)) / sum(rates[w] for w in others)
        slow = {worker for worker in others if (round_ - starts[worker]) * rates[worker] < 1}
        if not slow:
            break
        others -= slow  # they get one all the same, and the others the rest
        left -= len(slow)
    for worker in others:
        units[worker] = int((round_ - starts[worker]) * rates[worker])
        left -= units[worker]
    ready = [(starts[worker] + (units[worker] + 1) / rates[worker], worker) for worker in others]
    heapify(ready)
    for _ in range(left):  # at most one for each worker
        _, worker = ready[0]
        units[worker] += 1
        heapreplace(ready, (starts[worker] + (units[worker] + 1) / rates[worker], worker))
    return tuple(multiple * unit for unit in units)


def check_total_fits(total: int, workers: int, blocks: int = 1) -> None:
    """Raise ``ConfigError`` unless every worker gets a sample of each block."""
    if total < (least := workers * blocks):
        raise ConfigError(f"a total of {total} samples leaves one of {workers} workers without any: at least {least}")
