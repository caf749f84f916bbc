"""What a model is trained to make small: the losses of a batch that goes through it.

Everybody who trains or evaluates has an ``Objective`` and a batch, and is given a ``BatchLoss``. ``SampleLoss`` is the
objective of ``Task(loss=)``, ``paceline.learning.step.StepLoss`` that of ``Task(step=)``.
"""

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.data.samples import Samples, copied, joined, leaves, to_device
from paceline.learning.copies import stand_in
from paceline.learning.generators import CPU, Undrawn

if TYPE_CHECKING:
    from paceline.learning.workload import Original

Loss = Callable[[Any, Any], Tensor]
Parallel = Callable[[nn.Module, Any], nn.Module]  # from the model and a ``DeviceMesh`` of the ranks to what is trained
MEANS = ("mean", "batchmean")
BY_CLASS = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "NLLLoss2d")  # divided by class weights
GATHERED = 1 << 30  # bytes of outputs that are kept to compute a loss of them all

log = logging.getLogger("paceline")


class BatchLoss(NamedTuple):
    """The loss of a batch that went through a model: of each sample, or of the whole where those cannot be told."""

    samples: int
    each: Tensor | None  # of each sample
    whole: Tensor | None  # of the batch, where those are not known
    weight: float | None  # of the batch among others, to make up a mean; nothing if it is not known to be one
    outputs: Any = None  # of the model, where they are known
    logged: Mapping[str, Any] = MappingProxyType({})  # what else is to be logged

    def mean(self) -> Tensor:
        if self.each is not None:
            return self.each.mean()
        assert self.whole is not None
        return self.whole

    def sum_and_weight(self) -> tuple[float, float]:
        """The batch's part in the mean loss of many: its mean times its weight (or its samples), and the weight."""
        known = float(self.samples) if self.weight is None else self.weight
        return float(self.mean().detach()) * known, known

    def logged_sums(self) -> dict[str, tuple[float, float]]:
        """What is to be logged besides the loss: the sum over the samples, and how many these are."""
        if not self.logged:
            return {}
        sums = {str(name): sum_of(value, self.samples) for name, value in self.logged.items() if name != "loss"}
        return {name: (total, float(self.samples)) for name, total in sums.items() if total is not None}


def sum_of(value: Any, samples: int) -> float | None:
    """The sum over samples of a value that is their mean, or one for each; nothing if it is neither."""
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return float(value.detach()) * samples
        return float(value.detach().sum(dtype=torch.float64)) if value.shape == (samples,) else None
    if isinstance(value, np.ndarray):
        return float(value.sum(dtype=np.float64)) if value.shape == (samples,) else None
    return float(value) * samples if isinstance(value, int | float | np.number) else None


def add_logged(sums: dict[str, tuple[float, float]], more: Mapping[str, tuple[float, float]]) -> None:
    """Add sums of logged values, each with its number of samples."""
    for name, (total, samples) in more.items():
        before, weight = sums.get(name, (0.0, 0.0))
        sums[name] = before + total, weight + samples


class Objective(Protocol):
    """What a model is trained to make small."""

    @property
    def whole(self) -> Callable[..., Any]:
        """The user's own loss or step: a function, or a module that may have parameters to train."""
        ...

    @property
    def why_whole(self) -> str:
        """Why the losses of single samples cannot be told, where they cannot."""
        ...

    def passed(self, model: nn.Module, batch: Any, /) -> Any:
        """Pass a batch through a model, for the pass alone."""
        ...

    def losses(self, model: nn.Module, batch: Any, samples: int, /) -> BatchLoss:
        """Pass a batch of so many samples through a model, and tell its loss."""
        ...

    def move(self, device: torch.device, /) -> None:
        """Let the loss be on a device, with tensors that it was given, such as class weights."""
        ...

    def state(self) -> dict[str, bool | None]:
        """What the first batch showed: are there losses of single samples?"""
        ...

    def restore(self, state: Mapping[str, Any], /) -> None: ...


