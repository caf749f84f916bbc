"""Softsync: nobody waits, and every so many gradients make an update; the same with weights by age."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_fields, check_least
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, Ticket, assign, fraction, mean


def weights_by_age(ledger: Ledger, tickets: Sequence[Ticket]) -> dict[Ticket, Fraction]:
    r"""Weights of a mean over samples, each divided by $\max(1, \tau)$."""
    return {
        ticket: fraction(share.numerator, share.denominator * max(1, ledger.age(ticket)))
        for ticket, share in mean(tickets).items()
    }


@dataclass(frozen=True)
class Buffered(Strategy):
    r"""Step on the mean of each ``size`` gradients that come in, however old; nobody waits (softsync, K-batch-async).

    $$w_{t+1} = w_t - \frac{\eta}{B} \sum_{k=1}^{B} g_{i_k}(w_{t-\tau_k}),$$

    where $i_1, \dots, i_B$ are the workers of the next ``size`` ($B$) gradients to arrive, the same worker perhaps more
    than once, and $\tau_k$ their staleness. A worker downloads the newest model and begins anew as soon as it has
    handed in. The gradients a second are those of ``Asynchronous`` for every size, the updates a second that number
    divided by $B$, and the mean staleness is $(P - 1) / B$ or a little more: with the size of a group about that of
    ``Grouped``, without knowing any speed. A size of 1 is ``Asynchronous``.

    **Wins** where speeds differ or change, no worker may idle, and single stale gradients are too noisy. **Loses**
    where workers have unlike data: fast workers count more often, as in ``Asynchronous``.

    **Memory**: up to ``size`` gradients, of any workers.

    Zhang et al., *Staleness-aware Async-SGD for Distributed Deep Learning*, IJCAI 2016 ($n$-softsync); Dutta et al.,
    *Slow and Stale Gradients Can Win the Race*, AISTATS 2018 (K-batch-async); on model changes Nguyen et al.,
    *Federated Learning with Buffered Asynchronous Aggregation*, AISTATS 2022 (FedBuff).
    """

    size: int
    rounds_of_its_own: ClassVar[str] = "each worker begins anew as soon as it has handed in"

    def __post_init__(self) -> None:
        check_fields(self)
        check_least(self, 1, "size")

    def unsettled(self, workers: int) -> int:
        return self.size + 1

    def held(self, workers: int) -> int:
        return self.size + workers

    def weights(self, ledger: Ledger, tickets: Sequence[Ticket]) -> dict[Ticket, Fraction]:
        return mean(tickets)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if len(ledger.handed_in) >= self.size:
            return [Step(self.weights(ledger, tuple(islice(ledger.handed_in, self.size))))]
        return [assign(worker) for worker in ledger.free]


@dataclass(frozen=True)
class StalenessAware(Buffered):
    r"""``Buffered``, each gradient divided by its staleness.

    $$w_{t+1} = w_t - \frac{\eta}{B} \sum_{k=1}^{B} \frac{1}{\max(1, \tau_k)}\, g_{i_k}(w_{t-\tau_k}).$$

    The weights of an update add up to **at most 1**, and to less the older its gradients are, so that a learning rate
    means something else than in other rules: tune it for this rule.

    **Wins** where a few gradients are much older than the rest, and a learning rate that is right for the fresh ones
    would be too large for them. **Loses** where all are equally old, for then it only lowers the learning rate; and
    with unlike data it takes weight from just those workers that hand in seldom.

    **Memory**: up to ``size`` gradients, of any workers.

    Zhang et al., *Staleness-aware Async-SGD for Distributed Deep Learning*, IJCAI 2016, which divides the learning rate
    by the staleness.
    """

    weight_sum: ClassVar[str] = "at most 1"

    def weights(self, ledger: Ledger, tickets: Sequence[Ticket]) -> dict[Ticket, Fraction]:
        return weights_by_age(ledger, tickets)
