"""Local training: what a worker does that trains a model of its own, wherever it runs.

Nothing stays with a worker. Its work comes with everything that it depends on, and the outcome holds everything that
the next one will: the model, the state of the optimizer and its scheduler, and the worker's random numbers. So work
that is halted, dropped, or lost with its worker leaves no trace, and a replacement continues from the last model that
was used. The same work gives the same bits wherever it is computed.

    trainers  one ``LocalTrainer`` a worker, on the server: what each has come to. They train only in a simulation
    start     ``local_work(trainer, batches, beginning)`` is sent to the worker: the values to begin with, and the rest
    worker    ``compute(trainer, worker, values, work, go_on)``, with a trainer made there once, of the same workload;
              the outcome, and the values of its trainer, are sent back
    step      ``adopt(trainer, values, outcome)`` on the server, only if and when the work is used

With ``state="worker"`` of a fleet, all that an optimizer keeps for each parameter stays with the worker instead, and is
lost with it. So that a replay comes to the same bits, it is the server that says when it begins anew: after the worker
joined, and after work that was halted, of which nobody knows how much was done.

``LazyModels`` (``contributions``) trains in this process when a step asks for it; ``shared`` is for workers that
share memory with the server.
"""

import copy
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.codec import whole
from paceline.core.stateful import State
from paceline.data.batches import Losses
from paceline.data.partition import Indices
from paceline.data.samples import to_device
from paceline.learning.devices import CPU
from paceline.learning.generators import own_generators, seed_numpy_and_python, work_seed
from paceline.learning.loss import PieceLoss, backward_in_pieces, numbers
from paceline.learning.model_state import all_finite, computes_weights, make_dense
from paceline.learning.optimizers import (
    as_made,
    check_states,
    optimizer_settings,
    optimizer_state,
    restore_optimizer,
    step_of,
)
from paceline.learning.task import device_of
from paceline.learning.workload import Workload, state_of
from paceline.randomness import restore_stream, stream, stream_state

log = logging.getLogger("paceline")


Logged = Mapping[str, tuple[float, float]]  # sums of what a step logs, and over how many samples


