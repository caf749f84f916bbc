"""Asynchronous, with weights by the time that a gradient took: all workers count alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, assign, fraction


@dataclass(frozen=True)
class Rescaled(Strategy):
    r"""Step on each gradient as it arrives, with a weight in proportion to the time that it took (Rescaled ASGD).

    $$w_{t+1} = w_t - \eta\, \frac{\tau_t + 1}{P}\, g_{i(t)}(w_{t-\tau_t}),$$

    where $\tau_t$ is the staleness and $P$ the number of workers. $\tau_t + 1$ is how long the gradient was computed,
    measured in updates. Over a worker's consecutive gradients these numbers add up to all updates, so that after $t$
    updates the weights of each worker have added up to $t/P$, but for what it is computing: every worker counts alike
    over time, whatever its speed, and also when speeds change. This is the unbiased rule among the asynchronous ones.

    A single weight is **not 1**: a worker twice as slow as the mean counts double when it comes, and the mean over all
    updates is 1. A learning rate has to be small enough for the largest weight.

    **Wins** where workers have unlike data and speeds, and nobody may wait. **Loses** where one worker is very slow: it
    steps seldom, and then far, along an old gradient. Where data are alike, ``Asynchronous`` is less noisy.

    **Memory**: one gradient a worker.

    Mahran, Maranjyan & Richtárik, *Rescaled Asynchronous SGD*, 2026, whose learning rates are in proportion to the
    workers' fixed computing times; measuring them in updates is Paceline's choice, which needs no clock.
    """

    weight_sum: ClassVar[str] = "1 on average"
    rounds_of_its_own: ClassVar[str] = "each worker begins anew after an update of its own"
    gradients_only: ClassVar[str] = "a worker's model cannot count more than once"

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in ledger.handed_in:  # one update at a time: the next one finds the others older
            return [Step({ticket: fraction(ledger.age(ticket) + 1, max(1, len(ledger.workers)))})]
        return [assign(worker) for worker in ledger.free]
