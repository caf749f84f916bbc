"""Asynchronous, with smaller weights on gradients that are older than usual."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, assign, fraction


@dataclass(frozen=True)
class DelayAdaptive(Strategy):
    r"""Step on each gradient as it arrives; one that is older than the number of workers counts less.

    $$w_{t+1} = w_t - \eta\, \min\!\left(1, \frac{P}{\tau_t}\right) g_{i(t)}(w_{t-\tau_t}),$$

    where $P$ is the number of workers that are here, which is how many gradients are being computed at any time, and
    $\tau_t$ the staleness. The weight of an update is **at most 1**: a learning rate means a little less than in other
    rules, the more the speeds differ.

    **Wins** against ``Asynchronous`` where a few workers are much slower than the others: the learning rate need not be
    as small as their oldest gradient would ask for. **Loses** where speeds are alike, for then nothing changes; and
    with unlike data it takes weight from slow workers, which count too seldom already.

    **Memory**: one gradient a worker.

    Koloskova, Stich & Jaggi, *Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated
    Learning*, NeurIPS 2022, Theorem 8: the learning rate is $\eta$ up to a staleness of the concurrency, here $P$, and
    at most $\min(\eta, \frac{1}{4L\tau})$ beyond (Eq. 11; $L$ is the smoothness of the loss). The weight $P/\tau$ keeps
    to that for $\eta \le \frac{1}{4LP}$, and has no jump at $P$; the paper's Sec. 4.4 proposes $1/\tau$, which has one.
    Similar: Mishchenko et al., *Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays*, NeurIPS 2022, whose text
    was not at hand.
    """

    weight_sum: ClassVar[str] = "at most 1"
    rounds_of_its_own: ClassVar[str] = "each worker begins anew after an update of its own"

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in ledger.handed_in:  # one update at a time: the next one finds the others older
            workers, age = max(1, len(ledger.workers)), ledger.age(ticket)
            return [Step({ticket: fraction(workers, max(workers, age))})]
        return [assign(worker) for worker in ledger.free]
