"""One worker that trains a model of its own."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.codec import whole
from paceline.core.stateful import State
from paceline.data.batches import Losses
from paceline.data.partition import Indices
from paceline.data.samples import to_device
from paceline.learning.generators import piece_seed, seed_numpy_and_python
from paceline.learning.gradients.server import Recipe
from paceline.learning.loss import numbers
from paceline.learning.model_state import all_finite, computes_weights, make_dense
from paceline.learning.optimizers import as_made, check_states, optimizer_state, restore_optimizer, step_of
from paceline.learning.task import device_of
from paceline.learning.workload import Workload, state_of
from paceline.randomness import restore_stream, stream, stream_state

log = logging.getLogger("paceline")


class Addition(Protocol):
    """What is added to the loss of a mini-batch, given the model's outputs for the samples of these indices."""

    def __call__(self, outputs: Tensor, indices: Indices, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a piece of local training."""

    losses: list[Losses]  # of each mini-batch: of each sample, or of the whole where those cannot be told
    sums: list[tuple[float, float]]  # of each mini-batch: the sum of the losses, and what it is divided by
    finite: bool  # the losses and the model; training stops at the first loss that is not


class LocalTrainer:
    """A worker's model, optimizer, scheduler and random numbers, which go on from one piece of work to the next.

    The model is a copy of the workload's, unless it is given one for itself.
    """

    def __init__(
        self, workload: Workload, recipe: Recipe, worker: int, seed: int, model: nn.Module | None = None
    ) -> None:
        self.model, self.loss = workload.for_a_worker() if model is None else (model, workload.loss)
        self._state = state_of(self.model, self.loss.whole)
        self.parameters = self._state.parameters
        self.optimizer, self._pace = recipe.make(self.parameters)
        self._workload = workload
        self._worker = worker
        self._device = device_of(self.model)
        self._clip_norm = recipe.clip_norm
        self._step = step_of(self.optimizer)
        self._generator = stream(seed, "local", worker)
        self._random = torch.Generator().manual_seed(int(self._generator.integers(2**62))).get_state()
        self._begun = 0  # pieces of work
        self.made = as_made(self.optimizer, self._pace.scheduler)
        # a mask may be infinite from the start
        self._finite_buffers = [b for b in self._state.buffers if b.is_floating_point() and all_finite([b])]

    def start_afresh(self) -> int:
        """Draw the weights anew, in layers that know how (``reset_parameters``) and are trained. Returns how many."""
        drawn = 0
        with self._own_random_numbers():
            for module in self.model.modules():
                reset = getattr(module, "reset_parameters", None)
                if not callable(reset):
                    continue
                if computes_weights(module):
                    log.warning(
                        "worker %d: the weights of a %s are computed of others, and begin as they are",
                        self._worker,
                        type(module).__name__,
                    )
                elif all(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                    reset()
                    drawn += 1
        return drawn

    def values(self) -> Iterator[Tensor]:
        """Parameters and buffers, in a fixed order."""
        yield from (parameter.data for parameter in self.parameters)
        yield from self._state.buffers

    def load(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for own, value in zip(self.values(), values, strict=True):
                own.copy_(value)

    def choose(self, samples: Indices, fraction: float) -> Indices:
        """A random part of some samples."""
        count = round(fraction * len(samples))
        return np.sort(self._generator.choice(samples, size=count, replace=False)) if count else samples[:0]

    def aside(self) -> State:
        """What goes on from one piece to the next, besides the model: not copied."""
        return {
            "optimizer": optimizer_state(self.optimizer),
            "scheduler": self._pace.state(),
            "random": self._random,
            "begun": self._begun,
        }

    def take_up(self, aside: State, *, of_worker: bool = False) -> None:
        """Go on from there. What evaluations have made of the learning rate meanwhile, a worker does not know."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        restore_optimizer(self.optimizer, aside["optimizer"])
        if of_worker and self._pace.by_metric:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        else:
            self._pace.restore(aside["scheduler"])
        self._random = aside["random"]
        self._begun = whole(aside.get("begun", 0))  # older checkpoints do not tell

    def judged(self, updates: int, loss: float, accuracy: float) -> None:
        self._pace.judged(updates, loss, accuracy)

    def state(self) -> State:
        return {"model": self._state.state(), "chosen": stream_state(self._generator), "aside": self.aside()}

    def restore(self, state: State) -> None:
        torch.Generator().set_state(state["aside"]["random"])  # refuses what cannot be one
        self._state.restore(state["model"])
        restore_stream(self._generator, state["chosen"])
        aside = state["aside"]
        check_states(self.optimizer, self._pace.scheduler, aside["optimizer"], aside["scheduler"])
        self.take_up(aside)

    def train(
        self, batches: Sequence[Indices], additions: Sequence[Addition | None],
        go_on: Callable[[int], bool] = lambda step: True,
    ) -> Trained:  # fmt: skip
        """One step for each mini-batch, on the task's loss and what is added to it, for as long as it may go on."""
        losses: list[Losses] = []
        sums: list[tuple[float, float]] = []
        with self._own_random_numbers():
            for step, (indices, addition) in enumerate(zip(batches, additions, strict=True)):
                own = self._train_one(indices, addition, sums) if go_on(step) else None
                if own is None:
                    break
                losses.append(own)
        self.optimizer.zero_grad(set_to_none=True)  # one gradient in memory, not one for each worker
        finite = len(losses) == len(batches) and all_finite(self._to_be_finite())
        if not finite:
            self.optimizer.state.clear()  # what spoilt the model may still be in its momentum
        return Trained(losses, sums, finite)

    def _to_be_finite(self) -> list[Tensor]:
        return [*(p.data for p in self.parameters if p.is_floating_point()), *self._finite_buffers]

    def fetch(self, indices: Indices) -> tuple[Any, Any]:
        """Inputs and targets, where the model is."""
        inputs, targets = to_device(self._workload.samples.fetch(indices), self._device)
        return inputs, targets

    def _train_one(self, indices: Indices, addition: Addition | None, sums: list[tuple[float, float]]) -> Losses | None:
        """The losses of the samples; nothing, and no step, if the loss is not finite."""
        inputs, targets = self.fetch(indices)
        self.optimizer.zero_grad(set_to_none=True)
        outputs: Any = self.model(inputs)
        whole, each = self.loss.mean(outputs, targets)
        minimised = whole if addition is None else whole + addition(outputs, indices)
        if not math.isfinite(float(minimised.detach())):
            return None
        torch.autograd.backward(minimised)
        make_dense(self.parameters)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self._clip_norm)
        self._step()
        self._pace.stepped()
        if each is None:
            sums.append(self.loss.sum_and_weight(whole, outputs, targets, len(indices)))
            return numbers(whole.reshape(1))
        losses = numbers(each)
        sums.append((float(losses.sum(dtype=np.float64)), len(losses)))
        return losses

    def _own_random_numbers(self) -> "_OwnRandomNumbers":
        return _OwnRandomNumbers(self)


class _OwnRandomNumbers:
    """Lets torch draw from a worker's own stream (dropout), whoever trained before it; seeds numpy and Python anew.

    Torch goes on where the worker's last piece of work ended, so that a piece may be cut in two. The seed of the others
    is not drawn from it, which would change that: it follows from the stream's seed and the number of the piece.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        self._trainer = trainer

    def __enter__(self) -> None:
        self._before = torch.get_rng_state()
        torch.set_rng_state(self._trainer._random)
        seed_numpy_and_python(piece_seed(torch.initial_seed(), self._trainer._worker, self._trainer._begun))
        self._trainer._begun += 1

    def __exit__(self, *exception: object) -> None:
        self._trainer._random = torch.get_rng_state()
        torch.set_rng_state(self._before)
