"""IAG: the server keeps the newest gradient of each worker, and steps along the mean of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Drop, Step, mean


@dataclass(frozen=True)
class NewestOfEach(Strategy):
    r"""Keep the newest gradient of each worker; on each arrival, step along the mean of all of them (IAG, MIFA).

    $$w_{t+1} = w_t - \eta\, \frac1P \sum_{i=1}^{P} g_i(w_{t-\tau_i(t)}),$$

    where $\tau_i(t)$ is the age of the newest gradient that worker $i$ has handed in. Until all have handed in, the
    mean is over those who have. When a worker leaves, its gradient is forgotten.

    **Wins** where workers have unlike data: all count alike in every update, whatever their speed, and updates are as
    frequent as in ``Asynchronous``. **Loses** where gradients are noisy: the same noise is used again in $P$ updates or
    more, so that the noise of the model is that of a larger learning rate; and where one worker is very slow, whose old
    gradient pulls all the while.

    **Memory**: one gradient a worker, all the time; in the simulator also a copy of the weights that it was computed
    at. An update is a sum over all workers, so that an event costs as much as there are workers.

    Blatt, Hero & Gauchman, *A Convergent Incremental Gradient Method with a Constant Step Size*, 2007 (IAG); Gu et al.,
    *Fast Federated Learning in the Presence of Arbitrary Device Unavailability*, NeurIPS 2021 (MIFA).
    """

    rounds_of_its_own: ClassVar[str] = "each worker begins anew after an update of its own"
    gradients_only: ClassVar[str] = "a change of the model cannot be added again and again"

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in ledger.handed_in:
            present = ledger.workers
            newest = {old.worker: old for old in ledger.kept if old.worker in present}
            newest[ticket.worker] = ticket
            used = {*newest.values()}
            forgotten = [Drop(old) for old in ledger.kept if old not in used]
            keep = tuple(each for each in newest.values() if each.worker in present)
            return [*forgotten, Step(mean(tuple(newest.values())), keep)]
        gone = [Drop(old) for old in ledger.kept if old.worker not in ledger.workers]
        return [*gone, *(Assign(worker) for worker in ledger.free)]