class SampleLoss:
    """Splits a batch loss into per-sample losses where it is their mean; otherwise leaves it whole.

    Torch's losses are asked for ``reduction="none"``; a loss of one's own may return a vector, one value a sample. A
    loss is not their mean with class weights, where a target of the batch is to be ignored, and wherever the first
    batch shows a difference (sums, contrastive losses) or there is no vector. Then it is used as it is, batch by batch.

    A loss without ``reduction`` is called once a batch in training, which shows what it is. Before an evaluation, and
    in each batch where it has a ``reduction`` of its own, it is tried: on copies, and random numbers are put back.
    """

    why_whole = "the loss of a batch is not the mean of its samples' losses"

    def __init__(self, loss: Loss, data: Samples) -> None:
        self.whole = loss
        self._each = _unreduced(loss)
        ignored = _option(loss, "ignore_index")
        self._ignored = ignored if ignored is not None and data.may_have_target(ignored) else None
        self._class_weights: Tensor | None = _option(loss, "weight")
        self._separable: bool | None = None if self._class_weights is None else False
        self._name = _name_in_torch(loss)
        self._doubtful = self._name is None and self._each is not loss  # somebody's own idea of a reduction
        self._tried: tuple[Loss, Loss] | None = None  # what trials call instead of both
        self._draws = self._name is None  # do trials have to put random numbers back?
        self.original: Original | None = None  # until the first loss with a gradient was looked at

    def separable(self, outputs: Any, targets: Any) -> bool:
        """Is the loss of this batch the mean of its samples' losses?"""
        if self._separable is None or (self._separable and self._doubtful):
            self._separable = self._is_mean(outputs, targets)
        if self._separable and self._ignored is not None:
            return not bool((targets == self._ignored).any())
        return self._separable

    def weight(self, outputs: Any, targets: Any, samples: int) -> float | None:
        r"""By what the mean over a batch is to be weighed so that means make up a mean; nothing if it cannot be told.

        $$\bar\ell = \frac{\sum_b W_b\, \bar\ell_b}{\sum_b W_b}$$

        $W$ is the number of samples; in torch's cross entropy and negative log likelihood of classes it is
        $\sum_i w_{y_i}$ over the targets that are not ignored. Of any other loss that is one number nothing is known.
        """
        return float(samples) if self.separable(outputs, targets) else self._weight_of_whole(targets, samples)

    def _weight_of_whole(self, targets: Any, samples: int) -> float | None:
        if self._name in BY_CLASS and isinstance(targets, Tensor) and not targets.is_floating_point():
            counted = targets if self._ignored is None else targets[targets != self._ignored]
            weights = self._class_weights
            return float(counted.numel() if weights is None else weights[counted].sum(dtype=torch.float64))
        return None if self._name is None else float(samples)

    def passed(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0])

    def losses(self, model: nn.Module, batch: Any, samples: int) -> BatchLoss:
        inputs, targets = batch
        found = self.of(model(inputs), targets, samples)
        if self.original is not None and torch.is_grad_enabled():
            self.original.refuse(found.mean())
            self.original = None
        return found

    def of(self, outputs: Any, targets: Any, samples: int) -> BatchLoss:
        """The loss of a batch with these outputs."""
        if self._each is self.whole:
            return self._as_returned(_checked(self.whole(outputs, targets)), outputs, targets, samples)
        if self.separable(outputs, targets):
            return BatchLoss(samples, self._each(outputs, targets), None, float(samples), outputs)
        weight = self._weight_of_whole(targets, samples)
        if weight == 0:  # all are ignored: torch's mean is NaN, and its gradient 0
            return BatchLoss(samples, None, self._each(outputs, targets).sum(), weight, outputs)
        whole = self.whole(outputs, targets)
        return BatchLoss(samples, None, whole if whole.dim() == 0 else whole.mean(), weight, outputs)

    def _as_returned(self, loss: Tensor, outputs: Any, targets: Any, samples: int) -> BatchLoss:
        """What a loss without a reduction returned: a value for each sample, or one."""
        if self._separable is None:
            self._separable = _one_each(loss, targets)
        if self.separable(outputs, targets):
            return BatchLoss(samples, loss, None, float(samples), outputs)
        whole = loss if loss.dim() == 0 else loss.mean()
        return BatchLoss(samples, None, whole, self._weight_of_whole(targets, samples), outputs)

    def move(self, device: torch.device) -> None:
        if isinstance(self.whole, nn.Module):
            self.whole.to(device)
        elif isinstance(self.whole, functools.partial):
            given = to_device((self.whole.args, self.whole.keywords), device)
            self.whole = functools.partial(self.whole.func, *given[0], **given[1])
        self._each, self._tried = _unreduced(self.whole), None
        if self._class_weights is not None:
            self._class_weights = self._class_weights.to(device)

    def counted(self, targets: Tensor) -> Tensor:
        """Which targets are classes that count: one below 0 is none, whatever a loss of one's own makes of it."""
        return targets >= 0 if self._ignored is None else (targets >= 0) & (targets != self._ignored)

    def state(self) -> dict[str, bool | None]:
        """What the first batch showed."""
        return {"separable": self._separable}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["separable"] not in (True, False, None):
            raise ValueError(f"separable={state['separable']!r} is no answer")
        self._separable = state["separable"]

    def _is_mean(self, outputs: Any, targets: Any) -> bool:
        if self._tried is None:
            known = self._name is not None  # torch's keep nothing
            self._tried = (self._each, self.whole) if known else (stand_in(self._each), stand_in(self.whole))
        of_each, of_whole = self._tried
        with torch.no_grad():
            each = self._try(of_each, outputs, targets)
            if not _one_each(each, targets):
                return False
            if not self._doubtful:
                return True
            whole = self._try(of_whole, outputs, targets)
            return whole.dim() > 0 or torch.allclose(each.mean(), whole, rtol=1e-4, atol=1e-6, equal_nan=True)

    def _try(self, loss: Loss, outputs: Any, targets: Any) -> Tensor:
        """Call a copy of a loss, and put the random numbers back: in later batches only if it has drawn any."""
        if not self._draws:
            return loss(outputs, targets)
        before = Undrawn(next((leaf.device for leaf in leaves(outputs) if isinstance(leaf, Tensor)), CPU))
        try:
            return loss(outputs, targets)
        finally:
            self._draws = before.put_back()


