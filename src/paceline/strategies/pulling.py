"""FedAsync and EASGD: models that pull the server's model towards themselves, and are pulled back."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Step, local_steps
from paceline.strategies.aggregation import AverageModels
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.handing_in import MILLION, Weights, check_rule, check_steps, handing_in
from paceline.strategies.inner import check_with_inner
from paceline.strategies.synchronous import Synchronous

ELASTICITY = Fraction(9, 10)  # of all workers together


@dataclass(frozen=True)
class FedAsync(Strategy):
    r"""Mix each model that arrives into the server's, the less the older it is (FedAsync).

    $$w \leftarrow (1 - \alpha_a)\, w + \alpha_a w_i, \qquad \alpha_a = \alpha\,(1 + a)^{-d},$$

    where worker $i$ made ``every`` local steps from the model that it downloaded, $a$ updates ago, with ``mixing``
    ($\alpha$) and ``decay`` ($d$; 0: the age does not matter). $\alpha_a$ is rounded to a millionth. With another rule
    than ``Asynchronous`` in ``waits``, its weights are multiplied by $\alpha_a$. The model itself is mixed in, not what
    it has learnt since its download: an old one pulls back what the others did meanwhile. So it forgives large
    ``every`` and stale models better than ``ModelAveraging(waits=Asynchronous())``, and learns more slowly. The paper's
    proximal term in the workers' loss is left out.

    Xie, Koyejo & Gupta, *Asynchronous federated optimization*, 2019, Alg. 1, polynomial weights.
    """

    every: int
    mixing: float = 0.9
    decay: float = 0.5
    waits: Strategy = Asynchronous()

    aggregation: ClassVar[AverageModels] = AverageModels(combines="models")
    weight_sum: ClassVar[str] = "mixing, and less with age"

    def __post_init__(self) -> None:
        check_with_inner(self, "waits")
        check_steps("FedAsync", self.every, None)
        check_rule(self.waits, "FedAsync")
        if not 0 < self.mixing <= 1:
            near = 1 if self.mixing > 1 else 0.1
            raise ConfigError(f"mixing={self.mixing} is not possible: above 0 and at most 1 (nearest {near})")
        if not 0 <= self.decay < float("inf"):
            raise ConfigError(f"decay={self.decay} is not possible: at least 0 (nearest 0), such as 0.5")

    def check(self, workers: int, batch_size: int | None) -> None:
        check_fits(self.waits, workers, batch_size)

    def weigh(self, ledger: Ledger, step: Step, ahead: int) -> Weights:
        ages = {ticket: ledger.age(ticket) + ahead for ticket in step.weights}
        mixed = {
            t: Fraction(round(MILLION * self.mixing * (1 + age) ** -self.decay), MILLION) for t, age in ages.items()
        }
        return {ticket: weight * mixed[ticket] for ticket, weight in step.weights.items()}

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return handing_in(lambda part, worker: local_steps(self.every), ledger, self.waits.decide(ledger), self.weigh)


@dataclass(frozen=True)
class EASGD(Strategy):
    r"""Link the workers' models to the server's by an elastic force, both ways (elastic averaging SGD).

    $$w_i \leftarrow w_i - \alpha\,(w_i - \tilde w), \qquad \tilde w \leftarrow \tilde w + \alpha\,(w_i - \tilde w),$$

    both with the values before the exchange, which worker $i$ makes after every ``every`` ($\tau$) local steps.
    Afterwards it continues from its own $w_i$, not from the server's $\tilde w$, and so explores further from it than
    under averaging. ``elasticity`` is $\alpha$; unless given $0.9 / P$, with $P$ workers at hand: the paper's
    experiments have $\beta = 0.9$ (Sec. 5), and the authors' program $\alpha = \beta / P$, with $\tau = 100$ (mpiT,
    ``asyncsgd/mlaunch.lua``). TensorFlow's ``ElasticAverageOptimizer`` has $0.9 / (\tau P)$, a weaker force. ``waits``
    decides who exchanges together: nobody waits (asynchronous EASGD), or ``Synchronous`` (all use the same
    $\tilde w$). Momentum of the workers' optimizer makes it EAMSGD.

    Every worker's model has to be kept, as in any run in which workers hand in models; a model that is not finite is
    left out, and its worker continues from the server's. Workers explore more and the server's model moves less with
    every exchange than under averaging: it wins where ``every`` is long, and is slower at first.

    Zhang, Choromanska & LeCun, *Deep learning with elastic averaging SGD*, NeurIPS 2015, Alg. 1 and 2.
    """

    every: int
    elasticity: float | None = None
    waits: Strategy = Asynchronous()

    aggregation: ClassVar[AverageModels] = AverageModels(combines="elastic")
    weight_sum: ClassVar[str] = "the elasticity of each model"

    def __post_init__(self) -> None:
        check_with_inner(self, "waits")
        check_steps("EASGD", self.every, None)
        check_rule(self.waits, "EASGD")
        if self.elasticity is not None and not 0 < self.elasticity < 1:
            near = 0.99 if self.elasticity >= 1 else 0.01
            raise ConfigError(f"elasticity={self.elasticity} is not possible: above 0 and below 1 (nearest {near})")

    def check(self, workers: int, batch_size: int | None) -> None:
        check_fits(self.waits, workers, batch_size)
        if self.elasticity is not None and isinstance(self.waits, Synchronous) and self.elasticity * workers > 1:
            raise ConfigError(
                f"elasticity={self.elasticity} of {workers} workers at once moves the server's model beyond theirs: at "
                f"most {1 / workers:g}, or wait by Asynchronous"
            )

    def weigh(self, ledger: Ledger, step: Step, ahead: int) -> Weights:
        fixed = self.elasticity
        pull = ELASTICITY / max(1, len(ledger.workers)) if fixed is None else Fraction(round(MILLION * fixed), MILLION)
        return dict.fromkeys(step.weights, pull)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return handing_in(lambda part, worker: local_steps(self.every), ledger, self.waits.decide(ledger), self.weigh)
