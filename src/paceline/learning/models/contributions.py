"""Local training that is not settled yet: models that workers were asked for and handed in, until a step uses them."""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from torch import Tensor

from paceline.core.codec import plain_ticket, ticket_from
from paceline.core.errors import IllegalDecision
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.contributions import Evaluated, Pass, Weights
from paceline.learning.model_state import like
from paceline.learning.models.training import Trained
from paceline.learning.threads import Threads
from paceline.learning.workload import Workload

Models = Callable[[Ticket], Sequence[Tensor]]  # the parameters and buffers that a ticket handed in


def in_order(ticket: Ticket) -> tuple[int, int]:
    """The order in which models are adopted and added up: that of the workers, and of each one's work."""
    return ticket.worker, ticket.serial


def pack_trained(trained: Trained) -> State:
    return {
        "losses": trained.losses,
        "sums": [list(each) for each in trained.sums],
        "finite": trained.finite,
        "logged": [{name: list(sums) for name, sums in each.items()} for each in trained.logged],
    }


def unpack_trained(state: State) -> Trained:
    losses = list(state["losses"])
    sums = state.get("sums", [[float(each.sum(dtype=np.float64)), len(each)] for each in losses])
    logged = [
        {name: (float(total), float(samples)) for name, (total, samples) in each.items()}
        for each in state.get("logged", [{}] * len(losses))
    ]
    return Trained(losses, [(float(s), float(w)) for s, w in sums], bool(state["finite"]), logged)


class ModelContributions:
    """Local training that is not settled yet, wherever it is done.

    A worker's trainer becomes what the worker handed in when a step uses that. Where a rule gives a worker new work
    before (a buffer of models), it does so then, because the new work continues from there; the model is set aside
    until it is used. A model that is dropped after that has left its trace: in the optimizer's state of its worker.
    """

    def __init__(self, workload: Workload) -> None:
        assert workload.aggregation is not None  # workers that train models have one
        self._trainers = workload.trainers
        self._aggregation = workload.aggregation
        self._batches: dict[Ticket, Sequence[Indices]] = {}
        self._last: dict[int, Ticket] = {}  # what each worker was given last
        self._aside: dict[Ticket, tuple[Sequence[Tensor], Trained]] = {}

    def expect(self, ticket: Ticket, batches: Sequence[Indices]) -> None:
        """A ticket was given out on these mini-batches, here or before a run was resumed."""
        self._batches[ticket] = batches
        self._last[ticket.worker] = ticket

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int) -> None:
        before = self._last.get(ticket.worker)
        if before is not None and before in self._batches:
            self._set_aside(before)
        self.expect(ticket, batches)

    def model(self, ticket: Ticket) -> Sequence[Tensor]:
        """The parameters and buffers that a ticket handed in, once it was evaluated."""
        aside = self._aside.get(ticket)
        return list(self._trainers[ticket.worker].values()) if aside is None else aside[0]

    def batches(self, ticket: Ticket) -> Sequence[Indices]:
        return self._batches[ticket]

    def open_tickets(self) -> Collection[Ticket]:
        return self._batches.keys()

    def shorten(self, ticket: Ticket, done: int) -> Indices:
        raise IllegalDecision(f"{ticket} was recalled, but a model cannot be handed in by parts")

    def evaluate(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        """Let the trainers of these workers become what was handed in, in the order of the workers."""
        result = Evaluated()
        for ticket in sorted(weights, key=in_order):
            if ticket not in self._aside and ticket != self._last.get(ticket.worker):
                self._set_aside(ticket)
            trained = self._aside[ticket][1] if ticket in self._aside else self._train(ticket)
            of_batches = zip(
                self._batches[ticket], trained.losses, trained.sums, trained.logged, strict=False
            )  # it may stop early
            result.passes += [Pass((ticket,), (batch,), each, *sums, more) for batch, each, sums, more in of_batches]
            if not trained.finite:
                result.non_finite.append(ticket)
        return result

    def settle(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            del self._batches[ticket]
            self._aside.pop(ticket, None)
            if self._last.get(ticket.worker) == ticket:
                del self._last[ticket.worker]

    def before_update(self) -> None:
        """The aggregation keeps what somebody still works on."""

    def _set_aside(self, ticket: Ticket) -> None:
        trained = self._train(ticket)
        self._aside[ticket] = self._kept(ticket), trained

    def _train(self, ticket: Ticket) -> Trained:
        """Let a worker's trainer become what comes of a ticket."""
        raise NotImplementedError

    def _kept(self, ticket: Ticket) -> Sequence[Tensor]:
        """What a ticket handed in, where it stays until it is settled."""
        raise NotImplementedError


class LazyModels(ModelContributions):
    """Local models that are trained when a step asks for them: work that ends up dropped is never done."""

    def __init__(self, workload: Workload, threads: Threads) -> None:
        super().__init__(workload)
        self._samples_a_pass = workload.samples_a_pass
        self._threads = threads

    def _train(self, ticket: Ticket) -> Trained:
        trainer, beginning = self._trainers[ticket.worker], self._aggregation.beginning(ticket)
        if beginning.values is not None:
            trainer.load(beginning.values)
        batches = self._batches[ticket]
        first = batches[0][: self._samples_a_pass]
        self._threads.choose(trainer.model, lambda model: trainer.loss.passed(model, trainer.fetch(first)), len(first))
        return trainer.train(batches, beginning.additions)

    def _kept(self, ticket: Ticket) -> Sequence[Tensor]:
        return [value.clone() for value in self._trainers[ticket.worker].values()]

    def state(self) -> State:
        aside = [[plain_ticket(t), list(values), pack_trained(trained)] for t, (values, trained) in self._aside.items()]
        return {"threads": self._threads.state(), **({"aside": aside} if aside else {})}

    def restore(self, state: State) -> None:
        if "threads" in state:  # older checkpoints have none
            self._threads.restore(state["threads"])
        for plain, values, trained in state.get("aside", ()):
            ticket = ticket_from(plain)
            present = list(self._trainers[ticket.worker].values())
            self._aside[ticket] = like(present, values), unpack_trained(trained)
