r"""What a rule does with a fleet's time: how much weight of gradients a second, of how many samples, and how stale.

Speed comes from a formula where there is one; everything else is counted in a simulation without a model. A gradient
$j$ of $s_j$ samples has the weight $W_j$ in all updates that use it together. In the long run updates move the model by
$\eta \sum_j W_j g_j$, so what counts is

$$R = \frac1T \sum_j W_j, \qquad b = \frac{\sum_j W_j}{\sum_j W_j^2 / s_j}:$$

the weight a second, and the samples of the one batch whose noise the updates have for their progress.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.coordinator import Strategy
from paceline.core.messages import Ticket
from paceline.engine.arguments import simulated_sizes
from paceline.engine.loop import Stepped
from paceline.engine.measured import CountedWork, MeasuredSimulation
from paceline.fleets.base import medians_at
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.unequal_batches import UnequalBatches, sizes_by_speed
from paceline.theory.estimate import Estimate
from paceline.theory.runtime.costs import formula_rate
from paceline.theory.stability.net_weights import NetWeights

SETTLING = 0.2  # of the updates of a simulation, at its start, that are left out of its speed
FEWEST_UPDATES = 30


@dataclass(frozen=True)
class Case:
    """The fleet that rules are tried on, with what a mini-batch and a message are.

    formulas  may formulas be used? They take durations to be independent, which recorded ones need not be
    """

    fleet: SimulatedFleet
    batch_size: int | Sequence[int] | None = None
    message_bytes: int = 0
    formulas: bool = True
    seed: int = 0

    def sizes(self, without: Sequence[int] = ()) -> int | Sequence[int] | None:
        """The batch size where some workers are left out."""
        if self.batch_size is None or isinstance(self.batch_size, int):
            return self.batch_size
        return [size for worker, size in enumerate(self.batch_size) if worker not in without]


@dataclass(frozen=True)
class Pace:
    """A rule on a fleet in the long run.

    updates_per_second  with its source
    weight_per_second   $R$: the sum of the weights of its updates a second
    samples_per_second  that updates use; mini-batches a second where their size is not known
    batch               $b$, in samples; in mini-batches where their size is not known
    mean_staleness      updates between download and first use
    weights             net weights of each age, on which the stable learning rate depends
    least_say           of the worker that counts least: its share of all weight, times the workers
    pieces              of work that were simulated
    """

    updates_per_second: Estimate
    weight_per_second: float
    samples_per_second: float
    batch: float
    mean_staleness: float
    weights: NetWeights
    least_say: float
    pieces: int


def pace_of(strategy: Strategy, case: Case, pieces: int, without: Sequence[int] = ()) -> Pace:
    """Simulate so many pieces of work. With the same seed all rules have the same durations."""
    fleet, batch_size = subfleet(case.fleet, without), case.sizes(without)
    if isinstance(strategy, UnequalBatches) and batch_size is not None:  # as it will be once speeds are known
        speeds = medians_at(fleet, batch_size) or (1.0,) * fleet.workers
        batch_size = sizes_by_speed(speeds, strategy.total, strategy.blocks)
    return _count(strategy, fleet, case, batch_size, pieces)


def with_formula(pace: Pace, strategy: Strategy, case: Case, without: Sequence[int] = ()) -> Pace:
    """The same with the speed of a formula instead of the simulated one, where there is a formula."""
    fleet = subfleet(case.fleet, without)
    found = formula_rate(strategy, fleet, case.sizes(without), case.message_bytes) if case.formulas else None
    if found is None or not 0 < found.value < math.inf:
        return pace
    factor = found.value / pace.updates_per_second.value
    return replace(
        pace,
        updates_per_second=found,
        weight_per_second=pace.weight_per_second * factor,
        samples_per_second=pace.samples_per_second * factor,
    )


class _Parts(CountedWork):
    """Notes also which part of a piece of work was done, where a recall ended it early."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[Ticket, float] = {}

    def shorten(self, ticket: Ticket, done: int) -> None:
        self.done[ticket] = done / ticket.work.units


def _count(
    strategy: Strategy, fleet: SimulatedFleet, case: Case, batch_size: int | Sequence[int] | None, pieces: int
) -> Pace:
    sizes = simulated_sizes(strategy, fleet.workers, batch_size)
    work = _Parts()
    simulation = MeasuredSimulation(
        strategy, replace(fleet, changes=()), work, message_bytes=case.message_bytes, sizes=sizes, seed=case.seed
    )
    updates: list[Stepped] = []
    for update in simulation:
        updates.append(update)
        enough = work.assigned >= pieces and len(updates) >= FEWEST_UPDATES
        if enough and update.at > updates[int(SETTLING * len(updates))].at:
            break
    measures = simulation.measures()
    each = [1] * fleet.workers if batch_size is None else _each(batch_size, fleet.workers)
    life: dict[Ticket, float] = {}
    for update in (settled := updates[int(SETTLING * len(updates)) + 1 :]):
        for ticket, weight in update.step.weights.items():
            life[ticket] = life.get(ticket, 0.0) + float(weight)
    samples = {ticket: _samples(ticket, each) * work.done.get(ticket, 1.0) for ticket in life}
    seconds = updates[-1].at - updates[-len(settled) - 1].at
    total = math.fsum(life.values())
    return Pace(
        updates_per_second=Estimate(len(settled) / seconds, "simulation"),
        weight_per_second=total / seconds,
        samples_per_second=sum(samples.values()) / seconds,
        batch=total / math.fsum(weight**2 / samples[ticket] for ticket, weight in life.items() if samples[ticket]),
        mean_staleness=measures.mean_staleness,
        weights=NetWeights(measures.weight_by_age, measures.weight_by_gap),
        least_say=_least_say(life, fleet.workers),
        pieces=work.assigned,
    )


def _each(batch_size: int | Sequence[int], workers: int) -> list[int]:
    return [batch_size] * workers if isinstance(batch_size, int) else list(batch_size)


def _samples(ticket: Ticket, each: Sequence[int]) -> int:
    return (ticket.work.samples or each[ticket.worker]) * ticket.work.mini_batches


def _least_say(life: dict[Ticket, float], workers: int) -> float:
    by_worker = [0.0] * workers
    for ticket, weight in life.items():
        by_worker[ticket.worker] += weight
    return min(by_worker) / math.fsum(by_worker) * workers


def can_leave_out(fleet: SimulatedFleet) -> bool:
    """Is nothing said of certain workers but how fast they are, so that some can be left out?"""
    return fleet.machines is None and fleet.availability is None and not fleet.changes


def subfleet(fleet: SimulatedFleet, without: Sequence[int]) -> SimulatedFleet:
    """The fleet without some of its workers."""
    if not without:
        return fleet
    kept = [worker for worker in range(fleet.workers) if worker not in without]
    return replace(
        fleet,
        delays=[fleet.worker_delays[worker] for worker in kept],
        workers=len(kept),
        labels=[fleet.labels[worker] for worker in kept] if fleet.labels else (),
        prices=[fleet.worker_prices[worker] for worker in kept] if fleet.worker_prices else (),
    )
