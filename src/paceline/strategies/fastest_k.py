"""K-SGD: update with the fastest, drop the late ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_fields, check_quorum
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Step, assign, mean


@dataclass(frozen=True)
class FastestK(Strategy):
    r"""Step on the first ``quorum`` gradients of each round; drop the late ones (K-SGD, backup workers).

    $$x_{t+1} = x_t - \frac{\eta}{K} \sum_{i \in S_t} g_i(x_t), \qquad |S_t| = K,$$

    where $S_t$ are the first ``quorum`` ($K$) workers to answer round $t$. No gradient is stale; the price is the
    slowest workers' work, thrown away, and a bias when their data differ from the others'. Late workers are stopped
    (``stop_late``), and a round then takes the $K$-th order statistic of the workers' times; or they are left to
    finish, and what they hand in is dropped. With fewer workers than the quorum a round takes all of them. The first
    ``warm_up`` rounds wait for everybody.

    Xu, *Live Gradient Compensation*, Sec. I; Chen et al., *Revisiting Distributed Synchronous SGD*, 2016.
    """

    quorum: int
    stop_late: bool = True
    warm_up: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, workers: int, batch_size: int | None) -> None:
        check_quorum(self.quorum, workers)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.late:
            return [Drop(ticket) for ticket in ledger.late]
        if self.stop_late and ledger.behind:
            return [Drop(ticket) for ticket in ledger.behind]
        if ledger.idle:
            return [assign(worker) for worker in ledger.idle]
        everybody = ledger.round < self.warm_up
        enough = len(ledger.fresh) >= self.quorum and not everybody
        if not ledger.fresh or (ledger.running and not enough):
            return []
        first = len(ledger.fresh) if everybody else self.quorum
        return [Step(mean(tuple(islice(ledger.fresh, first))))]
