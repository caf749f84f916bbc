"""What becomes of models that workers hand in: settings that a rule may give by its attribute ``aggregation``.

What workers do is decided by the work that a rule assigns. After ``local_steps`` their models are averaged, after
``distilled_steps`` they make an ensemble, with the defaults of this file. A rule that wants other settings, or an
ensemble of models after ``local_steps``, has an attribute or property ``aggregation`` with one of the values below.
"""

from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import ConfigError


@dataclass(frozen=True)
class AverageModels:
    """Average the workers' parameters, as in ``ModelAveraging``, whose docstring has the fields.

    ``needs_rounds`` says why all models of an update have to be of one round, if they have to.
    """

    momentum: Literal["kept", "averaged"] = "kept"
    recalibrate: int = 0
    needs_rounds: str = ""


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
