"""Rennala and Malenia: all compute at the same weights, as often as they can, until there is enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_fields, check_least
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Remember, Step, assign, fraction, mean


@dataclass(frozen=True)
class Rennala(Strategy):
    r"""Let all workers compute gradients at the same weights until ``batch`` are there; step on their mean.

    $$w_{t+1} = w_t - \frac{\eta}{S} \sum_{k=1}^{S} g_{i_k}(w_t),$$

    where $i_1, \dots, i_S$ are the workers of the first ``batch`` ($S$) gradients of round $t$: fast workers hand in
    several. A gradient that was begun before the last update is dropped when it arrives, and its worker begins anew. So
    no gradient is stale, and nobody waits.

    **Wins** where speeds differ widely and the noise of gradients asks for large batches: the time to an accuracy is
    optimal up to a constant for a suitable ``batch`` (of the order of $\sigma^2/\varepsilon$ for a noise $\sigma^2$ and
    an accuracy $\varepsilon$). **Loses** where the batch is small: a worker that takes longer than a round never
    counts; with unlike data the model leans towards those of fast workers (``Malenia`` does not).

    **Memory**: up to ``batch`` gradients on real workers; the simulator computes them when the round ends.

    Tyurin & Richtárik, *Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
    Model*, NeurIPS 2023.
    """

    batch: int
    rounds_of_its_own: ClassVar[str] = "a fast worker hands in several times in a round"
    gradients_only: ClassVar[str] = "a worker would hand in several models that began with the same one"

    def __post_init__(self) -> None:
        check_fields(self)
        check_least(self, 1, "batch")

    def unsettled(self, workers: int) -> int:
        return self.batch + 2

    def held(self, workers: int) -> int:
        return self.batch + workers

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.late:
            return [Drop(ticket) for ticket in ledger.late]
        if len(ledger.fresh) >= self.batch:
            return [Step(mean(tuple(islice(ledger.fresh, self.batch))))]
        return [assign(worker) for worker in ledger.free]


LOOK, WORKERS = "look", "workers"  # how many gradients there are to be before the condition can hold, of how many


@dataclass(frozen=True)
class Malenia(Strategy):
    r"""``Rennala`` for unlike data: every worker counts alike, however many gradients it handed in.

    $$w_{t+1} = w_t - \eta\, \frac1P \sum_{i=1}^{P} \frac{1}{B_i} \sum_{k=1}^{B_i} g_{i,k}(w_t), \qquad
    \text{as soon as } \frac1P \sum_{i=1}^{P} \frac1{B_i} \le \frac{P}{S},$$

    where worker $i$ has handed in $B_i$ gradients of round $t$, all at the same weights, and $S$ is the ``batch``: the
    variance of the mean is then that of $S$ gradients of equal weight. Gradients of an earlier round are dropped. A
    worker that has handed in $S$ waits, for more of its own could not be what the condition lacks.

    **Wins** where data and speeds are unlike and gradients are noisy; the model is that of all data. **Loses** where
    one worker is very slow: each round waits for its first gradient, as ``Synchronous`` does.

    **Memory**: up to ``batch`` gradients of each worker on real workers. An event costs the same in every fleet, but
    for a look at all workers whenever the condition may have come to hold. What a worker that has left handed in before
    counts too.

    Tyurin & Richtárik, *Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
    Model*, NeurIPS 2023.
    """

    batch: int
    rounds_of_its_own: ClassVar[str] = "a fast worker hands in several times in a round"
    gradients_only: ClassVar[str] = "a worker would hand in several models that began with the same one"

    def __post_init__(self) -> None:
        check_fields(self)
        check_least(self, 1, "batch")

    def unsettled(self, workers: int) -> int:
        return self.batch + 2

    def held(self, workers: int) -> int:
        return (self.batch + 1) * workers

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.late:
            return [Drop(ticket) for ticket in ledger.late]
        own = ledger.holding
        if self._may_hold(ledger) and all(worker in own for worker in ledger.workers):
            counts = [own[worker] for worker in ledger.workers]
            missing = sum([1 / count for count in counts]) - len(counts) ** 2 / self.batch
            if missing <= 1e-9:
                forget = [Remember(LOOK, 0)] if ledger.memory.get(LOOK) else []
                weights = {ticket: fraction(1, len(own) * own[ticket.worker]) for ticket in ledger.fresh}
                return [*forget, Step(weights)]
            fewest = min(counts)  # one more gradient of a worker lowers the sum by 1 / (B (B + 1))
            look = len(ledger.fresh) + max(1, ceil(missing * fewest * (fewest + 1) - 1e-6))
            if ledger.memory.get(LOOK) != look:
                return [Remember(LOOK, look), Remember(WORKERS, len(counts))]
        return [assign(worker) for worker in ledger.free if own.get(worker, 0) < self.batch]

    def _may_hold(self, ledger: Ledger) -> bool:
        """Whether a look at all workers is worth it: not before as many gradients are there as the last look told."""
        there, workers, memory = len(ledger.fresh), len(ledger.workers), ledger.memory
        look = memory.get(LOOK, 0) if memory.get(WORKERS) == workers and ledger.running else 0
        return workers > 0 and len(ledger.holding) >= workers and there >= max(self.batch, look)
