"""AdaComm: averages become more frequent as the loss falls."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Remember, local_steps
from paceline.strategies.aggregation import AverageModels
from paceline.strategies.handing_in import check_rule, check_steps, handing_in
from paceline.strategies.inner import check_with_inner
from paceline.strategies.synchronous import Synchronous

# what is remembered: the reports that were taken in, the sum and number of their losses, the first mean, the interval
SEEN, SUM, COUNT, FIRST, EVERY = "reports", "sum of losses", "losses", "first loss", "every"


@dataclass(frozen=True)
class AdaComm(Strategy):
    r"""Average models seldom at first, and the more often the lower the training loss (adaptive communication).

    $$H_l = \left\lceil H_0 \sqrt{F_l / F_0} \right\rceil,$$

    where $H_0$ = ``every`` are the local steps between two averages at first, $F_0$ is the mean training loss over the
    first ``interval`` updates, and $F_l$ that over the last complete one. $H$ is set anew after each interval. Long
    intervals are cheap, but end at a higher loss; so the first updates save time, and the last ones precision.

    **Wins** where exchanging models takes long and a low loss is wanted. **Loses** against a fixed ``every`` where the
    loss hardly falls, or falls to nearly 0 at once, so that every step is followed by an average.

    It goes by the loss of the mini-batches that workers trained on, which learning tells after each update: work that
    is given out at the same moment still has the former $H$. So it needs a model, and ``simulate`` refuses it. The
    paper's intervals are of wall-clock time; its factor for changed learning rates, and its shrinking by a constant
    when the loss does not fall, are left out. That intervals are to each other as the square roots of the losses is
    known from a summary of the authors' talk (SysML 2019); the paper's own text was not at hand. PaddlePaddle's
    adaptive local SGD is another rule, $\lceil \sqrt{H_0 F_l / F_0} \rceil$ at equal learning rates.

    Wang & Joshi, *Adaptive communication strategies to achieve the best error-runtime trade-off in local-update SGD*,
    2019.
    """

    every: int
    interval: int = 10
    waits: Strategy = Synchronous()

    aggregation: ClassVar[AverageModels] = AverageModels()
    reports: ClassVar[tuple[str, ...]] = ("loss",)
    whole_fleet: ClassVar[str] = "it goes by the training loss of all workers"

    def __post_init__(self) -> None:
        check_with_inner(self, "waits")
        check_steps("AdaComm", self.every, None)
        check_rule(self.waits, "AdaComm")
        if self.interval < 1:
            raise ConfigError(f"an interval of {self.interval} updates is not possible: at least 1 (nearest 1)")

    def check(self, workers: int, batch_size: int | None) -> None:
        check_fits(self.waits, workers, batch_size)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.reports > ledger.memory.get(SEEN, 0):
            return self._take_in(ledger)
        every = local_steps(int(ledger.memory.get(EVERY, self.every)))
        return handing_in(lambda part, worker: every, ledger, self.waits.decide(ledger))

    def _take_in(self, ledger: Ledger) -> Sequence[Decision]:
        seen: list[Decision] = [Remember(SEEN, ledger.reports)]
        loss = ledger.report.get("loss")
        if loss is None:
            return seen
        total, count = ledger.memory.get(SUM, 0.0) + loss, ledger.memory.get(COUNT, 0) + 1
        if count < self.interval:
            return [*seen, Remember(SUM, total), Remember(COUNT, count)]
        mean, first = total / count, ledger.memory.get(FIRST)
        seen += [Remember(SUM, 0.0), Remember(COUNT, 0)]
        return [*seen, Remember(FIRST, mean) if first is None else Remember(EVERY, self.after(mean, first))]

    def after(self, loss: float, first: float) -> int:
        """The local steps between two averages at this loss."""
        return max(1, ceil(self.every * sqrt(max(0.0, loss / first)))) if first else 1
