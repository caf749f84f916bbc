r"""May the mini-batches of several workers go through a model together? Shown by trying it on some of them.

A joined pass is right if each worker's losses and gradient are those of a pass of its own. Two workers are tried, in
training mode, on a copy of the model, with the same random numbers in all passes, so that dropout makes no difference:

    alone      losses and gradient of a worker's samples in the joined pass are those in a pass of its own, to half the
               digits, or in double precision (rounding depends on the size of a batch, and may turn a ReLU round)
    influence  they stay the same, almost to the last bit, when the other worker has other samples: the passes have the
               same shape, so that nothing is rounded otherwise, and the smallest influence shows
    weight     the gradient of an eighth of the losses is an eighth of the gradient: a joined pass begins with the
               weights of contributions, and what clips gradients on their way would clip others

One pair is not enough: a mask that goes by the batch may leave these samples alone by luck. So the first trial is of
four pairs of neighbours, the later ones of the first and the last worker. Once is not enough: layers that begin with
zeros hide what follows them. So joined passes 1, 2, 3, 9, 33, 129, ... are tried. What cannot be shown, because
something raises, random numbers are drawn for the batch as a whole, or the model asks for a number of its batch (to
decide by it, as ``if x.max() > 1`` does), is refused.
"""

import copy
import logging
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.core.codec import whole
from paceline.core.stateful import State
from paceline.data.samples import leaves, mapped
from paceline.learning.generators import CPU, Generators
from paceline.learning.loss import Objective
from paceline.learning.threads import uncompiled

log = logging.getLogger("paceline")
WEIGHT = 0.125  # of a contribution in a trial; a power of 2, so that nothing is rounded otherwise
AT_FIRST = 4  # pairs of workers that are tried before the first joined pass
SOON = 3  # joined passes that are tried one after the other; then one whenever there are four times as many


class Fusing:
    """Whether mini-batches are joined, and why not, as far as is known."""

    def __init__(self, why_not: str | None) -> None:
        self.why_not = why_not
        self.passes = 0  # joined so far; whoever makes them counts them
        self.next_trial = 0  # the pass that is tried next

    def allows(self, model: nn.Module, loss: Objective, batch: Any, sizes: Sequence[int]) -> bool:
        """Try these samples, so many of each worker: may they go through the model together?"""
        try:
            why_not = _why_not(model, loss, batch, sizes, _pairs(sizes, 1 if self.passes else AT_FIRST))
        except _CannotTell:
            return False
        if why_not is not None:
            self.refuse(why_not, in_vain=self.passes)
            return False
        self.next_trial = self.passes + 1 if self.passes < SOON - 1 else 4 * self.passes
        return True

    def refuse(self, why_not: str, *, in_vain: int = 0) -> None:
        """Join no more mini-batches. So many passes were made that should not have been."""
        self.why_not = why_not
        if not in_vain:
            log.info("gradients are computed worker by worker: %s", why_not)
            return
        log.warning(
            "gradients are computed worker by worker from now on: %s. Passes over the samples of several workers that "
            "were made before this showed: %d; evaluation='exact' makes none", why_not, in_vain,
        )  # fmt: skip

    def state(self) -> State:
        return {"passes": self.passes, "next": self.next_trial, "why not": self.why_not}

    def restore(self, state: State) -> None:
        self.passes, self.next_trial = whole(state["passes"]), whole(state["next"])
        if not isinstance(state["why not"], str | None):
            raise ValueError(f"{state['why not']!r} is no reason")
        self.why_not = state["why not"]


Pair = tuple[Tensor, Tensor]  # the places of two workers' samples in the batch


class _CannotTell(Exception):
    """Not from these samples."""


class _NotTheMean(Exception):
    """The loss of this batch cannot be split into those of its samples."""


class _Decides(Exception):
    """The model asks for a number of its batch."""


