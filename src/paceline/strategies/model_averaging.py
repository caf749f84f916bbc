"""MA-DNN and its kin: every worker trains a model of its own, and now and then they are averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import sqrt
from typing import Literal

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Remember, Step, Work, local_steps
from paceline.strategies.aggregation import AverageModels, Outer, OuterSGD
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.handing_in import MILLION, Weights, check_rule, check_steps, handing_in, innermost
from paceline.strategies.inner import Inner, check_with_inner
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.synchronous import Synchronous

WEIGHTS = ("waits", "tokens", "age")
WINDOW = 3  # models of a worker that its speed is measured by
TINY = 1e-9  # a rounding error does not cost a step
WHO, FASTEST = "fastest worker", "fastest mini-batch"  # what is remembered


@dataclass(frozen=True)
class ModelAveraging(Strategy):
    r"""Average the workers' parameters every so many local steps (MA-DNN, local SGD).

    $$\bar w^t = \frac1K \sum_{k=1}^K w_k^t, \qquad t = \tau, 2\tau, \dots,$$

    where each of the $K$ workers made ``every`` ($\tau$) steps of the optimizer by itself, from the last average. Who
    waits for whom is the business of another rule, ``waits``: all (the paper), or the fastest of them (``FastestK``). A
    rule without common rounds (``Asynchronous``, ``Grouped``) adds what was learnt, $w \leftarrow w + \sum_k
    \alpha_k (w_k - w^{(k)})$ with $w^{(k)}$ the model that worker $k$ began with, which is the same where all began
    with $w$.

    With ``outer``, what the models have moved is a gradient for an optimizer of the server:

    $$\Delta = \sum_k \alpha_k (w - w_k), \qquad w \leftarrow \mathrm{Outer}(w, \Delta).$$

    It is an ``OuterSGD(lr, momentum, nesterov)``, or a function from parameters to a torch optimizer. ``DiLoCo``,
    ``BMUF`` and ``SlowMo`` are such settings. Its state is in checkpoints. An update without any finite model makes no
    step of it. It costs the memory of its state and of one gradient.

    ``weights`` $\alpha_k$ are those of ``waits``, equal ones as a rule. With ``tokens`` they share the same sum in
    proportion to $c_k^2 / h_k$, the samples $c_k$ that a model was trained on times the samples of each of its $h_k$
    local steps (*Decoupled DiLoCo*, where tokens are counted: samples are taken to be of one length). With ``age``
    each is divided by $\sqrt{1 + a_k}$, $a_k$ being the updates since its download, and rounded to a millionth
    (*FedBuff*); the sum is then less than 1.

    The first ``warm_up`` updates follow one local step each (*post-local SGD*): with plain SGD as the optimizer, as
    well with momentum, they are those of ``Synchronous``.

    With ``by_speed``, a worker makes $H_i = \max(1, \lfloor H v_i / \max_j v_j \rfloor)$ local steps, so that all hand
    in at about the same time: $H$ is ``every``, and the speed $v_i$ in mini-batches a second is that of the median of
    its last 3 models. Before there are so many it makes ``every``. (Liu et al., *Asynchronous local-SGD training for
    language modeling*, 2024: dynamic local updates. Their delayed Nesterov momentum is left out.) Give such models
    ``weights="tokens"``, so that each local step counts alike.

    Each worker's momentum, and whatever else its optimizer keeps, is its own and continues (``kept``), or is averaged
    with the models (``averaged``). Buffers move as the parameters do, counters by whole numbers, without an outer
    optimizer; with ``recalibrate``, the statistics of batch normalisation are found anew from so many mini-batches
    after each average (by ``torch.optim.swa_utils.update_bn``; the clock does not count this). With ``steps``, the run
    ends after so many local steps of each worker; the last piece may be shorter.

    Sun & Liu, *EC-DNN: A new method for parallel training of deep neural networks*, Eq. (1); Lin et al., *Don't use
    large mini-batches, use local SGD*, ICLR 2020 (post-local SGD).
    """

    every: int
    waits: Inner = Synchronous()  # type: ignore[assignment]
    steps: int | None = None
    momentum: Literal["kept", "averaged"] = "kept"
    recalibrate: int = 0
    outer: Outer | None = None
    weights: Literal["waits", "tokens", "age"] = "waits"
    warm_up: int = 0
    by_speed: bool = False

    def __post_init__(self) -> None:
        check_with_inner(self, "waits")
        check_steps("ModelAveraging", self.every, self.steps)
        if self.momentum not in ("kept", "averaged"):
            raise ConfigError(f"momentum={self.momentum!r} is unknown: choose kept or averaged")
        check_rule(self.waits, "ModelAveraging", needs_rounds=self.aggregation.needs_rounds)
        if self.recalibrate < 0:
            raise ConfigError(f"recalibrate={self.recalibrate} mini-batches are not possible: at least 0")
        if self.warm_up < 0:
            raise ConfigError(f"a warm-up of {self.warm_up} updates is not possible: at least 0")
        if self.outer is not None and not isinstance(self.outer, OuterSGD) and not callable(self.outer):
            raise ConfigError(
                f"outer={shown(self.outer)} is no outer optimizer: give OuterSGD(lr=0.7, momentum=0.9), or a function "
                "from parameters to a torch optimizer"
            )
        self._check_weights()
        if self.by_speed:
            self._check_by_speed()

    def _check_by_speed(self) -> None:
        if isinstance(self.waits, Grouped | Regrouped):
            raise ConfigError(
                f"by_speed=True cannot wait by {type(self.waits).__name__}: it lets workers of all speeds hand in at "
                "the same time, so that groups are not needed; choose Synchronous or Asynchronous"
            )
        if self.steps is not None:
            raise ConfigError("by_speed=True gives workers different numbers of local steps, and steps= counts them")

    def _check_weights(self) -> None:
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights={shown(self.weights)} are unknown: choose one of {', '.join(WEIGHTS)}")
        inner = innermost(self.waits)
        if self.weights == "tokens" and isinstance(inner, Asynchronous):
            raise ConfigError(
                "weights='tokens' has no effect with Asynchronous, under which every update has one model: choose "
                "weights='waits' or 'age', or another rule to wait by"
            )
        if self.weights == "age" and inner is self.waits and isinstance(inner, Synchronous | FastestK):
            raise ConfigError(
                f"weights='age' has no effect with {type(inner).__name__}, under which no model is older than an "
                "update: choose weights='waits', or Asynchronous to wait by"
            )

    @property
    def rounds(self) -> int | None:
        """How many updates a run has, if that is limited."""
        if self.steps is None:
            return None
        return min(self.steps, self.warm_up) - (-max(0, self.steps - self.warm_up) // self.every)

    @property
    def aggregation(self) -> AverageModels:
        """What becomes of the models that are handed in."""
        reason = "steps= counts the local steps of common rounds" if self.steps is not None else ""
        reason = "momentum='averaged' is that of one round's models" if self.momentum == "averaged" else reason
        return AverageModels(self.momentum, self.recalibrate, reason, self.outer)

    @property
    def weight_sum(self) -> str:
        return "at most 1" if self.weights == "age" else "1"

    def check(self, workers: int, batch_size: int | None) -> None:
        check_fits(self.waits, workers, batch_size)

    def work(self, round_: int) -> Work:
        if round_ < self.warm_up:
            return local_steps(1)
        begun = self.warm_up + (round_ - self.warm_up) * self.every
        left = self.every if self.steps is None else self.steps - begun
        return local_steps(max(1, min(self.every, left)))

    def weigh(self, ledger: Ledger, step: Step, ahead: int) -> Weights:
        if self.weights == "tokens":
            return by_tokens(step)
        return {t: weight * by_age(ledger.age(t) + ahead) for t, weight in step.weights.items()}

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        weigh = None if self.weights == "waits" else self.weigh
        if not self.by_speed:
            return handing_in(lambda part, worker: self.work(part.round), ledger, self.waits.decide(ledger), weigh)
        seconds = ledger.timed(WINDOW)
        decisions = self.waits.decide(ledger)
        assigned = [each.worker for each in decisions if isinstance(each, Assign)]
        fastest = _fastest(ledger, seconds, assigned)

        def work(part: Ledger, worker: int) -> Work:
            usual = self.work(part.round)
            if fastest is None or worker not in seconds:
                return usual
            return local_steps(max(1, int(usual.units * fastest[1] / seconds[worker] + TINY)))

        changed = handing_in(work, ledger, decisions, weigh)
        known = ledger.memory.get(WHO), ledger.memory.get(FASTEST)
        if fastest is None or fastest == known:
            return changed
        return [Remember(WHO, fastest[0]), Remember(FASTEST, fastest[1]), *changed]


def _fastest(ledger: Ledger, seconds: Mapping[int, float], assigned: Sequence[int]) -> tuple[int, float] | None:
    """The fastest worker, and its seconds for a mini-batch: the one that is remembered, or one of those assigned now.

    Its own seconds are looked at whenever it is assigned work. So nobody has to loop over the fleet.
    """
    measured = [(worker, seconds[worker]) for worker in assigned if worker in seconds]
    who = ledger.memory.get(WHO)
    if who is not None and who in ledger.workers and all(worker != who for worker, _ in measured):
        measured.append((int(who), ledger.memory[FASTEST]))
    return min(measured, key=lambda pair: (pair[1], pair[0]), default=None)


def by_tokens(step: Step) -> Weights:
    """The sum of a step's weights, shared out by the samples of each model times those of each of its local steps."""
    counts = {ticket: ticket.work.units * max(1, ticket.work.samples) ** 2 for ticket in step.weights}
    share = sum(step.weights.values(), Fraction()) / sum(counts.values())
    return {ticket: share * count for ticket, count in counts.items()}


@cache
def by_age(age: int) -> Fraction:
    r"""$1 / \sqrt{1 + a}$, rounded to a millionth."""
    return Fraction(round(MILLION / sqrt(1 + age)), MILLION)
