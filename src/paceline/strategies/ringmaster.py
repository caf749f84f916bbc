"""Ringmaster ASGD: asynchronous, and what is too old is neither used nor computed to its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_fields, check_least
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Step, assign

ONE = Fraction(1)


@dataclass(frozen=True)
class Ringmaster(Strategy):
    r"""Step on each gradient that is younger than ``threshold`` updates; drop the others.

    $$w_{t+1} = w_t - \eta\, g_{i(t)}(w_{t-\tau_t}) \quad\text{if } \tau_t < R,$$

    where $\tau_t$ is the staleness and $R$ the ``threshold``; else the gradient is ignored and its worker begins anew.
    With ``stop`` a worker whose gradient is that old already is stopped at once, and begins with the newest model. A
    threshold of 1 is ``FastestK(quorum=1)``; one that is larger than any staleness is ``Asynchronous``.

    **Wins** where some workers are so slow that their gradients do more harm than good: with the right threshold (of
    the order of $\sigma^2/\varepsilon$ for a noise $\sigma^2$ and an accuracy $\varepsilon$) the time to an accuracy is
    optimal up to a constant. **Loses** with unlike data, for slow workers may never count at all; and where speeds are
    alike and the threshold is below the number of workers, work is thrown away.

    **Memory**: one gradient a worker.

    Maranjyan, Tyurin & Richtárik, *Ringmaster ASGD*, ICML 2025, Alg. 4 (without ``stop``) and Alg. 5.
    """

    threshold: int
    stop: bool = True
    rounds_of_its_own: ClassVar[str] = "each worker begins anew after an update of its own"

    def __post_init__(self) -> None:
        check_fields(self)
        check_least(self, 1, "threshold")

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in ledger.handed_in:  # one update at a time: the next one finds the others older
            return [Step({ticket: ONE}) if ledger.age(ticket) < self.threshold else Drop(ticket)]
        if self.stop and ledger.round >= self.threshold:
            old = []
            for ticket in ledger.behind:  # the oldest first
                if ledger.age(ticket) < self.threshold:
                    break
                old.append(Drop(ticket))
            if old:
                return old
        return [assign(worker) for worker in ledger.free]
