"""All that the author of a rule imports: the ledger that a rule reads, and the decisions that it makes.

    from paceline.strategy import Assign, Decision, Ledger, Step, Strategy

A rule is a frozen dataclass with one method, ``decide``; ``paceline.testing.StrategyContract`` checks it.
"""

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError, IllegalDecision, ImpossibleEvent
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Event,
    Groups,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Resize,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
    distilled_steps,
    gradient,
    local_steps,
    mean,
)
from paceline.strategies.aggregation import AverageModels, EnsembleModels

__all__ = [
    "Arrived", "Assign", "AverageModels", "ConfigError", "Decision", "Drop", "EnsembleModels", "Event", "Groups",
    "IllegalDecision", "ImpossibleEvent", "Joined", "Leaving", "Ledger", "Left", "Rang", "Recall", "Regroup",
    "Remember", "Resize", "Step", "Strategy", "Ticket", "WakeAt", "Within", "Work", "distilled_steps", "gradient",
    "local_steps", "mean",
]  # fmt: skip