class Addition(Protocol):
    """What is added to the loss of a mini-batch, given the model's outputs for the samples of these indices."""

    def __call__(self, outputs: Tensor, indices: Indices, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of local training."""

    losses: list[Losses]  # of each mini-batch: of each sample, or of the whole where those are not known
    sums: list[tuple[float, float]]  # of each mini-batch: the sum of the losses, and what it is divided by
    finite: bool  # the losses and the model; training stops at the first loss that is not
    logged: Sequence[Logged]  # of each mini-batch: what a step logged


class LocalTrainer:
    """A worker's model, optimizer, scheduler and random numbers, which carry over from one local work to the next.

    The model is a copy of the workload's, unless it is given one for itself.
    """

    def __init__(self, workload: Workload, worker: int, seed: int, model: nn.Module | None = None) -> None:
        recipe = workload.recipe
        assert recipe is not None  # workers that train models are given one
        self.model, self.loss = workload.for_a_worker() if model is None else (model, workload.loss)
        self._state = state_of(self.model, self.loss.whole)
        self.parameters = self._state.parameters
        self.optimizer, self._schedule = recipe.make(self._state.named_parameters())
        self._workload = workload
        self._worker, self._seed = worker, seed
        self._device = device_of(self.model)
        self._clip_norm = recipe.clip_norm
        self._step = step_of(self.optimizer)
        self._generator = stream(seed, "local", worker)
        self._random = torch.Generator().manual_seed(int(self._generator.integers(2**62))).get_state()
        self._device_random: Tensor | None = None  # of the generator of its device, once it has drawn from that
        self._begun = 0  # how often it was given local work
        self._states: dict[int, defaultdict[Any, Any]] = {}  # of the optimizer, where it stays with workers
        self._as_made: Mapping[Any, Any] = {}
        self.made = as_made(self.optimizer, self._schedule.scheduler)
        # a mask may be infinite from the start
        self._finite_buffers = [b for b in self._state.buffers if b.is_floating_point() and all_finite([b])]

    def start_afresh(self) -> list[str]:
        """Draw the weights anew, in layers that know how (``reset_parameters``) and are trained.

        Returns the names of trained parameters that are what they were, since no layer has drawn them.
        """
        resets, drawn = list[Callable[[], object]](), set[int]()
        for module in dict.fromkeys(_inner_first(self.model)):
            reset = getattr(module, "reset_parameters", None)
            if isinstance(module, nn.MultiheadAttention):
                reset = module._reset_parameters  # torch has no other name for it
            if not callable(reset):
                continue
            if computes_weights(module):
                log.warning(
                    "worker %d: the weights of a %s are computed of others, and begin as they are",
                    self._worker,
                    type(module).__name__,
                )
            elif all(parameter.requires_grad for parameter in module.parameters()):  # frozen inner layers stay too
                resets.append(reset)
                drawn.update(map(id, module.parameters(recurse=False)))
        others = {
            name: (parameter, parameter.detach().clone())
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and id(parameter) not in drawn
        }
        with self._own_random_numbers():
            for reset in resets:
                reset()
        return [name for name, (parameter, before) in others.items() if torch.equal(parameter, before)]

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

    def served(self, update: int) -> AbstractContextManager[None]:
        """Let the server draw for this worker what depends on the number of updates alone: random data, to label it.

        Not on what was drawn before, which on processes is by whoever came first.
        """
        return own_generators(work_seed(self._seed, self._worker, -1 - update))

    @property
    def begun(self) -> int:
        """How often it was given local work that was used."""
        return self._begun

    def keep_state_of(self, worker: int, *, fresh: bool) -> None:
        """Let the optimizer have the state that it came to with a worker's last work here, or a fresh one."""
        if not self._states:
            self._as_made = self.optimizer.state  # some keep something from the start
        if fresh or worker not in self._states:
            made = {parameter: copy.deepcopy(values) for parameter, values in self._as_made.items()}
            self._states[worker] = defaultdict(dict, made)
        self.optimizer.state = self._states[worker]

    def carried(self, *, with_state: bool = True) -> State:
        """What carries over from one local work to the next, besides the model: not copied."""
        return {
            "optimizer": optimizer_state(self.optimizer) if with_state else optimizer_settings(self.optimizer),
            "scheduler": self._schedule.state(),
            "random": self._random,
            "begun": self._begun,
            **({} if self._device_random is None else {"device random": self._device_random}),
        }

    def carry_on(self, carried: State, *, of_worker: bool = False, with_state: bool = True) -> None:
        """Continue from there. What evaluations have made of the learning rate meanwhile, a worker does not know."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        restore_optimizer(self.optimizer, carried["optimizer"], only_settings=not with_state)
        if of_worker and self._schedule.by_metric:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        else:
            self._schedule.restore(carried["scheduler"])
        self._random = carried["random"]
        self._device_random = carried.get("device random")
        self._begun = whole(carried.get("begun", 0))  # older checkpoints do not tell

    def evaluated(self, updates: int, loss: float, accuracy: float) -> None:
        self._schedule.evaluated(updates, loss, accuracy)

    def state(self) -> State:
        return {"model": self._state.state(), "chosen": stream_state(self._generator), "aside": self.carried()}

    def restore(self, state: State) -> None:
        torch.Generator().set_state(state["aside"]["random"])  # refuses what cannot be one
        self._state.restore(state["model"])
        restore_stream(self._generator, state["chosen"])
        carried = state["aside"]
        check_states(self.optimizer, self._schedule.scheduler, carried["optimizer"], carried["scheduler"])
        self.carry_on(carried)

    def train(
        self, batches: Sequence[Indices], additions: Sequence[Addition | None],
        go_on: Callable[[int], bool] = lambda step: True,
    ) -> Trained:  # fmt: skip
        """One step for each mini-batch, on the task's loss and what is added to it, for as long as ``go_on(step)``."""
        losses: list[Losses] = []
        sums: list[tuple[float, float]] = []
        logged: list[Logged] = []
        with self._own_random_numbers():
            for step, (indices, addition) in enumerate(zip(batches, additions, strict=True)):
                own = self._train_one(indices, addition) if go_on(step) else None
                if own is None:
                    break
                losses.append(own.losses)
                sums.append((own.loss_sum, own.loss_weight))
                logged.append(own.logged)
        self._clear_gradients()  # one gradient in memory, not one for each worker
        finite = len(losses) == len(batches) and all_finite(self._to_be_finite())
        if not finite:
            self.optimizer.state.clear()  # what is not finite may still be in its momentum
        return Trained(losses, sums, finite, logged)

    def _to_be_finite(self) -> list[Tensor]:
        return [*(p.data for p in self.parameters if p.is_floating_point()), *self._finite_buffers]

    def fetch(self, indices: Indices) -> Any:
        """A batch, where the model is."""
        return to_device(self._workload.samples.fetch(indices), self._device)

    def _clear_gradients(self) -> None:
        """As ``Optimizer.zero_grad``, which takes as long as the step of a small model."""
        for parameter in self.parameters:
            parameter.grad = None

    def _train_one(self, indices: Indices, addition: Addition | None) -> PieceLoss | None:
        """What came of one mini-batch; nothing, and no step, if the loss is not finite."""
        self._clear_gradients()
        found = self._backward(indices, addition)
        if found is None:
            return None
        make_dense(self.parameters)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self._clip_norm)
        self._step()
        self._schedule.stepped()
        return found

    def _backward(self, indices: Indices, addition: Addition | None) -> PieceLoss | None:
        if (count := self._workload.micro_batches) > 1:
            assert addition is None  # ensembles are refused
            found = backward_in_pieces(
                self.loss,
                self.model,
                self.parameters,
                lambda part: self.fetch(indices[part]),
                samples=len(indices),
                count=count,
            )
            return found if math.isfinite(found.loss_sum) else None
        of_batch = self.loss.losses(self.model, self.fetch(indices), len(indices))
        mean = of_batch.mean()
        minimised = mean if addition is None else mean + addition(of_batch.outputs, indices)
        if not math.isfinite(float(minimised.detach())):
            return None
        torch.autograd.backward(minimised)
        logged = of_batch.logged_sums()
        if of_batch.each is None:
            return PieceLoss(numbers(mean.reshape(1)), *of_batch.sum_and_weight(), logged)
        losses = numbers(of_batch.each)
        return PieceLoss(losses, float(losses.sum(dtype=np.float64)), len(losses), logged)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Let torch draw from the worker's own stream (dropout), whoever trained before; seed numpy and Python anew.

        Torch continues where the worker's last local work ended, so that work may be cut in two. The seed of the
        others is not drawn from it, which would change that: it follows from the stream's seed and ``_begun``. The
        generator of a device begins with the stream's seed, and continues as the CPU's does.
        """
        before = torch.get_rng_state()
        torch.set_rng_state(self._random)
        device: Any = None if self._device.type == "cpu" else torch.get_device_module(self._device)
        if device is not None:
            device_before = device.get_rng_state()
            if self._device_random is None:
                device.manual_seed(torch.initial_seed())
            else:
                device.set_rng_state(self._device_random)
        seed_numpy_and_python(work_seed(torch.initial_seed(), 0, self._begun))  # torch's seed is the worker's own
        self._begun += 1
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(before)
            if device is not None:
                self._device_random = device.get_rng_state().cpu()
                device.set_rng_state(device_before)


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    """A layer may set weights of layers inside it, and so comes after them."""
    for child in module.children():
        yield from _inner_first(child)
    yield module


class Beginning(NamedTuple):
    """The values that local work begins with, or nothing for the worker's own, and what each step's loss is added."""

    values: Sequence[Tensor] | None
    additions: Sequence[Addition | None]


@dataclass(frozen=True, slots=True)
class LocalWork:
    """Local work as a worker is told of it, besides the values to begin with."""

    batches: Sequence[Indices]
    additions: Sequence[Addition | None]
    carried: State  # of the worker's trainer
    own_state: bool = False  # the optimizer's state is not carried: it stays with the worker
    fresh: bool = False  # and begins anew


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of local work, besides the model."""

    trained: Trained
    carried: State


