"""The server of a run in which workers hand in models of their own, which are averaged or made an ensemble."""

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from paceline.core.codec import whole
from paceline.core.errors import IllegalDecision
from paceline.core.messages import Step, Ticket
from paceline.core.stateful import State
from paceline.data.batches import Batches
from paceline.data.partition import Indices
from paceline.learning.contributions import pack_samples, share_out, unpack_samples
from paceline.learning.cost import Cost
from paceline.learning.learner import Server
from paceline.learning.loss import SampleLoss
from paceline.learning.models.contributions import ModelContributions, Models
from paceline.learning.models.training import Beginning, LocalTrainer
from paceline.learning.task import EVALUATED_AT_ONCE, eval_mode, evaluated_on
from paceline.learning.workload import Workload


class Aggregation(Protocol):
    """What becomes of the models that the workers trained."""

    @property
    def kinds(self) -> Collection[str]:
        """Of the work that its models come of."""
        ...

    @property
    def model(self) -> nn.Module:
        """The global model (``_G`` in EC-DNN)."""
        ...

    def beginning(self, ticket: Ticket, /) -> Beginning:
        """What local work begins with, and what is added to the loss of each step."""
        ...

    @property
    def made(self) -> Mapping[str, Any]:
        """The settings that it was made with, and that must be the same when a run is resumed."""
        ...

    @property
    def needs_state(self) -> str:
        """Why the state of the workers' optimizers has to be on the server, if so."""
        ...

    @property
    def only_last(self) -> str:
        """Why an update can use only the last model of a worker, if so."""
        ...

    def combine(self, weights: Mapping[Ticket, Fraction], non_finite: Sequence[Ticket], models: Models, /) -> None:
        """Make the next global model of what was handed in; ``models`` has the values of each ticket."""
        ...

    def started(self, ticket: Ticket, batches: Sequence[Indices], /) -> None:
        """Local work was given out, on these mini-batches."""
        ...

    def cost(self, ticket: Ticket, /) -> Cost:
        """What local work that was just given out takes in virtual time; asked for once, if at all."""
        ...

    def settled(self, ticket: Ticket, /) -> None:
        """Local work was used or dropped."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State, /) -> None: ...

    def check_restored(self, tickets: Collection[Ticket], updates: int, /) -> None:
        """Raise ``ValueError`` unless what was restored fits the work that is not settled, after so many updates."""
        ...


class ModelServer(Server):
    """Draws the mini-batches of each local work, and combines the models that come of them.

    ``contributions`` know where the models are trained, and the workload's ``trainers`` what each worker has come to.
    """

    handed_in = "model"
    reportable: Collection[str] = ("loss",)
    contributions: ModelContributions

    def __init__(
        self, workload: Workload, batches: Batches, aggregation: Aggregation, contributions: ModelContributions
    ) -> None:
        self.trainers = workload.trainers
        super().__init__(contributions, batches, len(self.trainers), {**self.trainers[0].made, **aggregation.made})
        self.aggregation = aggregation
        self.kinds = aggregation.kinds
        self._workload = workload
        self._loss = math.nan  # of the last update

    @property
    def model(self) -> nn.Module:
        return self.aggregation.model

    def start(self, ticket: Ticket) -> None:
        if ticket.work.kind not in self.kinds:
            raise self.refuse(ticket)
        batches = [self._batches.draw(ticket.worker) for _ in range(ticket.work.units)]
        self.aggregation.started(ticket, batches)
        self.contributions.promise(ticket, batches, self._numbers.give(ticket))

    def drop(self, ticket: Ticket) -> None:
        super().drop(ticket)
        self.aggregation.settled(ticket)

    def step(self, step: Step) -> Sequence[Ticket]:
        """Combine what was handed in. Returns the models that were left out because they are not finite."""
        if step.keep:
            raise IllegalDecision(f"cannot keep {len(step.keep)} models for a later step: they are used once")
        tickets = [*step.weights]
        only_last = self.aggregation.only_last
        if only_last and len({ticket.worker for ticket in tickets}) < len(tickets):
            raise IllegalDecision(f"cannot use two models of one worker in one step: {only_last}")
        result = self.contributions.evaluate(step.weights, ())
        self._loss = self._observe(result)
        self._count_non_finite(tickets, result.non_finite)
        weights = share_out(step.weights, result.non_finite)
        self.aggregation.combine(weights, result.non_finite, self.contributions.model)
        for ticket in tickets:
            self.aggregation.settled(ticket)
        self.contributions.settle(tickets)
        self.updates += 1
        return result.non_finite

    def report(self) -> Mapping[str, float]:
        return {"loss": self._loss} if math.isfinite(self._loss) else {}

    def evaluated(self, loss: float, accuracy: float) -> None:
        """The model was evaluated: schedulers that wait for that may lower the workers' learning rates."""
        for trainer in self.trainers:
            trainer.evaluated(self.updates, loss, accuracy)

    def state(self) -> State:
        """The trainers, the aggregation and the counts. The batches and the contributions have states of their own."""
        promised = {ticket: self.contributions.batches(ticket) for ticket in self.contributions.open_tickets()}
        return {
            **super().state(),
            "trainers": [trainer.state() for trainer in self.trainers],
            "aggregation": self.aggregation.state(),
            "promised": pack_samples({ticket: np.concatenate(batches) for ticket, batches in promised.items()}),
            "mini-batches": [[len(each) for each in batches] for batches in promised.values()],
            "separable": self.trainers[0].loss.state(),
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        for trainer, saved in zip(self.trainers, state["trainers"], strict=True):
            trainer.restore(saved)
            trainer.loss.restore(state["separable"])
        self.aggregation.restore(state["aggregation"])
        promised = unpack_samples(state["promised"], len(self._workload.samples))
        for (ticket, samples), sizes in zip(promised.items(), state["mini-batches"], strict=True):
            if len(sizes) != ticket.work.units or ticket.worker >= len(self.trainers):
                raise ValueError(f"{ticket} has {len(sizes)} mini-batches for {ticket.work.units} steps")
            self.contributions.expect(ticket, np.split(samples, np.cumsum([whole(size) for size in sizes])[:-1]))
        self.aggregation.check_restored(self.contributions.open_tickets(), self.updates)

    def best_local(self) -> nn.Module:
        """The local model with the smallest mean loss over all training samples (``_L`` in EC-DNN)."""
        return min(self.trainers, key=self._loss_on_all).model

    def _loss_on_all(self, trainer: LocalTrainer) -> float:
        at_once = EVALUATED_AT_ONCE if isinstance(trainer.loss, SampleLoss) else self._workload.samples_a_pass
        with eval_mode(trainer.model), torch.inference_mode(), trainer.served(self.updates):
            loss = evaluated_on(trainer.model, self._workload.unaugmented, trainer.loss, at_once)["loss"]
        return math.inf if math.isnan(loss) else loss

    def _details(self, ticket: Ticket) -> str:
        return f"after {ticket.work.units} local steps"
