"""A quorum, then a window of grace: what comes later counts in the next update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, check_fields, check_most, check_quorum
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Remember, Step, Ticket, WakeAt, assign, fraction

DUE = "due"  # when the window of the current round closes; negative while it is not open


@dataclass(frozen=True)
class QuorumGrace(Strategy):
    r"""Wait for ``quorum`` contributions, then ``grace`` seconds for more; late ones count in the next update.

    $$w_{t+1} = w_t - \eta \sum_{i \in S_t} \frac{u_i}{\sum_{j \in S_t} u_j}\, g_i(w_{t-\tau_i}),$$

    where $S_t$ has all that was handed in and not used when the window closes, and $u_i$ are the units of work done
    (blocks or local steps, times the samples of a mini-batch where workers have sizes of their own). The window opens
    when the ``quorum``-th contribution is there, and closes after ``grace`` seconds, or when nobody computes any more.
    Who handed in waits for the update. A late worker goes on, hands in, and begins the current round at once; nothing
    of its work is lost. With a grace of 0 an update is made as soon as the quorum is there; with fewer workers than the
    quorum, when all are there.

    A piece of work counts once, however long it took. So a worker that needs two rounds for a piece counts half as
    much as the others: who misses the window always is under-represented, and all count alike only where the window is
    long enough for everybody, or who is late changes.

    **Wins** where a few workers are late now and then, and their data matter: every piece of work is used once, so that
    slow workers are not left out. **Loses** against ``Buffered`` where most workers wait for the window, and against
    ``Synchronous`` where nobody is late.

    **Memory**: at most two contributions a worker, a late one and that of the current round.

    Its waiting is that of Douillard et al., *Decoupled DiLoCo for Resilient Distributed Pre-training*, 2026, whose
    window adapts itself to the slack of communication; here it is fixed.
    """

    quorum: int
    grace: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.grace < math.inf:
            raise ConfigError(f"a grace of {self.grace} seconds is not possible: at least 0 and finite (nearest 0)")
        check_most(self, MOST_SECONDS, "grace")

    def check(self, workers: int, batch_size: int | None) -> None:
        check_quorum(self.quorum, workers)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            return [assign(worker) for worker in ledger.idle]
        arrived = ledger.handed_in
        if not arrived or (ledger.running and len(arrived) < self.quorum):
            return []
        due = ledger.memory.get(DUE, -1.0)
        if ledger.running and self.grace:
            if due < 0:
                opened: list[Decision] = [Remember(DUE, ledger.now + self.grace)]
                closes = ledger.now + self.grace
                return opened if closes in ledger.alarms else [*opened, WakeAt(closes)]
            if ledger.now < due:
                return []
        closed = [Remember(DUE, -1.0)] if due >= 0 else []
        return [*closed, *step_by_units(ledger)]


def step_by_units(ledger: Ledger) -> list[Decision]:
    """A step on all that was handed in, weighed by the units done. Of what nothing was done is dropped."""
    done = {ticket: ledger.fresh.get(ticket, 0) or ledger.late.get(ticket, 0) for ticket in ledger.handed_in}
    units = {ticket: count * (ticket.work.samples or 1) for ticket, count in done.items() if count}
    empty: list[Decision] = [Drop(ticket) for ticket in done if ticket not in units]
    total = sum(units.values())
    weights: dict[Ticket, Fraction] = {ticket: fraction(own, total) for ticket, own in units.items()}
    return [*empty, Step(weights)] if weights else empty