def local_work(
    trainer: LocalTrainer, batches: Sequence[Indices], beginning: Beginning, *, own_state: bool = False,
    fresh: bool = False,
) -> tuple[Sequence[Tensor], LocalWork]:  # fmt: skip
    """What a worker has to be sent: the values to begin with, and the rest."""
    values = list(trainer.values()) if beginning.values is None else beginning.values
    carried = trainer.carried(with_state=not own_state)
    return values, LocalWork(batches, beginning.additions, carried, own_state, fresh)


def compute(
    trainer: LocalTrainer, worker: int, values: Sequence[Tensor], work: LocalWork, go_on: Callable[[int], bool]
) -> Outcome | None:
    """On the worker: one step for each mini-batch; nothing if ``go_on(step)`` says no. The trainer has the model."""
    stopped = False

    def watched(step: int) -> bool:
        nonlocal stopped
        stopped = not go_on(step)
        return not stopped

    trainer.load(values)
    if work.own_state:
        trainer.keep_state_of(worker, fresh=work.fresh)
    trainer.carry_on(work.carried, with_state=not work.own_state)
    trained = trainer.train(work.batches, work.additions, watched)
    return None if stopped else Outcome(trained, to_device(trainer.carried(with_state=not work.own_state), CPU))


def adopt(trainer: LocalTrainer, values: Sequence[Tensor], outcome: Outcome) -> Trained:
    """Let the server's trainer become what its worker handed in."""
    trainer.load(values)
    trainer.carry_on(outcome.carried, of_worker=True)
    return outcome.trained
