"""The server of a run in which workers hand in gradients: the model, its optimizer, and one step an update."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.core.errors import ConfigError, Diverged
from paceline.core.messages import REPORTS, Step, Ticket
from paceline.core.stateful import State
from paceline.data.batches import Batches
from paceline.learning.contributions import Contributions, Evaluated, Weights
from paceline.learning.gradients.compensation import DelayCompensation
from paceline.learning.learner import Server
from paceline.learning.model_state import ModelState, all_finite
from paceline.learning.optimizers import (
    Recipe,
    as_made,
    check_states,
    optimizer_state,
    plain_rate,
    restore_optimizer,
    step_of,
)
from paceline.learning.reports import UpdateReports

SUSPICIOUS_NORM = 1e12  # a step along a larger gradient might itself overflow: the weights are copied first


@runtime_checkable
class StepsInPlace(Contributions, Protocol):
    """Contributions that the model can be moved along without their sum being written down first."""

    def prepare_step(self, weights: Weights, learning_rate: float, /) -> Evaluated | None:
        """What ``evaluate`` would return, where it is sure that a step of this learning rate is finite."""
        ...

    def apply_step(self) -> None:
        """Take the step that was prepared, in place of ``before_update`` and a step of the optimizer."""
        ...


@runtime_checkable
class HoldsModel(Contributions, Protocol):
    """Contributions that hold the model and the optimizer's state elsewhere, in the shards of a server."""

    def begin(self, optimizer: Optimizer, /) -> None: ...

    def apply(self, optimizer: Optimizer, scale: float | None, unused: Collection[int], /, *, check: bool) -> bool:
        """Take the step that was evaluated. Returns false if that is not finite; then nothing has moved."""
        ...

    def fetch(self) -> None:
        """Bring the present weights to the model of this process."""
        ...

    def gather(self, optimizer: Optimizer, /) -> None:
        """Bring the optimizer's state here."""
        ...

    def scatter(self, optimizer: Optimizer, /) -> None:
        """Send the model and the optimizer's state of this process to where they are held."""
        ...


@runtime_checkable
class Lends(Contributions, Protocol):
    """Contributions whose sum may be the gradient where it lies, if nobody is going to write to it."""

    lends: bool


@runtime_checkable
class MeasuresSpread(Contributions, Protocol):
    """Contributions that can tell how much gradients of one update differ: ``Evaluated.mean_square``."""

    measure_spread: bool


