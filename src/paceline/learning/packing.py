"""Tickets with what belongs to them as a few plain lists and one array, for a checkpoint."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from paceline.core.codec import plain_ticket, ticket_from, whole
from paceline.core.messages import Ticket
from paceline.data.partition import Indices


def pack_samples(samples: Mapping[Ticket, Indices]) -> dict[str, Any]:
    """The samples of each ticket, in one array: thousands of small ones would be slow to write."""
    return {
        "tickets": pack_tickets(samples),
        "counts": [len(indices) for indices in samples.values()],
        "indices": np.concatenate([np.zeros(0, dtype=np.int64), *samples.values()]),
    }


def unpack_samples(state: Mapping[str, Any], data_samples: int) -> dict[Ticket, Indices]:
    """The samples of each ticket, all of which a data set of that size has."""
    counts, indices = [whole(count) for count in state["counts"]], state["indices"]
    if indices.dtype != np.int64 or indices.shape != (sum(counts),):
        raise ValueError(f"{indices.dtype} {indices.shape} are no {sum(counts)} indices of samples")
    if len(indices) and (indices.min() < 0 or indices.max() >= data_samples):
        raise ValueError(f"the samples {indices.min()} to {indices.max()} are not in a data set of {data_samples}")
    pieces = np.split(indices, np.cumsum(counts)[:-1]) if counts else []
    return dict(zip(unpack_tickets(state["tickets"]), pieces, strict=True))


def loss_so_far(state: Mapping[str, Any]) -> tuple[float, float]:
    """The sum of the losses since the last row, and what it is divided by: in older checkpoints their number."""
    of_old = [state["loss"], state["counts"][3]] if len(state["counts"]) > 3 else state["loss"]
    total, weight = map(float, of_old)
    return total, weight


def pack_tickets(tickets: Iterable[Ticket]) -> list[Any]:
    return [plain_ticket(ticket) for ticket in tickets]


def unpack_tickets(state: Iterable[Any]) -> list[Ticket]:
    return [ticket_from(each) for each in state]


def pack_weights(weights: Mapping[Ticket, Fraction]) -> list[Any]:
    return [[plain_ticket(ticket), str(weight)] for ticket, weight in weights.items()]


def unpack_weights(state: Iterable[Any]) -> dict[Ticket, Fraction]:
    return {ticket_from(ticket): Fraction(weight) for ticket, weight in state}
