"""LGC-SGD: update with the fastest, and make up for the late ones one update later."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.fields import check_blocks, check_fields, check_quorum
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Drop, Recall, Step, Ticket, fraction, gradient, mean, samples_of


@dataclass(frozen=True)
class LiveCompensation(Strategy):
    r"""Step on the first ``quorum`` gradients; make up for the late ones, who hand in what they have, one step later.

    $$\tilde g_t = \tilde g'_t + e_{t-1}, \qquad \tilde g'_t = \frac1K \sum_{i \in S_t} g_t^{(i)}, \qquad
    e_t = \frac1N \sum_{i \notin S_t} g_t^{(i)} - \frac{N-K}{N}\, \tilde g'_t,$$

    where $S_t$ are the first ``quorum`` ($K$) of the $N$ workers that take part in round $t$ (LGC-SGD). Over its life
    every gradient so carries the total weight $1/N$: $\frac1K - \frac{N-K}{N}\frac1K$ if it was among the first, and
    $1/N$ if late. Where workers have mini-batches of unequal sizes, they are counted by samples: $K$ are those of
    $S_t$, $N$ those of all, and a gradient of $b_i$ samples carries $b_i/N$.

    A mini-batch is computed in ``blocks`` ($s$; the paper has 4). With ``recall``, late workers hand in the blocks they
    have ($r$) when the round ends, as the fleet lets them: ``complete``, ``block`` or ``abandon``; without it they
    finish first. Of a single block there is nothing to hand in before its end: it needs a fleet that is ``complete``.
    Partial gradients count $\frac rs \cdot \frac1r\sum_{k \le r} g[k]$ with ``scale`` (Eq. 6), the plain mean of the
    $r$ blocks without; a worker with no block done then counts as the mean of the fastest. The first ``warm_up`` rounds
    wait for everybody. The $K$ gradients of the last round are kept for one round more. A worker that announces that it
    is leaving is recalled at once, and is one of the late if some of its blocks are missing.

    Xu, *Live Gradient Compensation for Evading Stragglers in Distributed Learning*, Alg. 1, Eqs. (6), (7).
    """

    quorum: int
    blocks: int = 4
    recall: bool = True
    scale: bool = True
    warm_up: int = 0
    gradients_only: ClassVar[str] = "a model cannot be handed in by parts, nor made up for one round later"

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, workers: int, batch_size: int | None) -> None:
        check_quorum(self.quorum, workers)
        check_blocks(self.blocks, batch_size)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        wanted: list[Decision] = []
        if self.recall and len(ledger.behind) > len(ledger.recalled):
            wanted += [Recall(ticket) for ticket in ledger.behind if ticket not in ledger.recalled]
        if self.recall and ledger.leaving:
            own = [ledger.running[worker] for worker in ledger.leaving if worker in ledger.running]
            wanted += [Recall(ticket) for ticket in own if ticket not in {*ledger.behind, *ledger.recalled}]
        if ledger.idle:
            work = gradient(self.blocks)
            wanted += [Assign(worker, work) for worker in ledger.idle]
        if wanted:
            return wanted
        everybody = ledger.round < self.warm_up
        may_step = len(ledger.fresh) >= self.quorum and not everybody and not ledger.behind
        if ledger.running and not may_step:
            return []
        whole = [ticket for ticket, done in ledger.fresh.items() if done == ticket.work.units]
        if ledger.running and len(whole) < self.quorum:
            return []
        if not whole:  # and nobody is there to make up one round later for what those who left have handed in
            return [Drop(ticket) for ticket in ledger.fresh]
        return self._step(ledger, tuple(whole if everybody else islice(whole, self.quorum)))

    def _step(self, ledger: Ledger, fastest: Sequence[Ticket]) -> Sequence[Decision]:
        some_are_late = len(ledger.running) + len(ledger.fresh) > len(fastest)
        weights = mean(fastest) | self._compensation(ledger)
        keep = fastest if some_are_late else ()
        unused = [ticket for ticket in (*ledger.late, *ledger.kept) if ticket not in weights]
        return [*(Drop(ticket) for ticket in unused), Step(weights, keep)]

    def _compensation(self, ledger: Ledger) -> dict[Ticket, Fraction]:
        """$e_{t-1}$, from what the last round's late workers handed in and what was kept of its fastest."""
        late, kept = ledger.late, ledger.kept
        if not late or not kept:
            return {}
        of_late, of_kept = samples_of(late), samples_of(kept)
        taking_part = of_late + of_kept
        missing = 0 if self.scale else samples_of([ticket for ticket, done in late.items() if not done])
        weights = {
            ticket: fraction((missing - of_late) * (ticket.work.samples or 1), taking_part * of_kept) for ticket in kept
        }
        for ticket, done in late.items():
            if done:
                units = ticket.work.units if self.scale else done
                weights[ticket] = fraction(done * (ticket.work.samples or 1), units * taking_part)
        return weights
