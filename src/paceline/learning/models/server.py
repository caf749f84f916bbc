"""Carries the coordinator's instructions out on models of the workers' own."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from torch import nn

from paceline.core.codec import whole
from paceline.core.errors import Diverged, IllegalDecision
from paceline.core.messages import Joined, Left, Step, Ticket
from paceline.core.stateful import State
from paceline.data.batches import Batches, ObservesLosses, ObservesMembership
from paceline.data.partition import Indices
from paceline.learning.cost import Bill
from paceline.learning.gradients.lazy import share_out
from paceline.learning.models.local_training import LocalTrainer, Trained
from paceline.learning.models.local_work import Assignment, Beginning, Pieces
from paceline.learning.optimizers import check_as_made
from paceline.learning.packing import loss_so_far, pack_samples, pack_tickets, unpack_samples, unpack_tickets
from paceline.learning.task import eval_mode, loss_and_accuracy
from paceline.learning.workload import Workload

log = logging.getLogger("paceline")


class Aggregation(Protocol):
    """What becomes of the models that the workers trained."""

    @property
    def model(self) -> nn.Module:
        """The global model (``_G`` in EC-DNN)."""
        ...

    def beginning(self, ticket: Ticket) -> Beginning:
        """What a piece of work begins with, and what is added to the loss of each step."""
        ...

    def combine(self, weights: Mapping[Ticket, Fraction], spoiled: Sequence[Ticket]) -> None:
        """Make the next global model of what was handed in."""
        ...

    def started(self, ticket: Ticket) -> None:
        """A piece of work was given out."""
        ...

    def bill(self, ticket: Ticket) -> Bill:
        """What a piece of work that was just given out takes; asked for once, if at all."""
        ...

    def settled(self, ticket: Ticket) -> None:
        """A piece of work was used or dropped."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...

    def check_restored(self, tickets: Collection[Ticket], updates: int) -> None:
        """Raise ``ValueError`` unless what was restored fits the work that is not settled, after so many updates."""
        ...


