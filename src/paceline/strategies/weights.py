"""Exact weights that several rules share."""

from collections.abc import Collection
from fractions import Fraction

from paceline.core.facts import Ticket


def mean(tickets: Collection[Ticket]) -> dict[Ticket, Fraction]:
    """The same weight for each, one in all: a step's size means the same however many took part in it."""
    return dict.fromkeys(tickets, Fraction(1, len(tickets)))
