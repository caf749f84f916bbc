"""ASGD: nobody waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, assign

ONE = Fraction(1)


@dataclass(frozen=True)
class Asynchronous(Strategy):
    r"""Step on each gradient as it arrives (ASGD).

    $$w_{t+1} = w_t - \eta_t\, g(w_{t-\tau_t}; \xi_{t,i(t)}),$$

    where $i(t)$ is the worker that arrived and $\tau_t$ its staleness: how many updates the others made since it
    downloaded the model. With $P$ workers the mean of $\tau_t$ is $P-1$ in the long run.

    Gao & Chen, *Group SGD*, Eq. (3).
    """

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        arrived = ledger.handed_in
        if not arrived:
            return [assign(worker) for worker in ledger.idle] if ledger.idle else []
        if len(arrived) == 1 and not ledger.leaving:  # as mostly: the same in half of the time
            (ticket,) = arrived
            worker = ticket.worker
            alone = len(ledger.idle) == (worker in ledger.idle)  # nobody else waits for work
            if alone and worker in ledger.workers and worker not in ledger.running:
                return [Step({ticket: ONE}), assign(worker)]
        workers = dict.fromkeys([ticket.worker for ticket in arrived])
        free = [worker for worker in workers if worker in ledger.workers and worker not in ledger.running]
        if ledger.leaving:
            free = [worker for worker in free if worker not in ledger.leaving]
        joined = [worker for worker in ledger.idle if worker not in workers]
        return [*(Step({ticket: ONE}) for ticket in arrived), *(assign(worker) for worker in (*joined, *free))]