class ModelServer:
    """Draws the mini-batches of each piece of local training, combines the models that come of them, and counts.

    ``contributions`` are the pieces, which know where they are trained; ``trainers`` what each worker has come to.
    """

    def __init__(
        self, workload: Workload, batches: Batches, trainers: Sequence[LocalTrainer], aggregation: Aggregation,
        contributions: Pieces,
    ) -> None:  # fmt: skip
        self.updates = 0
        self.samples = 0
        self.spoiled: list[Ticket] = []
        self.trainers = trainers
        self.aggregation = aggregation
        self.contributions = contributions
        self._workload = workload
        self._batches = batches
        self._watchful = batches if isinstance(batches, ObservesLosses) else None
        self._promised: dict[Ticket, list[Indices]] = {}
        self._spoiled_in_a_row = 0
        self._loss_sum, self._loss_weight = 0.0, 0.0

    @property
    def model(self) -> nn.Module:
        return self.aggregation.model

    def attend(self, event: Joined | Left) -> None:
        if isinstance(self._batches, ObservesMembership):
            (self._batches.joined if isinstance(event, Joined) else self._batches.left)(event.worker)

    def start(self, ticket: Ticket) -> None:
        self._promised[ticket] = [self._batches.draw(ticket.worker) for _ in range(ticket.work.units)]
        self.aggregation.started(ticket)
        self.contributions.promise(ticket, self._assignment(ticket))

    def _assignment(self, ticket: Ticket) -> Assignment:
        return Assignment(self._promised[ticket], lambda: self.aggregation.beginning(ticket))

    def shorten(self, ticket: Ticket, done: int) -> None:
        raise IllegalDecision(f"{ticket} was recalled, but a model cannot be handed in by parts")

    def drop(self, ticket: Ticket) -> None:
        for indices in reversed(self._promised.pop(ticket)):
            self._batches.put_back(ticket.worker, indices)
        self._settle([ticket])

    def _settle(self, tickets: Collection[Ticket]) -> None:
        for ticket in tickets:
            self.aggregation.settled(ticket)
        self.contributions.settle(tickets)

    def step(self, step: Step) -> list[Ticket]:
        """Combine what was handed in. Returns the models that were left out because not finite."""
        if step.keep:
            raise IllegalDecision(f"cannot keep {len(step.keep)} models for a later step: they are used once")
        tickets = sorted(step.weights, key=lambda ticket: ticket.worker)
        if len({ticket.worker for ticket in tickets}) < len(tickets):
            raise IllegalDecision("cannot use two models of one worker in one step: it has only its last one")
        spoiled: list[Ticket] = []
        for ticket in tickets:
            trained = self.contributions.trained(ticket, self._assignment(ticket))
            self._observe(ticket, self._promised.pop(ticket), trained)
            if not trained.finite:
                spoiled.append(ticket)
        self._report(spoiled, step)
        self.aggregation.combine(share_out(step.weights, spoiled), spoiled)
        self._settle(step.weights.keys())
        self.updates += 1
        return spoiled

    def judged(self, loss: float, accuracy: float) -> None:
        """The model was evaluated: schedulers that wait for it may lower the workers' learning rates."""
        for trainer in self.trainers:
            trainer.judged(self.updates, loss, accuracy)

    def training_loss(self) -> float:
        """The mean loss of the samples used since the last call."""
        mean = self._loss_sum / self._loss_weight if self._loss_weight else float("nan")
        self._loss_sum, self._loss_weight = 0.0, 0.0
        return mean

    def state(self) -> State:
        """The trainers, the aggregation and the counts. The batches and the contributions have states of their own."""
        promised = {ticket: np.concatenate(batches) for ticket, batches in self._promised.items()}
        return {
            "made": self.trainers[0].made,
            "trainers": [trainer.state() for trainer in self.trainers],
            "aggregation": self.aggregation.state(),
            "promised": pack_samples(promised),
            "mini-batches": [[len(each) for each in batches] for batches in self._promised.values()],
            "counts": [self.updates, self.samples, self._spoiled_in_a_row],
            "loss": [self._loss_sum, self._loss_weight],
            "separable": self.trainers[0].loss.state(),
            "spoiled": pack_tickets(self.spoiled),
        }

    def restore(self, state: State) -> None:
        check_as_made(self.trainers[0].made, state["made"])
        for trainer, saved in zip(self.trainers, state["trainers"], strict=True):
            trainer.restore(saved)
        self.aggregation.restore(state["aggregation"])
        promised = unpack_samples(state["promised"], len(self._workload.samples))
        for (ticket, samples), sizes in zip(promised.items(), state["mini-batches"], strict=True):
            self._promised[ticket] = np.split(samples, np.cumsum([whole(size) for size in sizes])[:-1])
        self.updates, self.samples, self._spoiled_in_a_row = map(whole, state["counts"][:3])
        self._loss_sum, self._loss_weight = loss_so_far(state)
        for trainer in self.trainers:
            trainer.loss.restore(state["separable"])
        self.spoiled += unpack_tickets(state["spoiled"])
        for ticket, batches in self._promised.items():
            if len(batches) != ticket.work.units or ticket.worker >= len(self.trainers):
                raise ValueError(f"{ticket} has {len(batches)} mini-batches for {ticket.work.units} steps")
        self.aggregation.check_restored(self._promised.keys(), self.updates)

    def open_tickets(self) -> Collection[Ticket]:
        """What was promised and is neither used up nor dropped."""
        return self._promised.keys()

    def best_local(self) -> nn.Module:
        """The local model with the smallest mean loss over all training samples (``_L`` in EC-DNN)."""
        return min(self.trainers, key=self._loss_on_all).model

    def _loss_on_all(self, trainer: LocalTrainer) -> float:
        with eval_mode(trainer.model), torch.inference_mode():
            loss, _ = loss_and_accuracy(trainer.model, self._workload.unaugmented, trainer.loss)
        return math.inf if math.isnan(loss) else loss

    def _observe(self, ticket: Ticket, batches: Sequence[Indices], trained: Trained) -> None:
        for indices, losses in zip(batches, trained.losses, strict=False):  # training may have stopped early
            self.samples += len(indices)
            if self._watchful is not None and len(losses) == len(indices):
                self._watchful.observe(ticket.worker, indices, losses)
        for total, weight in trained.sums:
            self._loss_sum += total
            self._loss_weight += weight

    def _report(self, spoiled: Sequence[Ticket], step: Step) -> None:
        """A round of which nothing is finite ends the run; single models, when all workers' in a row are not."""
        self.spoiled += spoiled
        for ticket in spoiled:
            log.warning(
                "update %d leaves out worker %d: its model is not finite after %d local steps",
                self.updates + 1, ticket.worker, ticket.work.units,
            )  # fmt: skip
        nothing = len(spoiled) == len(step.weights)
        self._spoiled_in_a_row = self._spoiled_in_a_row + len(spoiled) if nothing else 0
        if nothing and (len(spoiled) > 1 or self._spoiled_in_a_row >= len(self.trainers)):
            raise Diverged(
                f"diverged at update {self.updates + 1}: none of the last {self._spoiled_in_a_row} models is finite "
                f"after {spoiled[0].work.units} local steps",
                spoiled,
            )
