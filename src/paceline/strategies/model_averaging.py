"""MA-DNN: every worker trains a model of its own, and now and then they are averaged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Work, local_steps
from paceline.strategies.aggregation import AverageModels
from paceline.strategies.handing_in import check_rule, check_steps, handing_in
from paceline.strategies.inner import Inner, check_with_inner
from paceline.strategies.synchronous import Synchronous


@dataclass(frozen=True)
class ModelAveraging(Strategy):
    r"""Average the workers' parameters every so many local steps (MA-DNN, local SGD).

    $$\bar w^t = \frac1K \sum_{k=1}^K w_k^t, \qquad t = \tau, 2\tau, \dots,$$

    where each of the $K$ workers made ``every`` ($\tau$) steps of the optimizer by itself, from the last average. Who
    waits for whom is the business of another rule, ``waits``: all (the paper), or the fastest of them (``FastestK``). A
    rule without common rounds (``Asynchronous``, ``Grouped``) adds what was learnt, $w \leftarrow w + \sum_k
    \alpha_k (w_k - w^{(k)})$ with $w^{(k)}$ the model that worker $k$ began with, which is the same where all began
    with $w$.

    Each worker's momentum, and whatever else its optimizer keeps, is its own and continues (``kept``), or is averaged
    with the models (``averaged``). Buffers move as the parameters do, counters by whole numbers; with
    ``recalibrate``, the statistics of batch normalisation are found anew from so many mini-batches after each average
    (by ``torch.optim.swa_utils.update_bn``; the clock does not count this). With ``steps``, the run ends after so many
    local steps of each worker; the last piece may be shorter.

    Sun & Liu, *EC-DNN: A new method for parallel training of deep neural networks*, Eq. (1).
    """

    every: int
    waits: Inner = Synchronous()  # type: ignore[assignment]
    steps: int | None = None
    momentum: Literal["kept", "averaged"] = "kept"
    recalibrate: int = 0

    def __post_init__(self) -> None:
        check_with_inner(self, "waits")
        check_steps("ModelAveraging", self.every, self.steps)
        if self.momentum not in ("kept", "averaged"):
            raise ConfigError(f"momentum={self.momentum!r} is unknown: choose kept or averaged")
        check_rule(self.waits, "ModelAveraging", needs_rounds=self.aggregation.needs_rounds)
        if self.recalibrate < 0:
            raise ConfigError(f"recalibrate={self.recalibrate} mini-batches are not possible: at least 0")

    @property
    def rounds(self) -> int | None:
        """How many updates a run has, if that is limited."""
        return None if self.steps is None else -(-self.steps // self.every)

    @property
    def aggregation(self) -> AverageModels:
        """What becomes of the models that are handed in."""
        reason = "steps= counts the local steps of common rounds" if self.steps is not None else ""
        reason = "momentum='averaged' is that of one round's models" if self.momentum == "averaged" else reason
        return AverageModels(self.momentum, self.recalibrate, reason)

    def check(self, workers: int, batch_size: int | None) -> None:
        check_fits(self.waits, workers, batch_size)

    def work(self, round_: int) -> Work:
        left = self.every if self.steps is None else self.steps - round_ * self.every
        return local_steps(max(1, min(self.every, left)))

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return handing_in(self.work, ledger, self.waits.decide(ledger))
