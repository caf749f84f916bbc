"""SSP: asynchronous, but nobody gets too far ahead of the slowest."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_fields, check_least
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, assign

ONE = Fraction(1)


@dataclass(frozen=True)
class BoundedStaleness(Strategy):
    r"""Step on each gradient as it arrives; who is more than ``slack`` pieces ahead of the slowest waits (SSP).

    $$w_{t+1} = w_t - \eta\, g_{i(t)}(w_{t-\tau_t}), \qquad
    \text{worker } i \text{ begins only while } c_i \le \min_q c_q + s,$$

    where $c_i$ counts the gradients of worker $i$ that were used and $s$ is the ``slack``. So the counts never differ
    by more than $s + 1$. With a slack of 0 everybody waits for the slowest after each piece; without a bound the rule
    is ``Asynchronous``. A worker that joins is counted as having done as many as the slowest.

    **Wins** where speeds vary from piece to piece and are alike in the long run: short delays are absorbed, and no
    gradient gets very old. **Loses** where one worker is always slow: after a while all have its speed, with stale
    gradients besides. In the long run all workers count about alike, so that unlike
    data do less harm than with ``Asynchronous``.

    **Memory**: one gradient a worker.

    Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NeurIPS 2013.
    """

    slack: int
    rounds_of_its_own: ClassVar[str] = "each worker begins anew after an update of its own"

    def __post_init__(self) -> None:
        check_fields(self)
        check_least(self, 0, "slack")

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.handed_in:
            return [Step({ticket: ONE}) for ticket in ledger.handed_in]
        most, counts = ledger.least_count + self.slack, ledger.counts
        # Who computes began with at most that count: all others with one more have to wait.
        ready, number = [], len(ledger.free) - ledger.tally.get(most + 1, 0)
        for worker in reversed(ledger.free) if number else ():  # the last to become free are those who may begin
            if counts[worker] <= most:
                ready.append(worker)
                if len(ready) == number:
                    break
        return [assign(worker) for worker in reversed(ready)]