class _Shared(Exception):
    """Random numbers, or inputs, that cannot be told apart by samples."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of some samples of a pass: their losses, and the gradient of the mean loss."""

    losses: Tensor
    gradient: Tensor
    half_of_the_digits: float

    @property
    def last_bits(self) -> float:
        return 1e-12 if self.losses.dtype == torch.float64 else 1e-6

    def finite(self) -> bool:
        return bool(self.losses.isfinite().all() and self.gradient.isfinite().all())

    def same(self, other: "_Found", tolerance: float) -> bool:
        scale = float(self.losses.abs().max())
        least = torch.finfo(self.losses.dtype).eps * scale  # a gradient as small as this is nothing but rounding
        losses, gradient = (self.losses - other.losses).abs().max(), (self.gradient - other.gradient).norm()
        return bool(losses <= tolerance * scale and gradient <= tolerance * self.gradient.norm() + least)


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what torch draws in a pass, and has another pass draw the same: all of it, or some samples' part."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn: list[Tensor] = []
        self._at: int | None = None  # while it is drawn again
        self._part: tuple[int, int, int] | None = None

    def again(self, part: tuple[int, int, int] | None = None) -> "_Draws":
        """For a pass over all samples, or over (those from, to, of so many)."""
        self._at, self._part = 0, part
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return result
        drops = func is torch.ops.aten.native_dropout.default  # the output, and what is kept of the input
        values = result[1] if drops else result
        if not isinstance(values, Tensor):
            raise _Shared
        if self._at is None:
            self._drawn.append(values.clone())
            return result
        values.copy_(self._drawn_before(values))
        self._at += 1
        if drops:
            result[0].copy_(args[0] * values / (1.0 - args[1]) if args[2] is not False else args[0])
        return result

    def _drawn_before(self, like: Tensor) -> Tensor:
        assert self._at is not None
        if self._at >= len(self._drawn):
            raise _Shared
        drawn = self._drawn[self._at]
        if self._part is None:
            if drawn.shape != like.shape:
                raise _Shared
            return drawn
        begin, end, total = self._part
        if drawn.dim() != like.dim():
            raise _Shared
        differing = [d for d in range(drawn.dim()) if drawn.shape[d] != like.shape[d]]
        if len(differing) != 1 or drawn.shape[differing[0]] % total:
            raise _Shared
        each = drawn.shape[differing[0]] // total  # numbers a sample: heads of attention, for instance
        return drawn.narrow(differing[0], begin * each, (end - begin) * each)


