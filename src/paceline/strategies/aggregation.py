"""What becomes of models that workers hand in: settings that a rule may give by its attribute ``aggregation``.

What workers do is decided by the work that a rule assigns. After ``local_steps`` their models are averaged, after
``distilled_steps`` they make an ensemble, with the defaults of this file. A rule that wants other settings, or an
ensemble of models after ``local_steps``, has an attribute or property ``aggregation`` with one of the values below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields


@dataclass(frozen=True)
class OuterSGD:
    r"""``torch.optim.SGD`` as the outer optimizer of ``ModelAveraging``, as a value that a file can hold.

    $$b \leftarrow \mu b + \Delta, \qquad w \leftarrow w - \eta\,(\Delta + \mu b)
    \quad\text{(with ``nesterov``; else } w - \eta\, b),$$

    where $\Delta = \sum_k \alpha_k (w - w_k)$, with ``lr`` ($\eta$) and ``momentum`` ($\mu$; None: $1 - 1/N$ for the
    run's $N$ workers). With ``lr=1`` and no momentum the new model is the mean of the workers' models, to the last bit.
    """

    lr: float = 0.7
    momentum: float | None = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.lr < float("inf"):
            raise ConfigError(f"an outer learning rate of {self.lr} is not possible: above 0, such as 0.7")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            near = 0.0 if self.momentum < 0 else 0.99
            raise ConfigError(
                f"an outer momentum of {self.momentum} is not possible: at least 0 and below 1 (nearest {near:g})"
            )


Outer = OuterSGD | Callable[[Any], Any]  # or a function from parameters to a torch optimizer


@dataclass(frozen=True)
class AverageModels:
    """Average the workers' parameters, as in ``ModelAveraging``, whose docstring has the fields.

    needs_rounds  why all models of an update have to be of one round, if they have to
    combines      what an update does with its weights: it adds the ``changes`` of the models since their
                  download; or pulls the model towards the ``models`` themselves, as in ``FedAsync``; or, ``elastic``,
                  does so and pulls each of them back, which then continues from there, as in ``EASGD``
    """

    momentum: Literal["kept", "averaged"] = "kept"
    recalibrate: int = 0
    needs_rounds: str = ""
    outer: Outer | None = None
    combines: Literal["changes", "models", "elastic"] = "changes"


@dataclass(frozen=True)
class EnsembleModels:
    """Make an ensemble of the workers' models, as in ``EnsembleCompression``, whose docstring has the other fields.

    compressed       how many steps of ``distilled_steps`` distil the ensemble; by default all
    exchanges_twice  does every other update only follow a compression?
    rounds           how many updates the run has, if that is limited: the last one fits the final coefficients
    """

    weights: Literal["simple", "regression", "margin"] = "simple"
    compressed: int | None = None
    distillation: float = 0.4
    diversity: float = 0.0
    relabel: float = 0.7
    exchanges_twice: bool = False
    rounds: int | None = None
    pooled: bool = False
    non_negative: bool = False
    squared: bool = False
    same_start: bool = False
    needs_rounds: str = "an ensemble is made of models of one round"

    def distils(self, steps: int) -> int:
        """How many of so many ``distilled_steps`` distil the ensemble."""
        return steps if self.compressed is None else min(self.compressed, steps)


Aggregation = AverageModels | EnsembleModels
DEFAULTS: dict[str, Aggregation] = {"local_steps": AverageModels(), "distilled_steps": EnsembleModels()}


def aggregation_of(strategy: object, kind: str) -> Aggregation:
    """What a rule that first assigns work of this kind wants to be made of the models."""
    wanted = getattr(strategy, "aggregation", None)
    if wanted is None:
        return DEFAULTS[kind]
    if not isinstance(wanted, AverageModels | EnsembleModels):
        raise ConfigError(
            f"{type(strategy).__name__}.aggregation is {wanted!r}: give AverageModels(...) or EnsembleModels(...)"
        )
    return wanted
