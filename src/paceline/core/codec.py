"""Tickets and numbers as plain values for a file, and back; what is not what it should be raises ``ValueError``."""

import math
from collections.abc import Mapping
from typing import Any

from paceline.core.fields import shown
from paceline.core.messages import Ticket, Work

MOST_WORKERS = 1_000_000  # of any run: no more memory is taken because somebody, or a file, says so
MOST_METRICS, LONGEST_NAME = 1000, 100  # of one evaluation of a model


def plain_ticket(ticket: Ticket) -> list[Any]:
    serial, worker, version, (kind, units, samples) = ticket
    return [serial, worker, version, kind, units, *([samples] if samples else [])]


def ticket_from(value: Any) -> Ticket:
    serial, worker, version, kind, units, *samples = value
    if not isinstance(kind, str):
        raise ValueError(f"{kind!r} is no kind of work")
    work = Work(kind, whole(units), *map(whole, samples))  # where all mini-batches have one size, nothing is told of it
    return Ticket(whole(serial), whole(worker), whole(version), work)


def whole(value: Any) -> int:
    """A whole number of at least 0."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def real(value: Any) -> float:
    """A finite number, and no larger than a float can be."""
    try:
        finite = type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        finite = False
    if not finite:
        raise ValueError(f"{shown(value)} is no finite number")
    number: float = value
    return number


def check_names(metrics: Any) -> Mapping[str, Any]:
    """A mapping whose keys can be the names of metrics; else ``ValueError`` says what is wrong with it."""
    if not isinstance(metrics, Mapping):
        raise ValueError(f"{type(metrics).__name__}, not a mapping from names to numbers")
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"{len(metrics)} metrics: at most {MOST_METRICS} are kept")
    for name in metrics:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise ValueError(f"{shown(name)} as the name of a metric: give a text of 1 to {LONGEST_NAME} characters")
    return metrics
