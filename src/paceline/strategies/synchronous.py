"""SSGD, Full-SGD: everybody waits for everybody."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, assign, mean


@dataclass(frozen=True)
class Synchronous(Strategy):
    r"""Step on the mean of everybody's gradient, once everybody has handed it in (SSGD, Full-SGD).

    $$w_{t+1} = w_t - \eta_t \frac{1}{P} \sum_{i=1}^{P} g(w_t; \xi_{t,i}),$$

    where $P$ is the number of workers and $\xi_{t,i}$ the mini-batch of worker $i$. No gradient is stale; a round takes
    as long as its slowest worker.

    Gao & Chen, *Group SGD*, Eq. (2); Xu, *Live Gradient Compensation*, Eq. (3).
    """

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            return [assign(worker) for worker in ledger.idle]
        if ledger.running or not ledger.fresh:
            return []
        return [Step(mean(ledger.fresh))]