class GradientServer(Server):
    """Carries the coordinator's instructions out on one model: an update is a step along a sum of gradients."""

    kinds: Collection[str] = ("gradient",)
    handed_in = "contribution"
    reportable: Collection[str] = tuple(REPORTS)
    kept_when_diverged = "; the last good weights are kept"

    def __init__(
        self, state: ModelState, recipe: Recipe, batches: Batches, contributions: Contributions, workers: int
    ) -> None:
        self._model_state = state
        self._optimizer, self._schedule = recipe.make(state.named_parameters())
        super().__init__(contributions, batches, workers, as_made(self._optimizer, self._schedule.scheduler))
        self._step = step_of(self._optimizer)
        self._clip_norm = recipe.clip_norm
        self._learning_rate = plain_rate(self._optimizer, state.parameters)
        # in half precision any step may overflow
        half = any(parameter.dtype is torch.float16 for parameter in state.parameters)
        self._suspicious_norm = 0.0 if half else SUSPICIOUS_NORM
        plain = self._learning_rate is not None and recipe.clip_norm is None and not half
        self._in_place = contributions if plain and isinstance(contributions, StepsInPlace) else None
        if isinstance(contributions, Lends):  # torch's own optimizers leave gradients as they are
            contributions.lends = recipe.clip_norm is None and type(self._optimizer).__module__.startswith(
                "torch.optim."
            )
        self._elsewhere = contributions if isinstance(contributions, HoldsModel) else None
        if self._elsewhere is not None:
            self._elsewhere.begin(self._optimizer)
        self._reports: UpdateReports | None = None
        self._compensation: DelayCompensation | None = None

    def ask_for(self, names: Collection[str], rule: str) -> None:
        super().ask_for(names, rule)
        if not names:
            return
        self._refuse_elsewhere(f"{rule} goes by numbers of gradients")
        self._reports = UpdateReports(names)
        self._in_place = None  # the sum is needed
        if "spread" in names:
            if not isinstance(self.contributions, MeasuresSpread):
                raise ConfigError(f"{rule} goes by the spread of gradients, which this fleet does not measure")
            self.contributions.measure_spread = True

    def compensate(self, strength: float) -> None:
        """Add a compensation for its age to each gradient: see ``DelayCompensation``."""
        self._refuse_elsewhere("compensate_delay= changes gradients")
        if isinstance(self.contributions, Lends):
            self.contributions.lends = False
        self._compensation = DelayCompensation(strength, self._model_state)
        self._in_place = None  # the gradient is changed before the step

    def _refuse_elsewhere(self, what: str) -> None:
        if self._elsewhere is not None:
            raise ConfigError(f"{what}, and with shards no process has the whole gradient: use shards=1")

    def report(self) -> Mapping[str, float]:
        assert self._reports is not None
        return self._reports.numbers()

    @property
    def model(self) -> nn.Module:
        if self._elsewhere is not None:
            self._elsewhere.fetch()
        return self._model_state.model

    def start(self, ticket: Ticket) -> None:
        if ticket.work.kind != "gradient":
            raise self.refuse(ticket)
        self.contributions.promise(ticket, (self._batches.draw(ticket.worker),), self._numbers.give(ticket))
        if self._compensation is not None:
            self._compensation.downloaded(ticket)

    def drop(self, ticket: Ticket) -> None:
        super().drop(ticket)
        if self._compensation is not None:
            self._compensation.settled(ticket)

    def step(self, step: Step) -> Sequence[Ticket]:
        """Update the model. Returns the contributions that were left out: not finite, or lost with their machine."""
        contributions, kept = self.contributions, self._kept
        prepared = self._prepare(step)
        result = contributions.evaluate(step.weights, step.keep) if prepared is None else prepared
        left_out = [*result.non_finite, *result.lost]
        new = [ticket for ticket in step.weights if ticket not in kept and ticket not in result.lost]
        loss = self._observe(result)
        self._count_non_finite(new, result.non_finite)
        if self._replicas is not None:
            for ticket in new:
                self._replicas.used(ticket.worker)
        kept.difference_update(step.weights)
        kept.update(step.keep)
        contributions.settle(ticket for ticket in step.weights if ticket not in kept)
        if prepared is None:
            contributions.before_update()
        if len(left_out) < len(step.weights):
            if result.buffers:
                fresh = all(ticket.version == self.updates for ticket in step.weights)
                self._model_state.move_buffers(result.buffers, fresh=fresh)
            if self._compensation is not None:
                result.norm = self._compensation.apply(step.weights)
            if self._reports is not None:
                self._reports.note(self._model_state.gradients, result, loss, step.weights)
            if prepared is None:
                self._move(result, oldest=min(ticket.version for ticket in step.weights))
            elif self._in_place is not None:
                self._in_place.apply_step()
            if self._schedule.scheduler is not None:
                self._schedule.stepped()
        if self._compensation is not None:
            for ticket in step.weights:
                self._compensation.settled(ticket)
        self.updates += 1
        return left_out

    def _prepare(self, step: Step) -> Evaluated | None:
        """What the contributions come to, if the model can be moved along them as they are."""
        if self._in_place is None or self._learning_rate is None or (learning_rate := self._learning_rate()) is None:
            return None
        return self._in_place.prepare_step(step.weights, learning_rate)

    def evaluated(self, loss: float, accuracy: float) -> None:
        self._schedule.evaluated(self.updates, loss, accuracy)

    def state(self) -> State:
        """The model, its optimizer and the counts. The batches and the contributions have states of their own."""
        if self._elsewhere is not None:
            self._elsewhere.fetch()
            self._elsewhere.gather(self._optimizer)
        return {
            **super().state(),
            "model": self._model_state.state(),
            "optimizer": optimizer_state(self._optimizer),
            "scheduler": self._schedule.state(),
            **({} if self._reports is None else {"reports": self._reports.state()}),
            **({} if self._compensation is None else {"compensation": self._compensation.state()}),
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        self._model_state.restore(state["model"])
        check_states(self._optimizer, self._schedule.scheduler, state["optimizer"], state["scheduler"])
        restore_optimizer(self._optimizer, state["optimizer"])
        self._schedule.restore(state["scheduler"])
        if self._elsewhere is not None:
            self._elsewhere.scatter(self._optimizer)
        if self._reports is not None:
            self._reports.restore(state["reports"], self._model_state.gradients)
        if self._compensation is not None:
            self._compensation.restore(state["compensation"])

    def _details(self, ticket: Ticket) -> str:
        return f"(model version {ticket.version}, staleness {self.updates - ticket.version})"

    def _move(self, result: Evaluated, oldest: int) -> None:
        check = result.norm > self._suspicious_norm
        scale = None
        if self._clip_norm is not None and result.norm > self._clip_norm:
            scale = self._clip_norm / result.norm
        if self._elsewhere is not None:
            finite = self._elsewhere.apply(self._optimizer, scale, result.unused, check=check)
        else:
            finite = self._apply(scale, result.unused, check=check)
        if not finite:
            raise Diverged(
                f"diverged at update {self.updates + 1}: the step along a gradient of norm {result.norm:g} is not "
                f"finite (model version {oldest}, staleness {self.updates - oldest}); the last good weights are kept"
            )

    def _apply(self, scale: float | None, unused: Collection[int], *, check: bool) -> bool:
        """Step. Returns false if that is not finite, where it is checked; then nothing has moved."""
        before = self._model_state.copy() if check else None
        if scale is not None:
            for flat in self._model_state.gradients:
                flat.mul_(scale)
        if unused:
            with self._model_state.without_gradients(unused):
                self._step()
        else:
            self._step()
        if before is not None and not all_finite(self._model_state.view().parameters):
            self._model_state.swap_in(before)
            return False
        return True