class _Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is computed of some tensors, and notes whether Python asks for a number of it.

    What is computed is known by where it is stored, and kept, so that nothing else comes to be stored there.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stored: dict[int, object] = {}
        self.asked = False
        self._keep(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(_place(each) in self._stored for each in tree_leaves((args, kwargs))):
            self.asked = self.asked or func is torch.ops.aten._local_scalar_dense.default
            self._keep(tree_leaves(result))
        return result

    def _keep(self, values: Iterable[Any]) -> None:
        self._stored.update((place, each) for each in values if (place := _place(each)))


def _place(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) and value.layout == torch.strided else 0


class _Trial:
    """Passes over any samples of a batch."""

    def __init__(self, model: nn.Module, loss: Objective, batch: Any, samples: int) -> None:
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._loss = loss
        self._batch = batch
        if not all(isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == samples for leaf in leaves(batch)):
            raise _Shared

    def run(self, rows: Tensor, own: slice, draws: _Draws, weight: float = 1.0) -> _Found:
        """Pass some samples through the model; what came of a part of them, and the gradient divided by its weight."""
        chosen = mapped(self._batch, lambda leaf: leaf.index_select(0, rows.to(leaf.device)))
        with uncompiled(), draws:
            with _followed(self._model, chosen) as followed:
                found = self._loss.losses(self._model, chosen, len(rows))
            if followed.asked:
                raise _Decides
            if found.each is None:
                raise _NotTheMean
            losses = found.each[own]
            gradients = torch.autograd.grad(losses.mean() * weight, self._parameters, allow_unused=True)
        precision = torch.promote_types(losses.dtype, torch.float32)
        eps = max(torch.finfo(each.dtype).eps for each in (losses, *self._parameters))
        each = zip(self._parameters, gradients, strict=True)
        flat = [_flat(torch.zeros_like(p) if gradient is None else gradient).to(precision) for p, gradient in each]
        return _Found(losses.detach().to(precision), torch.cat(flat) / weight, math.sqrt(eps))

    def in_double_precision(self) -> "_Trial":
        trial = copy.copy(self)
        trial._batch = mapped(self._batch, lambda leaf: leaf.double() if leaf.is_floating_point() else leaf)
        trial._model = copy.deepcopy(self._model).double()
        trial._parameters = [parameter for parameter in trial._model.parameters() if parameter.requires_grad]
        return trial


@contextmanager
def _followed(model: nn.Module, batch: Any) -> Iterator[_Followed]:
    """Follow a batch while it is in the model; not in the loss, which looks for targets that are to be ignored."""
    followed, inside = _Followed(leaf for leaf in leaves(batch) if isinstance(leaf, Tensor)), ExitStack()

    def begin(*_: Any) -> None:
        inside.enter_context(followed)

    enter = model.register_forward_pre_hook(begin)
    leave = model.register_forward_hook(lambda *_: inside.close(), always_call=True)
    try:
        yield followed
    finally:
        enter.remove()
        leave.remove()


def _flat(gradient: Tensor) -> Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return (torch.view_as_real(dense) if dense.is_complex() else dense).flatten()


def _pairs(sizes: Sequence[int], count: int) -> list[Pair]:
    """The first and the last worker; or several pairs of neighbours, where the first follows the last."""
    each = [torch.arange(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    if count == 1:
        return [(each[0], each[-1])]
    return [*islice(cycle(zip(each, [*each[1:], each[0]], strict=True)), count)]


def _why_not(model: nn.Module, loss: Objective, batch: Any, sizes: Sequence[int], pairs: Iterable[Pair]) -> str | None:
    """What speaks against a joined pass over these samples, so many of each worker; nothing if it is right.

    Leaves the model and all random numbers as they are.
    """
    generators = Generators(next((parameter.device for parameter in model.parameters()), CPU))
    before = generators.state()
    try:
        model, loss = copy.deepcopy((model, loss))
        trial = _Trial(model, loss, batch, sum(sizes))
        return next(filter(None, (_influence(trial, *pair, number) for number, pair in enumerate(pairs))), None)
    except _CannotTell:
        raise
    except _NotTheMean:
        if loss.state()["separable"] is not False:  # another batch may be: one without targets that are ignored
            raise _CannotTell from None
        return loss.why_whole
    except _Decides:
        return "the model asks for a number of the batch as a whole, and may decide by it"
    except _Shared:
        return "random numbers or inputs of a batch cannot be told apart by samples"
    except Exception as error:  # whatever a model raises that is given a joined batch: alone it may not
        return f"a pass over two workers' samples raised {type(error).__name__} ({' '.join(str(error).split())[:120]})"
    finally:
        generators.restore(before)


def _influence(trial: _Trial, first: Tensor, last: Tensor, number: int) -> str | None:
    joined, apart = torch.cat([first, last]), False
    for own, other, begin in ((first, last, 0), (last, first, len(first))):
        draws, before = _Draws(), _of_numpy_and_python()
        part = slice(begin, begin + len(own))
        found = trial.run(joined, part, draws)
        if _of_numpy_and_python() != before:
            return "the model draws random numbers of numpy or Python, for a batch as a whole"
        if not found.finite():
            raise _CannotTell
        # at first as many different samples; then one of them over and over, which moves means and medians most
        instead = own[((1 + torch.arange(len(other))) if not number else torch.full((len(other),), number)) % len(own)]
        replaced = torch.cat([instead, own] if begin else [own, instead])
        if not found.same(trial.run(replaced, part, draws.again()), found.last_bits):
            return "the samples of a batch influence each other"
        if not found.same(trial.run(joined, part, draws.again(), WEIGHT), found.last_bits):
            return "a backward pass is not linear: the gradient of a part of the loss is not that part of the gradient"
        alone = trial.run(own, slice(None), draws.again((part.start, part.stop, len(joined))))
        apart = apart or not found.same(alone, found.half_of_the_digits)
    if apart and not _same_in_double_precision(trial.in_double_precision(), first, last):
        return "the losses or gradients of samples depend on how many there are in a batch"
    return None


def _same_in_double_precision(trial: _Trial, first: Tensor, last: Tensor) -> bool:
    joined = torch.cat([first, last])
    for own, begin in ((first, 0), (last, len(first))):
        draws, end = _Draws(), begin + len(own)
        found = trial.run(joined, slice(begin, end), draws)
        if not found.same(
            trial.run(own, slice(None), draws.again((begin, end, len(joined)))), found.half_of_the_digits
        ):
            return False
    return True


def _of_numpy_and_python() -> tuple[Any, ...]:
    _, key, *rest = np.random.get_state()
    return np.asarray(key).tobytes(), rest, random.getstate()
