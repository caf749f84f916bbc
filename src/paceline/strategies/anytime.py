"""Anytime Minibatch: rounds of a fixed time, in which everybody does as much as it can."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, check_blocks, check_fields, check_least, check_most
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Recall, Remember, WakeAt, gradient
from paceline.strategies.quorum_grace import step_by_units

BEGAN = "began"  # when the round began


@dataclass(frozen=True)
class Anytime(Strategy):
    r"""Recall all workers after so many ``seconds``; each counts by what it has done of its mini-batch.

    $$w_{t+1} = w_t - \eta \sum_{i=1}^{P} \frac{b_i}{\sum_j b_j}\, g_i(w_t),$$

    where $b_i$ are the samples that worker $i$ has computed of its mini-batch, in whole ``blocks``, and $g_i$ their
    mean gradient. So the update is the mean over all samples that were computed in the round. A worker that has
    finished its mini-batch waits; when all have, the round ends early. A worker without a single block done does not
    count. How a worker answers a recall is a property of the fleet.

    **Wins** where speeds differ or vary from piece to piece: a round takes a fixed time, nothing is stale, and what was
    computed is used. **Loses** where the time of a round is badly chosen: with too little time slow workers have no
    block done and never count, with too much all wait. With unlike data fast workers count more.

    **Memory**: one gradient a worker. Mini-batches should be large enough that the fastest worker does not finish its
    own within the time.

    Ferdinand et al., *Anytime Minibatch: Exploiting Stragglers in Online Distributed Optimization*, ICLR 2019.
    """

    seconds: float
    blocks: int = 8
    gradients_only: ClassVar[str] = "a model cannot be handed in by parts"

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.seconds < math.inf:
            raise ConfigError(
                f"rounds of {self.seconds} seconds are not possible: more than 0 and finite, such as seconds=1.0"
            )
        check_most(self, MOST_SECONDS, "seconds")
        check_least(self, 1, "blocks")

    def check(self, workers: int, batch_size: int | None) -> None:
        check_blocks(self.blocks, batch_size)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            work = gradient(self.blocks)
            return [*self._begin(ledger), *(Assign(worker, work) for worker in ledger.idle)]
        if not ledger.running:
            return step_by_units(ledger)
        over = ledger.now >= ledger.memory.get(BEGAN, 0.0) + self.seconds
        if over and len(ledger.recalled) < len(ledger.running):
            return [Recall(ticket) for ticket in ledger.running.values() if ticket not in ledger.recalled]
        return []

    def _begin(self, ledger: Ledger) -> list[Decision]:
        """A round begins when nobody computes and nothing was handed in for it."""
        if ledger.running or ledger.handed_in:
            return []
        ends = ledger.now + self.seconds
        began: list[Decision] = [Remember(BEGAN, ledger.now)]
        return began if ends in ledger.alarms else [*began, WakeAt(ends)]
