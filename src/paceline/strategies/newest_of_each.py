"""IAG: the server keeps the newest gradient of each worker, and steps along the mean of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Step, assign, mean


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
        present, kept = ledger.workers, ledger.kept
        for ticket in ledger.handed_in:
            newest = {old.worker: old for old in kept if old.worker in present}
            newest[ticket.worker] = ticket
            forgotten = [Drop(old) for old in kept if newest.get(old.worker) is not old]
            keep = used = tuple(newest.values())
            if ticket.worker not in present:
                keep = tuple(each for each in used if each is not ticket)
            return [*forgotten, Step(mean(used), keep)]
        gone = [Drop(old) for old in kept if old.worker not in present]
        return [*gone, *(assign(worker) for worker in ledger.free)]
