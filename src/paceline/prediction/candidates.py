"""The rules that advice chooses from, with options by the number and the speeds of the workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.engine.arguments import simulated_sizes
from paceline.fleets.base import medians_at
from paceline.prediction.pace import Case, can_leave_out
from paceline.storage.description import describe, spell
from paceline.strategies.anytime import Anytime
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.bounded_staleness import BoundedStaleness
from paceline.strategies.buffered import Buffered, StalenessAware
from paceline.strategies.delay_adaptive import DelayAdaptive
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped, groups_by_speed
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.names import choice_of
from paceline.strategies.newest_of_each import NewestOfEach
from paceline.strategies.quorum_grace import QuorumGrace
from paceline.strategies.rennala import Malenia, Rennala
from paceline.strategies.replicated import Replicated
from paceline.strategies.rescaled import Rescaled
from paceline.strategies.ringmaster import Ringmaster
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.unequal_batches import UnequalBatches

BLOCKS = 4  # of a mini-batch, for rules that use parts of it
LOCAL_STEPS = (4, 16)
TOLERANCES = (0.25, 0.6)  # of groups of like speed
MOST_LEFT_OUT = 4  # fleets without slow workers


@dataclass(frozen=True)
class Option:
    """A rule, and the workers that it leaves out."""

    strategy: Strategy
    without: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """As the command line spells it."""
        choice = choice_of(self.strategy)
        name = spell(describe(self.strategy)) if choice is None else choice.short
        if not self.without:
            return name
        return f"{name} without worker{'s' * (len(self.without) > 1)} {', '.join(map(str, self.without))}"

    @property
    def hands_in_models(self) -> bool:
        """Workers take steps of their own: what a step of the average is worth, no theory here tells."""
        return getattr(self.strategy, "aggregation", None) is not None


def options(case: Case, now: Strategy, prices: Sequence[float] = ()) -> list[Option]:
    """What is done now, and every rule that could be done instead, each once.

    With ``prices``, the workers that cost most for what they do are left out too, under three rules.
    """
    speeds = medians_at(case.fleet, case.batch_size) or (1.0,) * case.fleet.workers
    found: dict[str, Option] = {}
    for option in (Option(now), *map(Option, _rules(case, speeds)), *_smaller(case, speeds, prices)):
        if _possible(option, case):
            found.setdefault(option.label, option)
        elif option.strategy is now:
            simulated_sizes(now, case.fleet.workers, case.batch_size)  # says why not
    return list(found.values())


def _possible(option: Option, case: Case) -> bool:
    try:
        simulated_sizes(option.strategy, case.fleet.workers - len(option.without), case.sizes(option.without))
    except ConfigError:
        return False
    return True


def _rules(case: Case, speeds: Sequence[float]) -> Iterator[Strategy]:
    workers = case.fleet.workers
    half = max(2, workers // 2)
    yield Synchronous()
    if (size := case.batch_size) is not None:
        yield UnequalBatches(total=size * workers if isinstance(size, int) else sum(size))
    for quorum in quorums(speeds):
        yield FastestK(quorum)
        yield LiveCompensation(quorum, BLOCKS)
    yield QuorumGrace(half, float(f"{0.25 * median(speeds):.2g}"))
    yield from map(Grouped, groupings(speeds))
    yield Asynchronous()
    for buffer in dict.fromkeys((half, max(2, workers // 4))):
        yield Buffered(buffer)
    yield StalenessAware(half)
    yield BoundedStaleness(3)
    yield DelayAdaptive()
    yield Rescaled()
    yield NewestOfEach()
    yield Ringmaster(workers)
    yield from (Rennala(workers), Rennala(half), Malenia(workers))
    yield Anytime(float(f"{1.1 * sorted(speeds)[workers // 2]:.2g}"), BLOCKS)
    if workers % 2 == 0:
        order = sorted(range(workers), key=lambda worker: speeds[worker])
        yield Replicated([sorted((order[place], order[-1 - place])) for place in range(workers // 2)])
    if case.fleet.message_seconds(case.message_bytes) > 0 or case.fleet.machines is not None:
        yield from (ModelAveraging(every) for every in LOCAL_STEPS)


def quorums(speeds: Sequence[float]) -> list[int]:
    """All but one, half, three quarters, and as many as the fastest groups of like speed have."""
    workers, found, fast = len(speeds), [len(speeds) - 1, round(0.75 * len(speeds)), len(speeds) // 2], 0
    for group in groups_by_speed(speeds)[:-1]:
        fast += len(group)
        found.append(fast)
    return sorted({quorum for quorum in found if workers // 2 <= quorum < workers and quorum > 0}, reverse=True)


def groupings(speeds: Sequence[float]) -> list[tuple[tuple[int, ...], ...]]:
    found = dict.fromkeys(tuple(groups_by_speed(speeds, tolerance)) for tolerance in TOLERANCES)
    return [groups for groups in found if 1 < len(groups) < len(speeds)]


def _smaller(case: Case, speeds: Sequence[float], prices: Sequence[float]) -> Iterator[Option]:
    """The fleet without its slowest worker, its two slowest, and so on: as long as the slowest left is slower.

    With prices, without those that cost most for a mini-batch.
    """
    if not can_leave_out(case.fleet):
        return
    costs = [speed * price for speed, price in zip(speeds, prices, strict=True)] if any(prices) else speeds
    order = sorted(range(len(speeds)), key=lambda worker: (-costs[worker], worker))
    least = costs[order[-1]]
    for count in range(1, min(len(order) - 1, MOST_LEFT_OUT + 1)):
        if costs[order[count - 1]] <= 1.05 * least:
            return
        without = tuple(sorted(order[:count]))
        yield Option(Synchronous(), without)
        if any(prices):
            yield Option(Asynchronous(), without)
            if isinstance(size := case.batch_size, int):
                yield Option(UnequalBatches(total=size * (len(speeds) - count)), without)
