"""Gradient coding by repetition: several workers compute the same, and the first answer counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Groups, Step, assign, mean
from paceline.strategies.grouped import check_complete, disjoint


@dataclass(frozen=True)
class Replicated(Strategy):
    r"""Let the workers of each group compute the same mini-batches; the first answer of each group is enough.

    $$w_{t+1} = w_t - \frac{\eta}{G} \sum_{k=1}^{G} g_k(w_t),$$

    where $g_k$ is the gradient of the mini-batch of group $k$ of the ``groups`` ($G$ of them), by whichever of its
    workers is the first. The others are stopped. The data are dealt out to groups, not to workers: the rule is
    ``Synchronous`` on $G$ workers, each as fast and as reliable as the best of its group at the moment. Groups have the
    same size $r$, so that any $r - 1$ workers may be late or lost.

    The model is that of ``Synchronous`` on as many workers as there are groups, bit for bit if each group has
    consecutive workers, as long as one worker of each group is left, and if the model draws no random numbers (a
    replica draws its own).

    **Wins** where workers fail or stall for long, and their data must not be lost. **Loses** where workers are steady:
    only one in $r$ computes anything that counts.

    **Memory**: one gradient a worker; each worker needs the data of its whole group.

    Tandon et al., *Gradient Coding: Avoiding Stragglers in Distributed Learning*, ICML 2017 (fractional repetition).
    """

    groups: Sequence[Sequence[int]]
    gradients_only: ClassVar[str] = "replicas compute the same gradients, and models have states of their own"
    whole_fleet: ClassVar[str] = "its groups name workers of the whole fleet, and share their data"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "groups", disjoint(self.groups))
        sizes = sorted({len(group) for group in self.groups})
        if not sizes:
            raise ConfigError("replicas need at least one group: give groups=[[0, 1], [2, 3]]")
        if len(sizes) > 1:
            raise ConfigError(
                f"replicated groups of {sizes[0]} and of {sizes[-1]} workers would not be equally safe: give all "
                f"groups the same size, such as {sizes[0]}"
            )

    def check(self, workers: int, batch_size: int | None) -> None:
        check_complete(self.groups, workers)

    @property
    def replicas(self) -> Groups:
        """Who computes the same mini-batches."""
        assert isinstance(self.groups, tuple)
        return self.groups

    @cached_property
    def _group_of(self) -> dict[int, tuple[int, ...]]:
        return {worker: group for group in self.replicas for worker in group}

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.handed_in and (stopped := self._stop_others(ledger)):
            return stopped
        if ledger.running:
            return []
        if ledger.fresh:
            return [Step(mean(ledger.fresh))]
        return [assign(worker) for worker in ledger.idle]

    def _stop_others(self, ledger: Ledger) -> list[Decision]:
        """Whoever computes what somebody of its group has just handed in. Groups that came before are stopped already.

        Of two that hand in at one instant, the one that is told last is dropped.
        """
        running, own = ledger.running, ledger.holding
        found: list[Decision] = []
        dropped: dict[tuple[int, ...], int] = {}
        for ticket in reversed(ledger.handed_in):
            group, held, others = self._group_of[ticket.worker], 0, []
            for worker in group:
                if worker in running:
                    others.append(Drop(running[worker]))
                held += own.get(worker, 0)
            if held - dropped.get(group, 0) > 1:
                found.append(Drop(ticket))
                dropped[group] = dropped.get(group, 0) + 1
                continue
            if not others and group not in dropped:
                break
            found += others
        return found
