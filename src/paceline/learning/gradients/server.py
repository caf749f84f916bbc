"""The server: the model, its optimizer, and what the workers promised to contribute."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.core.codec import whole
from paceline.core.errors import ConfigError, Diverged
from paceline.core.messages import Joined, Left, Step, Ticket
from paceline.core.stateful import State
from paceline.data.batches import Batches, ObservesLosses, ObservesMembership
from paceline.learning.generators import PieceNumbers
from paceline.learning.gradients.lazy import Contributions, Evaluated, RowsAtHand
from paceline.learning.model_state import ModelState, all_finite
from paceline.learning.optimizers import (
    Pace,
    as_made,
    check_as_made,
    check_states,
    optimizer_state,
    refuse_closures,
    restore_optimizer,
    step_of,
)
from paceline.learning.packing import loss_so_far, pack_tickets, unpack_tickets
from paceline.learning.plain_sgd import plain_rate

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]

log = logging.getLogger("paceline")
SUSPICIOUS_NORM = 1e12  # a step along a larger gradient might itself overflow: the weights are put aside first


@dataclass(frozen=True)
class Recipe:
    """How a step along the combined gradient is made."""

    optimizer: MakeOptimizer
    scheduler: MakeScheduler | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm={self.clip_norm} would stop every update: it must be positive")
        if isinstance(self.optimizer, Optimizer) or not callable(self.optimizer):
            raise ConfigError(
                f"optimizer must be a function from parameters to a torch optimizer, not "
                f"{type(self.optimizer).__name__}: optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
            )

    def make(self, parameters: Sequence[torch.nn.Parameter]) -> tuple[Optimizer, Pace]:
        """The optimizer of some parameters, and its scheduler."""
        optimizer = self.optimizer(parameters)
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"optimizer= made a {type(optimizer).__name__}, which is no torch optimizer")
        refuse_closures(type(optimizer))
        handed = {id(parameter) for parameter in parameters}
        if any(id(parameter) not in handed for group in optimizer.param_groups for parameter in group["params"]):
            name = type(optimizer).__name__
            raise ConfigError(
                "the optimizer steps other parameters than it was handed, and would not train anything: a run trains "
                f"a copy of the model. Make it of what it is handed, optimizer=lambda p: torch.optim.{name}(p)"
            )
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ConfigError(
                "the scheduler is one of another optimizer than it was handed, and would have no effect: "
                f"scheduler=lambda optimizer: torch.optim.lr_scheduler.{type(scheduler).__name__}(optimizer, ...)"
            )
        return optimizer, Pace(scheduler)


class GradientServer:
    """Carries the coordinator's instructions out on the model."""

    def __init__(
        self, state: ModelState, recipe: Recipe, batches: Batches, contributions: Contributions, workers: int
    ) -> None:
        self.model = state.model
        self._model_state = state
        self.updates = 0
        self.samples = 0
        self.spoiled: list[Ticket] = []
        self._optimizer, self._pace = recipe.make(self._model_state.parameters)
        self._step = step_of(self._optimizer)
        self._clip_norm = recipe.clip_norm
        self.contributions = contributions
        self._at_hand = contributions if isinstance(contributions, RowsAtHand) and recipe.clip_norm is None else None
        self._rate = plain_rate(self._optimizer, self._model_state.parameters)
        self._batches = batches
        self._watchful = batches if isinstance(batches, ObservesLosses) else None
        self._attentive = batches if isinstance(batches, ObservesMembership) else None
        self._workers = workers
        self._kept: set[Ticket] = set()
        self._numbers = PieceNumbers()
        self._spoiled_in_a_row = 0
        self._loss_sum, self._loss_weight = 0.0, 0.0
        self._made = as_made(self._optimizer, self._pace.scheduler)
        # in half precision any step may overflow
        half = any(parameter.dtype is torch.float16 for parameter in state.parameters)
        self._suspicious_norm = 0.0 if half else SUSPICIOUS_NORM
        self._at_hand = None if half else self._at_hand

    def attend(self, event: Joined | Left) -> None:
        if self._attentive is not None:
            (self._attentive.joined if isinstance(event, Joined) else self._attentive.left)(event.worker)

    def start(self, ticket: Ticket) -> None:
        if ticket.work.kind != "gradient":
            raise ConfigError(
                f"{ticket.work.kind} cannot be handed in inside another rule: let the outer rule be the one that "
                "hands in models, as in ModelAveraging(every=16, waits=Grouped(...))"
            )
        self.contributions.promise(ticket, self._batches.draw(ticket.worker), self._numbers.give(ticket))

    def shorten(self, ticket: Ticket, done: int) -> None:
        samples = len(self.contributions.samples(ticket)) * done // ticket.work.units
        self._batches.put_back(ticket.worker, self.contributions.shorten(ticket, samples))

    def drop(self, ticket: Ticket) -> None:
        if ticket in self._kept:
            self._kept.discard(ticket)
        else:
            self._numbers.take_back(ticket)
            self._batches.put_back(ticket.worker, self.contributions.samples(ticket))
        self.contributions.settle([ticket])

    def step(self, step: Step) -> list[Ticket]:
        """Update the model. Returns the contributions that were left out because they are not finite."""
        contributions, kept = self.contributions, self._kept
        foreseen = self._foresee(step)
        result = contributions.evaluate(step.weights, step.keep) if foreseen is None else foreseen
        new = [ticket for ticket in step.weights if ticket not in kept]
        self._observe(result)
        self._count_spoiled(new, result)
        kept.difference_update(step.weights)
        kept.update(step.keep)
        contributions.settle(ticket for ticket in step.weights if ticket not in kept)
        if foreseen is None:
            contributions.before_update()
        if len(result.spoiled) < len(step.weights):
            if result.buffers:
                fresh = all(ticket.version == self.updates for ticket in step.weights)
                self._model_state.move_buffers(result.buffers, fresh=fresh)
            if foreseen is None:
                self._move(result, oldest=min(ticket.version for ticket in step.weights))
            elif self._at_hand is not None:
                self._at_hand.descend()
            self._pace.stepped()
        self.updates += 1
        return result.spoiled

    def _foresee(self, step: Step) -> Evaluated | None:
        """What the contributions come to, if the model can be moved along them as they are."""
        if self._at_hand is None or (rate := self._rate()) is None:
            return None
        return self._at_hand.foresee(step.weights, rate)

    def judged(self, loss: float, accuracy: float) -> None:
        """The model was evaluated: a scheduler that waits for it may lower the learning rate."""
        self._pace.judged(self.updates, loss, accuracy)

    def training_loss(self) -> float:
        """The mean loss of the samples used since the last call."""
        mean = self._loss_sum / self._loss_weight if self._loss_weight else float("nan")
        self._loss_sum, self._loss_weight = 0.0, 0.0
        return mean

    def state(self) -> State:
        """The model, its optimizer and the counts. The batches and the contributions have states of their own."""
        return {
            "made": self._made,
            "model": self._model_state.state(),
            "optimizer": optimizer_state(self._optimizer),
            "scheduler": self._pace.state(),
            "counts": [self.updates, self.samples, self._spoiled_in_a_row],
            "loss": [self._loss_sum, self._loss_weight],
            "kept": pack_tickets(sorted(self._kept)),
            "spoiled": pack_tickets(self.spoiled),
            "numbers": self._numbers.state(),
        }

    def restore(self, state: State) -> None:
        check_as_made(self._made, state["made"])
        self._model_state.restore(state["model"])
        check_states(self._optimizer, self._pace.scheduler, state["optimizer"], state["scheduler"])
        restore_optimizer(self._optimizer, state["optimizer"])
        self._pace.restore(state["scheduler"])
        self.updates, self.samples, self._spoiled_in_a_row = map(whole, state["counts"][:3])
        self._loss_sum, self._loss_weight = loss_so_far(state)
        self._kept.update(unpack_tickets(state["kept"]))
        self.spoiled += unpack_tickets(state["spoiled"])
        if "numbers" in state:  # otherwise it was put aside when seeds went by tickets
            self._numbers.restore(state["numbers"])

    def _observe(self, result: Evaluated) -> None:
        """Hand the losses out, each sample's once."""
        kept, watchful = self._kept, self._watchful
        for each in result.passes:
            # those that were kept were computed once before
            first = each if kept.isdisjoint(each.tickets) else each.without(kept)
            self.samples += sum(first.samples)
            self._loss_sum += first.total
            self._loss_weight += first.weight
            if watchful is not None:
                for ticket, losses in first.of_tickets():
                    watchful.observe(ticket.worker, self.contributions.samples(ticket), losses)

    def _count_spoiled(self, new: list[Ticket], result: Evaluated) -> None:
        spoiled = result.spoiled
        if not spoiled:
            self._spoiled_in_a_row = 0
            return
        self.spoiled += spoiled
        finite = [ticket for ticket in new if ticket not in spoiled]
        self._spoiled_in_a_row = 0 if finite else self._spoiled_in_a_row + len(spoiled)
        for ticket in spoiled:
            staleness = self.updates - ticket.version
            log.warning(
                "update %d leaves out worker %d: its contribution is not finite (model version %d, staleness %d)",
                self.updates + 1, ticket.worker, ticket.version, staleness,
            )  # fmt: skip
        if not finite and (len(new) > 1 or self._spoiled_in_a_row >= self._workers):
            oldest = min(ticket.version for ticket in new)
            raise Diverged(
                f"diverged at update {self.updates + 1}: none of the last {self._spoiled_in_a_row} contributions is "
                f"finite (model version {oldest}, staleness {self.updates - oldest}); the last good weights are kept",
                spoiled,
            )

    def _move(self, result: Evaluated, oldest: int) -> None:
        aside = self._model_state.copy() if result.norm > self._suspicious_norm else None
        if self._clip_norm is not None and result.norm > self._clip_norm:
            for flat in self._model_state.gradients:
                flat.mul_(self._clip_norm / result.norm)
        if result.unused:
            with self._model_state.without_gradients(result.unused):
                self._step()
        else:
            self._step()
        if aside is not None and not all_finite(self._model_state.view().parameters):
            self._model_state.swap_in(aside)
            raise Diverged(
                f"diverged at update {self.updates + 1}: the step along a gradient of norm {result.norm:g} is not "
                f"finite (model version {oldest}, staleness {self.updates - oldest}); the last good weights are kept"
            )
