"""Rules as a user would write them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.strategy import Assign, Decision, Ledger, Step, Strategy, Work


@dataclass(frozen=True)
class Together(Strategy):
    """All do the same work, and the mean of what they hand in is the next model."""

    work: Work

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.fresh and len(ledger.fresh) == len(ledger.workers):
            return [Step(dict.fromkeys(ledger.fresh, Fraction(1, len(ledger.fresh))))]
        return [Assign(worker, self.work) for worker in ledger.idle]
