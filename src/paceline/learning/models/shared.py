"""Local models of workers that share memory with the server.

A worker reads the values that it begins with from a slot of its own, and everything else from the blob with it. It
writes its model to another slot, and the rest to that one's blob; they are read only if a step uses them. The server
may write for a worker that is still at work that was halted: what that one reads then is never used.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.arena.arena import ParameterArena, Promise, Report, Slot
from paceline.learning.arena.blobs import Blobs
from paceline.learning.contributions import pack_tickets, unpack_tickets
from paceline.learning.gradients.held import LEVELS, free_slot
from paceline.learning.model_state import like
from paceline.learning.models.contributions import ModelContributions, pack_trained, unpack_trained
from paceline.learning.models.training import LocalTrainer, LocalWork, Outcome, Trained, adopt, compute, local_work
from paceline.learning.workload import Workload
from paceline.trace.format import FreshState

log = logging.getLogger("paceline")
NO_INDICES: Indices = np.zeros(0, dtype=np.int64)  # they are in the blob


def slots_needed(workers: int, levels: int = LEVELS) -> int:
    """One to begin with and ``levels`` to hand in for each worker. Only those that are used take memory."""
    return workers + levels * workers


class SharedModels(ModelContributions):
    """Gives every ticket a slot to begin with and one to hand in; the server's side."""

    def __init__(self, workload: Workload, arena: ParameterArena, blobs: Blobs) -> None:
        super().__init__(workload)
        self._arena = arena
        self._blobs = blobs
        self._promises: dict[Ticket, Promise] = {}
        self._taken: set[int] = set()
        self._levels = workload.levels
        self._own_state = workload.state_with_workers
        self._fresh: set[int] = set()  # workers whose optimizers' state is lost
        self._told: set[int] = set()
        self.announce: Callable[[FreshState], None] = lambda fact: None
        if self._own_state and (why := self._aggregation.needs_state):
            raise ConfigError(f"state='worker' keeps the optimizers' state with the workers, and {why}: use 'server'")

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int) -> None:
        super().promise(ticket, batches, number)
        workers = len(self._trainers)
        slot = free_slot(ticket.worker, ticket.worker, workers, workers, self._taken, levels=self._levels)
        self._taken.add(slot)
        self._promises[ticket] = Promise(NO_INDICES, slot, source=ticket.worker)
        trainer, fresh = self._trainers[ticket.worker], ticket.worker in self._fresh
        if fresh:
            self._fresh.discard(ticket.worker)
            self._tell(ticket)
        values, work = local_work(
            trainer, batches, self._aggregation.beginning(ticket), own_state=self._own_state, fresh=fresh
        )
        _copy(_values(self._arena[ticket.worker]), values)
        self._blobs.put(ticket.worker, ticket.serial, work)

    def promised(self, ticket: Ticket) -> Promise:
        return self._promises[ticket]

    def written(self, ticket: Ticket) -> None:
        """What its worker wrote stays in its slot and blob until the ticket is settled."""

    def hand_in(self, ticket: Ticket, report: Report) -> None:
        self._promises[ticket].handed_in = True

    def halt(self, ticket: Ticket) -> None:
        """Its worker may still read and write for it, in places that nobody else uses before its next work."""
        self.forget_worker(ticket.worker)

    def forget_worker(self, worker: int) -> None:
        """Only an optimizer's state depends on which process it is, if it stays there."""
        if self._own_state:
            self._fresh.add(worker)

    def _tell(self, ticket: Ticket) -> None:
        """A worker that had an optimizer's state begins with a fresh one."""
        if not self._trainers[ticket.worker].begun:
            return
        self.announce(FreshState(ticket))
        if ticket.worker not in self._told:
            self._told.add(ticket.worker)
            log.warning(
                "worker %d begins with a fresh optimizer: its state stayed with the worker (state='worker'), and was "
                "lost with the process or with work that was halted; from now on only the trace tells",
                ticket.worker,
            )

    def _train(self, ticket: Ticket) -> Trained:
        slot = self._promises[ticket].slot
        outcome: Outcome = self._blobs.get(slot, ticket.serial)
        return adopt(self._trainers[ticket.worker], _values(self._arena[slot]), outcome)

    def _kept(self, ticket: Ticket) -> Sequence[Tensor]:
        return _values(self._arena[self._promises[ticket].slot])

    def settle(self, tickets: Iterable[Ticket]) -> None:
        tickets = list(tickets)
        super().settle(tickets)
        for ticket in tickets:
            self._taken.discard(self._promises.pop(ticket).slot)

    def detach(self) -> None:
        """The models are the trainers' own."""
        self._blobs.close()

    # A checkpoint has what was handed in; what was not will be given out again.

    def state(self) -> State:
        handed_in = [(ticket, promise.slot) for ticket, promise in self._promises.items() if promise.handed_in]
        return {
            "tickets": pack_tickets(self._promises),
            "rows": [[promise.slot, promise.handed_in] for promise in self._promises.values()],
            "handed in": {str(slot): self._handed_in(ticket, slot) for ticket, slot in handed_in},
            **({"aside": pack_tickets(self._aside)} if self._aside else {}),
        }

    def _handed_in(self, ticket: Ticket, slot: int) -> State:
        outcome: Outcome = self._blobs.get(slot, ticket.serial)
        return {
            "values": _values(self._arena[slot]),
            "aside": outcome.carried,
            **pack_trained(outcome.trained),
        }

    def restore(self, state: State) -> None:
        workers = len(self._trainers)
        aside = {*unpack_tickets(state.get("aside", ()))}
        for ticket, (slot, handed_in) in zip(unpack_tickets(state["tickets"]), state["rows"], strict=True):
            if slot in self._taken or whole(slot) < workers or (slot - workers) % workers != ticket.worker:
                raise ValueError(f"{ticket} cannot have the slot {slot}")
            promise = self._promises[ticket] = Promise(NO_INDICES, slot, source=ticket.worker)
            promise.handed_in = bool(handed_in)
            self._taken.add(slot)
            if promise.handed_in:
                own, saved = _values(self._arena[slot]), state["handed in"][str(slot)]
                _copy(own, like(own, saved["values"]))
                trained = unpack_trained(saved)
                self._blobs.put(slot, ticket.serial, Outcome(trained, saved["aside"]))
                if ticket in aside:
                    self._aside[ticket] = own, trained


def compute_shared(
    trainer: LocalTrainer, arena: ParameterArena, blobs: Blobs, *,
    serial: int, source: int, slot: int, go_on: Callable[[int], bool],
) -> bool:  # fmt: skip
    """On the worker: do the local work of a slot and its blob, and write the outcome to another. Was it done?"""
    work: LocalWork | None = blobs.get(source, serial)
    if work is None:
        return False  # it was halted, and the next one is being written
    outcome = compute(trainer, source, _values(arena[source]), work, go_on)
    if outcome is None:
        return False
    _copy(_values(arena[slot]), list(trainer.values()))
    blobs.put(slot, serial, outcome)
    return True


def _values(slot: Slot) -> list[Tensor]:
    return [*slot.parameters, *slot.buffers]


@torch.no_grad()
def _copy(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for own, value in zip(to, values, strict=True):
        own.copy_(value)
