"""What workers were asked for and handed in, until a step has used it: gradients, or models of the workers' own.

Each kind of work has two implementations of ``Contributions``. The lazy one computes in this process when a step asks
for it, for simulated workers; the shared one holds what worker processes wrote to memory that they share with the
server. Both are in ``paceline.learning.gradients`` and ``paceline.learning.models``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from paceline.core.codec import plain_ticket, ticket_from, whole
from paceline.core.messages import Ticket
from paceline.data.batches import Losses
from paceline.data.partition import Indices
from paceline.learning.arena.arena import Promise, Report
from paceline.learning.model_state import BufferChange

Weights = Mapping[Ticket, Fraction]


class Pass(NamedTuple):
    """One pass through the model, and its losses: of each sample, or of the whole batch where those are not known."""

    tickets: Sequence[Ticket]
    batches: Sequence[Indices]  # of each ticket
    losses: Losses
    loss_sum: float  # of the samples' losses, or the loss of the whole batch times its weight
    loss_weight: float  # what the sum is divided by
    logged: Mapping[str, tuple[float, float]] = MappingProxyType({})  # by a step: sums, and over how many samples

    def of_tickets(self) -> Iterator[tuple[Ticket, Indices, Losses]]:
        """Each ticket with its samples and their losses, where these are known one by one."""
        ends = np.cumsum([len(batch) for batch in self.batches])
        if self.tickets and len(self.losses) == ends[-1]:
            yield from zip(self.tickets, self.batches, np.split(self.losses, ends[:-1]), strict=True)

    def without(self, tickets: Collection[Ticket]) -> "Pass":
        """The rest of the pass."""
        if len(self.tickets) > 1:
            own = {ticket: losses for ticket, _, losses in self.of_tickets()}
        else:
            own = {self.tickets[0]: self.losses}
        rest = [(t, batch) for t, batch in zip(self.tickets, self.batches, strict=True) if t not in tickets]
        losses = np.concatenate([self.losses[:0], *(own[ticket] for ticket, _ in rest)])
        total = float(losses.sum(dtype=np.float64))
        return Pass([ticket for ticket, _ in rest], [batch for _, batch in rest], losses, total, len(losses))


@dataclass(slots=True)
class Evaluated:
    """What the contributions of a step came to.

    The weighted sum of gradients itself lies in the parameters' ``grad``; models lie with their workers' trainers.
    """

    passes: list[Pass] = field(default_factory=list)
    buffers: list[BufferChange] = field(default_factory=list)  # by the workers' passes; none without buffers
    non_finite: list[Ticket] = field(default_factory=list)  # left out
    lost: list[Ticket] = field(default_factory=list)  # with their machine, and left out
    norm: float = 0.0  # of the sum of gradients
    mean_square: float = 0.0  # the weighted sum of their squared norms, of those computed now; only if it is measured
    finite: bool = True
    unused: Collection[int] = ()  # parameters that no contribution has a gradient of, by number


class Contributions(Protocol):
    """What the workers of a fleet were asked for and handed in, until it is settled.

    To be kept in checkpoints it needs ``state()`` and ``restore(state)`` as well: ``paceline.core.stateful.Stateful``.
    """

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int, /) -> None:
        """A worker is to compute a ticket on these mini-batches. ``number`` counts the work that it was given."""
        ...

    def batches(self, ticket: Ticket, /) -> Sequence[Indices]:
        """The mini-batches of a ticket, as far as they were computed."""
        ...

    def shorten(self, ticket: Ticket, done: int, /) -> Indices:
        """Only so many units of a ticket were computed. Returns the samples of the others."""
        ...

    def evaluate(self, weights: Weights, keep: Collection[Ticket], /) -> Evaluated:
        """Compute what a step asks for, or fetch it: the weighted sum of gradients, or models for the trainers.

        Contributions that are not finite are left out and reported. Those in ``keep`` are wanted again later.
        """
        ...

    def settle(self, tickets: Iterable[Ticket], /) -> None:
        """These are used up, or will never be used."""
        ...

    def before_update(self) -> None:
        """The model is about to change."""
        ...


class SharedContributions(Contributions, Protocol):
    """Contributions that workers write to memory that they share with the server."""

    def promised(self, ticket: Ticket, /) -> Promise: ...

    def written(self, ticket: Ticket, /) -> None:
        """A worker says that it has written what it computed. The training loop may be told of it later."""
        ...

    def hand_in(self, ticket: Ticket, report: Report, /) -> None:
        """The training loop is told that a worker has written what it computed."""
        ...

    def halt(self, ticket: Ticket, /) -> None:
        """It will not be handed in; its worker may continue writing until it is given other work."""
        ...

    def forget_worker(self, worker: int, /) -> None:
        """The training loop is told that the worker has another process."""
        ...

    def detach(self) -> None:
        """The run is over: the shared memory is about to be given back."""
        ...


def share_out(weights: Weights, non_finite: Collection[Ticket]) -> dict[Ticket, Fraction]:
    """Leave tickets out and share their weight equally among the others of the same model version and weight.

    The mean over a round so becomes the mean over those of the round that are finite. Where no other has the same
    weight, those of the same version share it; where a version has no others, its weight is lost.
    """
    rest = {ticket: weight for ticket, weight in weights.items() if ticket not in non_finite}
    for ticket in non_finite:
        of_version = [other for other in rest if other.version == ticket.version]
        others = [other for other in of_version if weights[other] == weights[ticket]] or of_version
        for other in others:
            rest[other] += weights[ticket] / len(others)
    return rest


# For checkpoints: tickets, with what belongs to them, as a few plain lists and one array.


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
    parts = np.split(indices, np.cumsum(counts)[:-1]) if counts else []
    return dict(zip(unpack_tickets(state["tickets"]), parts, strict=True))


def pack_tickets(tickets: Iterable[Ticket]) -> list[Any]:
    return [plain_ticket(ticket) for ticket in tickets]


def unpack_tickets(state: Iterable[Any]) -> list[Ticket]:
    return [ticket_from(each) for each in state]


def pack_weights(weights: Weights) -> list[Any]:
    return [[plain_ticket(ticket), str(weight)] for ticket, weight in weights.items()]


def unpack_weights(state: Iterable[Any]) -> dict[Ticket, Fraction]:
    return {ticket_from(ticket): Fraction(weight) for ticket, weight in state}
