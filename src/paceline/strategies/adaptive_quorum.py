"""K-SGD with a quorum that grows as learning comes to a standstill."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields, check_least, check_quorum
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Remember
from paceline.strategies.fastest_k import FastestK

QUORUM, BALANCE, SINCE, SEEN = "quorum", "balance", "since", "seen"


@dataclass(frozen=True)
class AdaptiveQuorum(Strategy):
    r"""``FastestK`` with a quorum that is raised when successive gradients begin to point against each other.

    $$K \leftarrow \min(K + k, K_{\max}) \quad\text{when}\quad b > \theta, \qquad
    b \leftarrow \max\left(0,\; b - \operatorname{sign}\langle g_t, g_{t-1} \rangle\right),$$

    where $g_t$ is the combined gradient of update $t$. As long as the model moves towards a minimum, successive
    gradients point the same way, and few of them (``quorum``, to begin with) are enough. Once noise outweighs progress,
    their inner product is negative as often as not, the balance $b$ exceeds ``patience`` ($\theta$), and ``step`` ($k$)
    more workers are waited for, up to ``largest`` ($K_{\max}$; by default all). Then $b$ is 0 again, and at least
    ``burn_in`` updates pass before the next rise. The quorum never falls. Late workers are stopped and their work is
    dropped.

    The inner product is a number that learning tells after each update: the rule needs a model, and ``simulate`` and
    ``predict`` refuse it.

    **Wins** where slowness is random and short: rounds are short at first, when noise does not matter, and precise at
    the end. **Loses** as ``FastestK`` does where the same workers are always late and have other data; and where the
    learning rate falls anyway.

    **Memory**: one gradient a worker, and that of the last update.

    Kas Hanna et al., *Adaptive Distributed Stochastic Gradient Descent for Minimizing Delay in the Presence of
    Stragglers*, ICASSP 2020. That the balance does not fall below 0, and the defaults, are Paceline's choices.
    """

    quorum: int = 1
    step: int = 1
    patience: int = 10
    burn_in: int = 20
    largest: int | None = None
    reports: ClassVar[tuple[str, ...]] = ("inner",)
    gradients_only: ClassVar[str] = "it goes by the inner product of successive gradients"
    whole_fleet: ClassVar[str] = "it goes by the updates of the model, and a part of the fleet makes only some of them"

    def __post_init__(self) -> None:
        check_fields(self)
        check_least(self, 1, "quorum", "step", "patience")
        check_least(self, 0, "burn_in")
        if self.largest is not None and self.largest < self.quorum:
            raise ConfigError(
                f"a largest quorum of {self.largest} is below the first one of {self.quorum}: at least {self.quorum}"
            )

    def check(self, workers: int, batch_size: int | None) -> None:
        check_quorum(self.quorum, workers)
        if self.largest is not None:
            check_quorum(self.largest, workers)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        memory = ledger.memory
        if ledger.reports > memory.get(SEEN, 0):
            return self._learn(ledger)
        return _fastest(int(memory.get(QUORUM, self.quorum))).decide(ledger)

    def _learn(self, ledger: Ledger) -> list[Decision]:
        memory = ledger.memory
        seen: list[Decision] = [Remember(SEEN, ledger.reports)]
        if (inner := ledger.report.get("inner")) is None:
            return seen
        balance = max(0, memory.get(BALANCE, 0) + (1 if inner < 0 else -1))
        quorum, waited = memory.get(QUORUM, self.quorum), ledger.reports - memory.get(SINCE, 0)
        largest = self.largest or max(len(ledger.workers), int(quorum))
        if balance > self.patience and waited > self.burn_in and quorum < largest:
            raised = min(quorum + self.step, largest)
            return [*seen, Remember(BALANCE, 0), Remember(SINCE, ledger.reports), Remember(QUORUM, raised)]
        return seen if balance == memory.get(BALANCE, 0) else [*seen, Remember(BALANCE, balance)]


@lru_cache(maxsize=64)
def _fastest(quorum: int) -> FastestK:
    return FastestK(quorum)