class PieceLoss(NamedTuple):
    """The loss of a mini-batch that went through a model in pieces."""

    losses: NDArray[Any]  # of each sample, or of the whole where those are not known
    loss_sum: float
    loss_weight: float
    logged: dict[str, tuple[float, float]]


def pieces(begin: int, end: int, most: int) -> list[slice]:
    """Parts of a range with at most so many samples each, whose sizes differ by at most one."""
    total, count = end - begin, -(-(end - begin) // most)
    return [slice(begin + total * i // count, begin + total * (i + 1) // count) for i in range(count)]


def backward_in_pieces(
    objective: Objective, model: nn.Module, parameters: Sequence[nn.Parameter], fetch: Callable[[slice], Any], *,
    samples: int, count: int,
) -> PieceLoss:  # fmt: skip
    r"""Leave the gradient of a mini-batch's mean loss in the parameters' ``grad``, with a pass for each of its pieces.

    $$\nabla \bar\ell = \frac{\sum_b W_b \nabla \bar\ell_b}{\sum_b W_b}$$

    A piece weighs as much as it has samples, or as a loss with class weights says.
    """
    each: list[NDArray[Any]] = []
    loss_sum, loss_weight = 0.0, 0.0
    logged: dict[str, tuple[float, float]] = {}
    for part in pieces(0, samples, -(-samples // count)):
        found = objective.losses(model, fetch(part), part.stop - part.start)
        if found.weight is None:
            raise no_pieces(count)
        mean = found.mean()
        torch.autograd.backward(mean, torch.full_like(mean, found.weight / samples))
        if found.each is not None:
            each.append(numbers(found.each))
        loss_sum += float(mean.detach()) * found.weight
        loss_weight += found.weight
        add_logged(logged, found.logged_sums())
    if loss_weight and loss_weight != samples:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(samples / loss_weight)
    losses = np.concatenate(each) if each else np.zeros(0)
    if len(losses) != samples:
        losses = np.array([loss_sum / loss_weight if loss_weight else 0.0])
    return PieceLoss(losses, loss_sum, loss_weight, logged)


def no_pieces(count: int, ranks: int = 1) -> ConfigError:
    what = f"ranks_per_worker={ranks}" if ranks > 1 else f"micro_batches={count}"
    return ConfigError(
        f"{what} needs a loss that is a mean over samples, and this one is one number that may be "
        "anything: let it return one value for each sample, or give Task a step=, whose mean counts by samples"
    )


class LossOfAll:
    """The loss of many samples that come in batches: what it is of all of them at once.

    The means of batches are combined where it is known how. Of any other loss the outputs are kept, and it is computed
    once in the end; where those cannot be joined, or take too much memory, the mean by samples is taken, and that said.
    """

    def __init__(self, loss: SampleLoss) -> None:
        self._loss = loss
        self._sum, self._weight = 0.0, 0.0
        self._kept: list[tuple[Any, Any]] = []
        self._sizes: list[int] = []
        self._bytes = 0

    def add(self, outputs: Any, targets: Any, samples: int) -> None:
        weight = self._loss.weight(outputs, targets, samples)
        if weight is None:
            self._kept.append((copied(outputs), copied(targets)))  # they may lie where the next inputs will
            self._sizes.append(samples)
            self._bytes += sum(e.numel() * e.element_size() for e in leaves(outputs) if isinstance(e, Tensor))
            if self._bytes > GATHERED:
                self._say(f"the outputs of all take more than {GATHERED >> 20} MiB")
                self._settle()
        elif weight:  # else all are ignored, and their mean is no number
            self._take(outputs, targets, weight)

    def value(self) -> float:
        self._settle()
        return self._sum / self._weight if self._weight else float("nan")

    def _take(self, outputs: Any, targets: Any, weight: float) -> None:
        self._sum += float(self._loss.of(outputs, targets, 1).mean()) * weight
        self._weight += weight

    def _settle(self) -> None:
        """The loss of what is kept."""
        pair: tuple[Any, Any] | None = joined(self._kept, self._sizes) if self._kept else None
        if pair is not None:
            self._take(*pair, sum(self._sizes))
        elif self._kept:
            self._say("outputs or targets are not tensors with a row for each sample, and cannot be joined")
            for kept, size in zip(self._kept, self._sizes, strict=True):
                self._take(*kept, size)
        self._kept, self._sizes, self._bytes = [], [], 0

    def _say(self, why: str) -> None:
        log.warning(
            "the loss of many samples is the mean over parts of them, which may not be what it is of all: %s; let the "
            "loss return one value for each sample", why,
        )  # fmt: skip


def _checked(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise ConfigError(f"the loss returned {shown(loss)}, no tensor: let it return a value for each sample, or one")
    return loss


def numbers(losses: Tensor) -> NDArray[Any]:
    """Losses as an array: those of half precision in floats, for numpy does not know all of their types."""
    losses = losses.detach()
    if losses.dtype is not torch.float32 or not losses.is_cpu:
        losses = losses.to("cpu", torch.promote_types(losses.dtype, torch.float32))
    return losses.numpy()


def _name_in_torch(loss: Loss) -> str | None:
    """The name of one of torch's own losses that is a mean over samples, or over their class weights."""
    kind: Any = loss.func if isinstance(loss, functools.partial) else loss
    kind = type(kind) if isinstance(kind, nn.Module) else kind
    own = getattr(kind, "__module__", None) in ("torch.nn.modules.loss", "torch.nn.functional")
    return kind.__name__ if own and _option(loss, "reduction") in MEANS else None


def _option(loss: Loss, name: str) -> Any:
    """An option that a torch loss has, was given by ``functools.partial``, or has by default."""
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    try:
        parameter = inspect.signature(loss).parameters.get(name)
    except (TypeError, ValueError):
        return None
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default


def _one_each(loss: Tensor, targets: Any) -> bool:
    """Is this one value for each sample?"""
    return loss.dim() == 1 and len(loss) == len(targets)


def _unreduced(loss: Loss) -> Loss:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        unreduced = copy.copy(loss)  # with the same parameters
        unreduced.reduction = "none"  # type: ignore[assignment]
        return unreduced
    try:
        takes_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        takes_reduction = False
    if takes_reduction:
        return functools.partial(loss, reduction="none")  # type: ignore[call-arg]
    return loss
