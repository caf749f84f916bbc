"""Carries the coordinator's instructions out on models of the workers' own."""

import logging
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from torch import nn

from paceline.core.errors import Diverged, IllegalDecision
from paceline.core.facts import Joined, Left, Step, Ticket
from paceline.fleets.billing import Bill
from paceline.learning.contributions import share_out
from paceline.learning.data import to_device
from paceline.learning.job import Job
from paceline.learning.local_training import Addition, LocalTrainer, Trained
from paceline.learning.task import EVALUATED_AT_ONCE, device_of
from paceline.sampling.batches import Attentive, Batches, Watchful
from paceline.sampling.partition import Indices

log = logging.getLogger("paceline")


class Aggregation(Protocol):
    """What becomes of the models that the workers trained."""

    @property
    def model(self) -> nn.Module:
        """The global model (``_G`` in EC-DNN)."""
        ...

    def prepare(self, ticket: Ticket) -> Sequence[Addition | None]:
        """Let a worker's model be what its piece of work begins with; what is added to the loss of each step."""
        ...

    def combine(self, weights: Mapping[Ticket, Fraction], spoiled: Sequence[Ticket]) -> None:
        """Make the next global model of what was handed in."""
        ...

    def started(self, ticket: Ticket) -> Bill:
        """A piece of work was given out: what it takes."""
        ...

    def settled(self, ticket: Ticket) -> None:
        """A piece of work was used or dropped."""
        ...


class ModelHands:
    """Draws the mini-batches of each piece of local training, trains when a step needs it, and counts.

    A piece that ends up dropped is never trained.
    """

    def __init__(self, job: Job, batches: Batches, trainers: Sequence[LocalTrainer], aggregation: Aggregation) -> None:
        self.updates = 0
        self.samples = 0
        self.spoiled: list[Ticket] = []
        self.trainers = trainers
        self.aggregation = aggregation
        self._job = job
        self._batches = batches
        self._bills: dict[Ticket, Bill] = {}
        self._watchful = batches if isinstance(batches, Watchful) else None
        self._promised: dict[Ticket, list[Indices]] = {}
        self._spoiled_in_a_row = 0
        self._loss_sum, self._loss_count = 0.0, 0

    @property
    def model(self) -> nn.Module:
        return self.aggregation.model

    def attend(self, event: Joined | Left) -> None:
        if isinstance(self._batches, Attentive):
            (self._batches.joined if isinstance(event, Joined) else self._batches.left)(event.worker)

    def start(self, ticket: Ticket) -> None:
        self._promised[ticket] = [self._batches.draw(ticket.worker) for _ in range(ticket.work.units)]
        self._bills[ticket] = self.aggregation.started(ticket)

    def bill(self, ticket: Ticket) -> Bill:
        """What a piece of work that was just started takes."""
        return self._bills.pop(ticket)

    def shorten(self, ticket: Ticket, done: int) -> None:
        raise IllegalDecision(f"{ticket} was recalled, but a model cannot be handed in by parts")

    def drop(self, ticket: Ticket) -> None:
        for indices in reversed(self._promised.pop(ticket)):
            self._batches.put_back(ticket.worker, indices)
        self.aggregation.settled(ticket)

    def step(self, step: Step) -> list[Ticket]:
        """Train what was handed in and combine it. Returns the models that were left out because not finite."""
        if step.keep:
            raise IllegalDecision(f"cannot keep {len(step.keep)} models for a later step: they are used once")
        tickets = sorted(step.weights, key=lambda ticket: ticket.worker)
        if len({ticket.worker for ticket in tickets}) < len(tickets):
            raise IllegalDecision("cannot use two models of one worker in one step: it has only its last one")
        spoiled: list[Ticket] = []
        for ticket in tickets:
            additions = self.aggregation.prepare(ticket)
            batches = self._promised.pop(ticket)
            trained = self.trainers[ticket.worker].train(batches, additions)
            self._observe(ticket, batches, trained)
            if not trained.finite:
                spoiled.append(ticket)
        self._report(spoiled, step)
        self.aggregation.combine(share_out(step.weights, spoiled), spoiled)
        for ticket in step.weights:
            self.aggregation.settled(ticket)
        self.updates += 1
        return spoiled

    def training_loss(self) -> float:
        """The mean loss of the samples used since the last call."""
        mean = self._loss_sum / self._loss_count if self._loss_count else float("nan")
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def best_local(self) -> nn.Module:
        """The local model with the smallest mean loss over all training samples (``_L`` in EC-DNN)."""
        return min((trainer.model for trainer in self.trainers), key=self._loss_on_all)

    def _loss_on_all(self, model: nn.Module) -> float:
        samples, device = self._job.unaugmented, device_of(model)
        was_training = model.training
        model.eval()
        total = 0.0
        with torch.inference_mode():
            for begin in range(0, len(samples), EVALUATED_AT_ONCE):
                indices = np.arange(begin, min(begin + EVALUATED_AT_ONCE, len(samples)))
                inputs, targets = to_device(samples.fetch(indices), device)
                total += float(self._job.loss.mean(model(inputs), targets)[0]) * len(indices)
        model.train(was_training)
        return math.inf if math.isnan(total) else total / len(samples)

    def _observe(self, ticket: Ticket, batches: Sequence[Indices], trained: Trained) -> None:
        for indices, losses in zip(batches, trained.losses, strict=False):  # training may have stopped early
            self.samples += len(indices)
            self._loss_sum += float(losses.sum(dtype=np.float64))
            self._loss_count += len(losses)
            if self._watchful is not None and len(losses) == len(indices):
                self._watchful.observe(ticket.worker, indices, losses)

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
