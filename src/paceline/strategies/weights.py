"""Exact weights that several rules share."""

from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache

from paceline.core.messages import Ticket

# The same few weights come back in every round, and making one costs more than all else that a rule does.
fraction = lru_cache(maxsize=4096)(Fraction)


def mean(tickets: Collection[Ticket]) -> dict[Ticket, Fraction]:
    """The same weight for each, one in all: a step's size means the same however many took part in it."""
    return dict.fromkeys(tickets, fraction(1, len(tickets)))
