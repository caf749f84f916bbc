"""A model's weights and buffers as something that can be swapped out and in without copying."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from paceline.core.errors import ConfigError

HALF = (torch.bfloat16, torch.float16)
LARGE = 1 << 20  # bytes
ALIGNMENT = 64  # bytes, as torch aligns tensors
COMPILED = "_orig_mod."  # torch.compile puts it before the names of what it compiled


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of a model at one version."""

    parameters: list[Tensor]
    buffers: list[Tensor]


class ModelState:
    """The trained parameters and the buffers of a model, and one flat vector that holds all of its gradients.

    The parameters' ``grad`` are views into the flat vector (one for each type of number), so that whatever concerns the
    whole gradient, its norm or a multiple of another, is one pass over memory.
    """

    def __init__(self, model: nn.Module, loss: nn.Module | None = None) -> None:
        self.model = model
        # where the loss has parameters of its own, they and its buffers are trained, sent and saved like the model's
        self.trained: nn.Module = model if loss is None else nn.ModuleDict({"model": model, "loss": loss})
        self.parameters = [parameter for parameter in self.trained.parameters() if parameter.requires_grad]
        self.buffers = list(self.trained.buffers())

    @cached_property
    def gradients(self) -> list[Tensor]:
        """The flat vectors; laid out when a gradient is first wanted, which in some runs is never."""
        kinds = dict.fromkeys((parameter.dtype, parameter.device) for parameter in self.parameters)
        return [self._lay_out(dtype, device) for dtype, device in kinds]

    def _lay_out(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make the gradients of one type of parameters views into one new vector."""
        alike = [parameter for parameter in self.parameters if (parameter.dtype, parameter.device) == (dtype, device)]
        flat = _zeros(sum(parameter.numel() for parameter in alike), dtype, device)
        begin = 0
        for parameter in alike:
            # with a count of its own of how often it was changed: that of a view is the whole vector's
            parameter.grad = flat[begin : begin + parameter.numel()].view(parameter.shape).data
            begin += parameter.numel()
        return flat

    def use_gradients(self, vectors: list[Tensor], of_parameters: list[Tensor]) -> None:
        """Let the gradients lie in other vectors, one for each type of number, with a view for each parameter."""
        self.gradients = vectors
        for parameter, gradient in zip(self.parameters, of_parameters, strict=True):
            parameter.grad = gradient

    @contextmanager
    def without_gradients(self, unused: Collection[int]) -> Iterator[None]:
        """Let some parameters have no gradient, as torch leaves those that a loss does not depend on."""
        gradients = [self.parameters[number].grad for number in unused]
        for number in unused:
            self.parameters[number].grad = None
        try:
            yield
        finally:
            for number, gradient in zip(unused, gradients, strict=True):
                self.parameters[number].grad = gradient

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Those that are trained, by the names that they have in the model that the user gave, compiled or not."""
        named = [(name, each) for name, each in self.trained.named_parameters() if each.requires_grad]
        of_model = "" if self.trained is self.model else "model."
        return [(name.removeprefix(of_model).replace(COMPILED, ""), each) for name, each in named]

    @property
    def message_bytes(self) -> int:
        """What is sent when a worker downloads the model, or hands in a gradient and its float buffers."""
        return message_bytes(self.trained)

    def view(self) -> Snapshot:
        """The present values themselves: they change when the model does."""
        return Snapshot([parameter.data for parameter in self.parameters], [buffer.data for buffer in self.buffers])

    def copy(self) -> Snapshot:
        """The present values, to keep."""
        return Snapshot([p.detach().clone() for p in self.parameters], [b.detach().clone() for b in self.buffers])

    def swap_in(self, snapshot: Snapshot) -> None:
        """Let the model have the values of a snapshot: pointers move, nothing is copied."""
        for parameter, value in zip(self.parameters, snapshot.parameters, strict=True):
            parameter.data = value
        for buffer, value in zip(self.buffers, snapshot.buffers, strict=True):
            buffer.data = value

    def state(self) -> dict[str, Tensor]:
        """All parameters and buffers by name, those that are not trained or not persistent too."""
        return dict(self._named())

    def restore(self, state: Mapping[str, Any]) -> None:
        named = dict(self._named())
        for name in dict.fromkeys([*named, *state]):
            if _described(named.get(name)) != _described(state.get(name)):
                raise ConfigError(
                    f"the checkpoint is of another model: its {name!r} is {_described(state.get(name))}, "
                    f"here it is {_described(named.get(name))}"
                )
        for name, tensor in named.items():
            tensor.copy_(state[name])

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in chain(self.trained.named_parameters(), self.trained.named_buffers()):
            yield name, tensor.data

    def snapshot_from(self, state: Mapping[str, Any]) -> Snapshot:
        """A snapshot of a checkpoint, laid out in memory as the model is."""
        present = self.view()
        return Snapshot(like(present.parameters, state["parameters"]), like(present.buffers, state["buffers"]))

    def lend_buffers(self) -> list[Tensor]:
        """Let a pass work on a copy of the buffers. Returns the originals."""
        before = [buffer.data for buffer in self.buffers]
        for buffer in self.buffers:
            buffer.data = buffer.data.clone()
        return before

    def take_buffers_back(self, before: list[Tensor]) -> list[Tensor]:
        """Put the originals back. Returns what the pass made of its copies."""
        own = [buffer.data for buffer in self.buffers]
        for buffer, value in zip(self.buffers, before, strict=True):
            buffer.data = value
        return own

    def move_buffers(self, changes: Sequence["BufferChange"], *, fresh: bool, pulled: bool = False) -> None:
        r"""Buffers move as parameters do, by what the workers changed since they downloaded them.

        $$b \leftarrow b + \sum_i w_i \bigl(r_i\,(b_i - b^{(i)}) - f_i\,(b - b^{(i)})\bigr),$$

        where worker $i$ began with $b^{(i)}$ and came to $b_i$. For most buffers $r = 1$ and $f = 0$. The running
        statistics of batch normalisation forget: after $k$ mini-batches of momentum $m$, the share
        $f = 1 - (1 - m)^k$ of what they were, and $r = 1$. The last term lets them forget what they are now instead of
        what they were at the download, so that each worker's mini-batches count as if they had been passed through the
        model at hand. (Without it they would swing with 16 asynchronous workers and a momentum of 0.1, and grow
        without bound with more.) Without a momentum they are the mean of all mini-batches; then $f = k / (n + k)$ if
        the model has seen $n$, and $r = f / f^{(i)}$ with the worker's own share.
        Where all began with $b$ (they are ``fresh``) there is nothing to forget, $r = 1$; and where $\sum w_i = 1$ too,
        all this is $\sum_i w_i b_i$. Where the model is ``pulled`` by the workers' own, whatever they began with, its
        buffers are too: $b \leftarrow b + \sum_i w_i (b_i - b)$.

        Mini-batches are counted whole: whoever moves the model by a fraction of what a worker learnt ($\sum w_i < 1$)
        has learnt of its mini-batches all the same. So whole numbers and flags, and means of all mini-batches, which go
        by such a count, are never pulled: they move by what changed in the worker's work, with weights that add up to
        1. What whole numbers move by is rounded to the nearest one, halves to the even one; what is true or false is 1
        or 0. So a count of mini-batches goes up by one with each update: of one worker, or of all together.
        """
        whole = _whole(changes)
        values = [
            self._becomes(number, whole, fresh=fresh)
            if self.counts_whole(number)
            else self._becomes(number, changes, fresh=fresh, pulled=pulled)
            for number in range(len(self.buffers))
        ]
        for buffer, value in zip(self.buffers, values, strict=True):
            buffer.data = value

    def _becomes(self, number: int, changes: Sequence["BufferChange"], *, fresh: bool, pulled: bool = False) -> Tensor:
        """The next value of one buffer."""
        buffer = self.buffers[number].data
        each = [(float(weight), buffer if pulled else began[number], own[number]) for weight, began, own in changes]
        if all(torch.equal(began, own) for _, began, own in each):
            return buffer
        if not (buffer.is_floating_point() or buffer.is_complex()):
            return _counted(buffer, each)
        keep = fresh or pulled
        shares = [_KEPT if keep else self._shares(number, change) for change in changes]
        return _moved(buffer, each, shares, average=keep and sum(change.weight for change in changes) == 1)

    def counts_whole(self, number: int) -> bool:
        """Does a buffer count mini-batches, or is it a mean of all that were counted?"""
        buffer, (module, _) = self.buffers[number], self._statistics.get(number, (None, 0))
        real = buffer.is_floating_point() or buffer.is_complex()
        return not real or (module is not None and module.momentum is None)

    def _shares(self, number: int, change: "BufferChange") -> tuple[float, float]:
        """The factors r and f of a worker's change of a buffer."""
        module, counter = self._statistics.get(number, (None, 0))
        if module is None:
            return _KEPT
        seen, before, after = (int(each[counter]) for each in (self.buffers, change.began, change.own))
        if module.momentum is not None:
            return 1.0, 1.0 - float((1.0 - module.momentum) ** (after - before))
        if after == before:
            return _KEPT
        share = (after - before) / (seen + after - before)
        return share * after / (after - before), share

    @cached_property
    def _statistics(self) -> dict[int, tuple[nn.modules.batchnorm._NormBase, int]]:
        """The buffers that are running statistics: of which module, and which buffer counts its mini-batches."""
        places = {id(buffer): number for number, buffer in enumerate(self.buffers)}
        return {
            places[id(statistic)]: (module, places[id(module.num_batches_tracked)])
            for module in self.trained.modules()
            if isinstance(module, nn.modules.batchnorm._NormBase) and id(module.num_batches_tracked) in places
            for statistic in (module.running_mean, module.running_var)
            if id(statistic) in places
        }


class BufferChange(NamedTuple):
    """What a worker's buffers were when it began its work, what they became, and the weight that this has."""

    weight: Fraction
    began: Sequence[Tensor]
    own: Sequence[Tensor]


def _zeros(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector of zeros. A large one takes memory only when it is written to, which in some runs it never is."""
    size = count * dtype.itemsize
    if device.type != "cpu" or size < LARGE:
        return torch.zeros(count, dtype=dtype, device=device)
    memory = torch.from_numpy(np.zeros(size + ALIGNMENT, dtype=np.uint8))  # torch's own zeros are written at once
    begin = -memory.data_ptr() % ALIGNMENT
    return memory[begin : begin + size].view(dtype)


Changes = Sequence[tuple[float, Tensor, Tensor]]  # of one buffer: weight, what it was, what it became


_KEPT = 1.0, 0.0  # nothing is forgotten


def _moved(buffer: Tensor, each: Changes, shares: Sequence[tuple[float, float]], *, average: bool) -> Tensor:
    wide = torch.promote_types(buffer.dtype, torch.float32)
    total = torch.zeros_like(buffer, dtype=wide) if average else buffer.to(wide, copy=True)
    for (weight, began, own), (scale, forgotten) in zip(each, shares, strict=True):
        if average:
            total.add_(own, alpha=weight)
        else:  # what stays as it is may be infinite, such as a mask
            total.add_(torch.where(own == began, 0, own.to(wide) - began.to(wide)), alpha=weight * scale)
            if forgotten:
                total.sub_(buffer.to(wide) - began.to(wide), alpha=weight * forgotten)
    return total.to(buffer.dtype)


def _whole(changes: Sequence[BufferChange]) -> Sequence[BufferChange]:
    """Weights that add up to 1, if they move the model by a fraction. A negative one takes something back."""
    total = sum(change.weight for change in changes)
    fraction = total < 1 and all(change.weight > 0 for change in changes)
    return [change._replace(weight=change.weight / total) for change in changes] if fraction else changes


def _counted(buffer: Tensor, each: Changes) -> Tensor:
    total = torch.zeros_like(buffer, dtype=torch.float64)
    for weight, began, own in each:
        total.add_(own.to(torch.float64) - began.to(torch.float64), alpha=weight)
    moved = buffer + total.round_().to(torch.int64)
    return moved.clamp_(0, 1).to(torch.bool) if buffer.dtype is torch.bool else moved.to(buffer.dtype)


def make_dense(parameters: Sequence[nn.Parameter]) -> None:
    """Gradients of ``nn.Embedding(sparse=True)`` as those of any other layer: so they are clipped, added up, sent."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def computes_weights(module: nn.Module) -> bool:
    """Are weights of this module computed of others (normed, pruned)? Then they cannot be drawn anew by themselves."""
    hooks = [*module._forward_pre_hooks.values()]
    return is_parametrized(module) or any(
        hasattr(hook, "compute_weight") or hasattr(hook, "compute_mask") for hook in hooks
    )


def like(examples: list[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors, laid out in memory like the examples, which have to have the same shapes and types."""
    if [_described(each) for each in examples] != [_described(value) for value in values]:
        raise ValueError(f"{len(values)} tensors that do not fit the model's {len(examples)}")
    return [torch.empty_like(each).copy_(value) for each, value in zip(examples, values, strict=True)]


def _described(tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return "missing"
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def message_bytes(model: nn.Module) -> int:
    """The size of what is trained, and of the float buffers."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tensors = trained + [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def norm(tensors: list[Tensor]) -> float:
    """The common 2-norm of vectors; infinite or NaN unless they are finite and it does not overflow."""
    return math.sqrt(square) if (square := sum(_square(t) for t in tensors)) >= 0 else math.nan


def _square(vector: Tensor) -> float:
    if vector.dtype not in (torch.float32, torch.float64):
        if vector.is_complex():
            vector = torch.view_as_real(vector).flatten()
        else:  # squares of half precision overflow
            vector = vector.float()
    return float(vector.dot(vector))


def all_finite(tensors: list[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def mixes_samples(model: nn.Module) -> str | None:
    """Why a mini-batch must be passed through the model by itself, if its modules tell.

    So it must where outputs depend on the other samples of the batch (batch normalisation), and where a pass may change
    float buffers.
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return "batch normalisation"
    if any(buffer.is_floating_point() for buffer in model.buffers()):
        return "the model has buffers of real numbers, which a pass may change"
    return None
