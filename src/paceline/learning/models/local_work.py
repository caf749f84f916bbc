"""What a worker does that trains a model of its own, whoever it is and however it is told.

Nothing stays with a worker. A piece of work comes with everything that it depends on, and its outcome holds everything
that the next one will: the model, the state of the optimizer and its scheduler, and the worker's random numbers. So a
piece that is halted, dropped, or lost with its worker leaves no trace, and a replacement goes on from the last model
that was used. The same piece gives the same bits wherever it is computed.

A fleet takes this over to its workers as follows.

    trainers  one ``LocalTrainer`` a worker, on the server: what each has come to. They train only in a simulation
    start     ``piece_of(trainer, assignment)`` is sent to the worker: the values to begin with, and a ``Piece``
    worker    ``LocalWork(trainer).train(values, piece, go_on)``, with a trainer made there once, of the same
              workload and recipe; the outcome, and the values of its trainer, are sent back
    step      ``take_up(trainer, values, outcome)`` on the server, only if and when the piece is used

``Pieces`` is the server's side of this: ``LazyModels`` trains in this process when a step asks for it,
``learning.piece_rows`` has the one for workers that share memory with the server.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.cost import Bill
from paceline.learning.gradients.server import Recipe
from paceline.learning.models.local_training import Addition, LocalTrainer, Trained
from paceline.learning.threads import Threads
from paceline.learning.workload import Workload


class Beginning(NamedTuple):
    """The values that a piece begins with, or nothing for the worker's own, and what is added to each step's loss."""

    values: Sequence[Tensor] | None
    additions: Sequence[Addition | None]


class Assignment(NamedTuple):
    """A piece of local training as the server knows it. What it begins with is asked for once, when it is needed."""

    batches: Sequence[Indices]
    beginning: Callable[[], Beginning]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of local training as a worker is told of it, besides the values to begin with."""

    batches: Sequence[Indices]
    additions: Sequence[Addition | None]
    aside: State  # of the worker's trainer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it, besides the model."""

    trained: Trained
    aside: State


@dataclass(frozen=True, slots=True)
class Bench:
    """What workers that train models of their own need: hired by ``fleet.hire_trainers(bench)``."""

    workload: Workload
    recipe: Recipe
    trainers: Sequence[LocalTrainer]
    seed: int
    bill: Callable[[Ticket], Bill]  # what a piece that was just started takes, on a clock that is not real


class Pieces(Protocol):
    """Pieces of local training that are not settled yet, wherever they are trained."""

    def promise(self, ticket: Ticket, assignment: Assignment) -> None: ...

    def trained(self, ticket: Ticket, assignment: Assignment) -> Trained:
        """A step uses the piece: its worker's trainer has become what came of it."""
        ...

    def settle(self, tickets: Iterable[Ticket]) -> None: ...


class LazyModels:
    """Trained when a step asks for it: a piece that ends up dropped never is."""

    def __init__(self, trainers: Sequence[LocalTrainer], threads: Threads) -> None:
        self._trainers = trainers
        self._threads = threads

    def promise(self, ticket: Ticket, assignment: Assignment) -> None:
        """Nothing to do before."""

    def trained(self, ticket: Ticket, assignment: Assignment) -> Trained:
        trainer, beginning = self._trainers[ticket.worker], assignment.beginning()
        if beginning.values is not None:
            trainer.load(beginning.values)
        first = assignment.batches[0]
        self._threads.choose(trainer.model, lambda: trainer.fetch(first)[0], len(first))
        return trainer.train(assignment.batches, beginning.additions)

    def settle(self, tickets: Iterable[Ticket]) -> None:
        """Nothing is kept."""

    def state(self) -> State:
        return {"threads": self._threads.state()}

    def restore(self, state: State) -> None:
        if "threads" in state:  # otherwise it was put aside before they were chosen
            self._threads.restore(state["threads"])


class LocalWork:
    """A worker's side."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self._trainer = trainer

    def train(self, values: Sequence[Tensor], piece: Piece, go_on: Callable[[int], bool]) -> Outcome | None:
        """One step for each mini-batch; nothing if ``go_on(step)`` says no. ``values`` of it are the model then."""
        stopped = False

        def watched(step: int) -> bool:
            nonlocal stopped
            stopped = not go_on(step)
            return not stopped

        self._trainer.load(values)
        self._trainer.take_up(piece.aside)
        trained = self._trainer.train(piece.batches, piece.additions, watched)
        return None if stopped else Outcome(trained, self._trainer.aside())

    @property
    def values(self) -> list[Tensor]:
        return list(self._trainer.values())


def piece_of(trainer: LocalTrainer, assignment: Assignment) -> tuple[Sequence[Tensor], Piece]:
    """What a worker has to be sent."""
    values, additions = assignment.beginning()
    return list(trainer.values()) if values is None else values, Piece(assignment.batches, additions, trainer.aside())


def take_up(trainer: LocalTrainer, values: Sequence[Tensor], outcome: Outcome) -> Trained:
    """Let the server's trainer become what its worker handed in."""
    trainer.load(values)
    trainer.take_up(outcome.aside, of_worker=True)
    return outcome.trained
