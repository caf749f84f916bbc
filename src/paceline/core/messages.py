"""What can happen, what a strategy can want, and what is then carried out: plain frozen data.

Events come from a fleet, decisions from a strategy, instructions from the coordinator. ``Step``, ``Drop``, ``Recall``,
``WakeAt``, ``Remember``, ``Regroup`` and ``Resize`` are decisions that become instructions as they are; ``Remember``
and ``Regroup`` may be ``Within`` a part.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

Groups = tuple[tuple[int, ...], ...]


class Work(NamedTuple):
    """What a worker is asked to do: a kind, and how many units of it (blocks of a mini-batch, or local steps).

    ``samples`` are those of each mini-batch, where workers have sizes of their own; 0 where all have the run's. The
    coordinator fills it in.
    """

    kind: str
    units: int
    samples: int = 0

    @property
    def mini_batches(self) -> int:
        """How many of them the work takes."""
        return 1 if self.kind == "gradient" else self.units


def gradient(blocks: int = 1) -> Work:
    """The gradient of one mini-batch, computed in ``blocks`` equal parts."""
    return Work("gradient", blocks)


def local_steps(steps: int) -> Work:
    """The worker's own model after so many steps of its own."""
    return Work("local_steps", steps)


def distilled_steps(steps: int) -> Work:
    """The same, the first of the steps with the last ensemble's outputs as additional labels."""
    return Work("distilled_steps", steps)


GRADIENT = gradient()


class Ticket(NamedTuple):
    """One piece of work given to one worker, with the model ``version`` that the worker downloaded for it."""

    serial: int
    worker: int
    version: int
    work: Work = GRADIENT

    def __str__(self) -> str:
        return f"t{self.serial}"


# Events: what happened, and when.


@dataclass(frozen=True, slots=True)
class Joined:
    at: float
    worker: int


@dataclass(frozen=True, slots=True)
class Left:
    at: float
    worker: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker will be gone ``by`` a time: a machine that is to be taken away, or drained. It is given no more work."""

    at: float
    worker: int
    by: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """A worker handed in ``done`` units of its ticket: all of them, or fewer (maybe none) after a recall."""

    at: float
    ticket: Ticket
    done: int


@dataclass(frozen=True, slots=True)
class Rang:
    """The time that a strategy asked for with ``WakeAt`` has come."""

    at: float


@dataclass(frozen=True, slots=True)
class Reported:
    """Learning tells ``numbers`` of the update that was just made, for rules that ask for them: see ``REPORTS``."""

    at: float
    numbers: Mapping[str, float]


Event = Joined | Left | Leaving | Arrived | Rang | Reported

# What learning can tell of an update, where a rule asks for it by its attribute ``reports``.
REPORTS = {
    "loss": "the mean training loss of the samples that the update used for the first time",
    "norm": "the Euclidean norm of the combined gradient, before clipping",
    "inner": "its inner product with the combined gradient of the update before",
    "spread": "the root of the weighted mean of |g_i - g|^2 over the contributions g_i of their weighted mean g",
}


# Decisions: what a strategy wants.


@dataclass(frozen=True, slots=True)
class Assign:
    """Give ``worker`` the newest model and some work."""

    worker: int
    work: Work = GRADIENT


# Nothing tells two equal decisions apart, and making one takes six times as long as finding it.
assign = lru_cache(maxsize=1 << 17)(Assign)


@dataclass(frozen=True, slots=True)
class Step:
    r"""Update the model along $\sum_t w_t\, g_t$, with exact weights on tickets that were handed in.

    A ticket in ``keep`` (a part of ``weights``) stays at hand for a later step; every other one is settled.
    """

    weights: Mapping[Ticket, Fraction]
    keep: Collection[Ticket] = ()


# The same few weights come back in every round, and making one costs more than all else that a rule does.
fraction = lru_cache(maxsize=4096)(Fraction)


def mean(tickets: Collection[Ticket]) -> dict[Ticket, Fraction]:
    r"""The weights of a ``Step`` on the mean over samples: one in all, however many take part.

    Mini-batches of one size have the same weight; where workers have sizes $b_i$ of their own it is $b_i / \sum b$.
    """
    total = samples_of(tickets)
    if total == len(tickets):
        return dict.fromkeys(tickets, fraction(1, total))
    return {ticket: fraction(ticket.work.samples, total) for ticket in tickets}


def samples_of(tickets: Collection[Ticket]) -> int:
    """What tickets count together in a mean: the samples of a mini-batch of each; one each where all have one size."""
    for ticket in tickets:
        if not ticket.work.samples:
            return len(tickets)
        break
    return sum([ticket.work.samples for ticket in tickets])


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a ticket: stop it if it still runs, throw its contribution away if it was handed in."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Recall:
    """Ask a running worker to hand in the units that it has done so far."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Ask for a ``Rang`` event at a time."""

    at: float


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep a value in this ledger's ``memory``, for rules that learn from what they see."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Regroup:
    """Make ``groups`` the parts of a ledger that is split, and say ``why``: the record keeps it.

    Group $k$ is part $k$; a group may be empty, and more groups than parts make new parts. A worker changes its part
    when it runs nothing: at once, or when what it runs has ended, which counts in the part that gave it out.
    """

    groups: Groups
    why: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Give workers mini-batches of these sizes from their next piece of work on, and say ``why``: the record keeps it.

    ``sizes`` has every worker that is here. Made outside of parts, and first before any work is given out.
    """

    sizes: Mapping[int, int]
    why: str


@dataclass(frozen=True, slots=True)
class Within:
    """A decision about one part of a split ledger."""

    part: int
    decision: "Decision"


Decision = Assign | Step | Drop | Recall | WakeAt | Remember | Regroup | Resize | Within


# Instructions: what the coordinator made of the decisions, for the fleet and the server to carry out.


@dataclass(frozen=True, slots=True)
class Start:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Halt:
    """A running ticket was dropped: the worker may stop computing it."""

    ticket: Ticket


Instruction = Start | Halt | Step | Drop | Recall | WakeAt | Remember | Regroup | Resize | Within
