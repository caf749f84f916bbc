"""What a worker does with a ticket: the gradient of a mini-batch, block by block, written to one slot of the arena."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.data.samples import Samples, copied, joined, to_device
from paceline.learning.arena.arena import EMPTY_REPORT, Report, Slot
from paceline.learning.generators import rank_seed, seed_generators
from paceline.learning.gradients.placement import InArena, Placement, RowWriter
from paceline.learning.gradients.ranks import Alone, Ranks, RankSums, share
from paceline.learning.loss import Objective, SampleLoss, add_logged, no_pieces, pieces
from paceline.learning.model_state import make_dense
from paceline.learning.workload import state_of


def _backward(values: Tensor, factors: Tensor) -> None:
    """``torch.autograd.backward`` without its checks, which load sympy (seconds) and cost as much as a small model."""
    _engine_run_backward((values,), (factors,), False, False, (), allow_unreachable=True, accumulate_grad=True)


class GradientWork:
    r"""Computes $\frac1n \sum_{i \le n} \nabla \ell_i$ over the samples of a mini-batch, in blocks.

    After $r$ of $s$ blocks the slot holds what they contribute to the whole, not their own mean: whoever uses the slot
    of an unfinished batch multiplies it by (samples of the batch) / (samples computed).

    Where the mean is one by other weights than the number of samples (class weights, targets that are ignored), blocks
    are weighed by those. Where it is not known to be a mean at all, the model is passed through block by block, and the
    loss of all outputs and its gradient are computed in the end: of the mini-batch, or of what of it was computed.

    With ``micro_batches`` no pass has more than that part of a mini-batch's samples.

    placement  where the parameters lie; by default in the arena
    ranks      of a worker of several processes; each computes its part of every block
    sums       adds gradients up over the ranks, unless the model does that by itself
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], samples: Samples, loss: Objective, *,
        micro_batches: int = 1, logged: Sequence[str] = (), placement: Placement | None = None,
        ranks: Ranks | None = None, sums: RankSums | None = None,
    ) -> None:  # fmt: skip
        self._model = model
        self._parameters = parameters
        self._buffers = state_of(model, loss.whole).buffers
        self._samples = samples
        self._loss = loss
        self._micro_batches = micro_batches
        self._logged = logged  # the names of what a step logs
        self._place: Placement = InArena(parameters, self._buffers) if placement is None else placement
        self._ranks: Ranks = Alone() if ranks is None else ranks
        self._sums = sums
        self._averaged = self._ranks.size if sums is None else 1  # by what the model divides gradients by itself
        self._writer = RowWriter.of(parameters) if placement is None and self._ranks.size == 1 else None
        self._direct = False  # are gradients written to the slot while they are computed?
        self._in_the_end = False  # is the loss one that cannot be computed by blocks?
        self._factors: dict[tuple[tuple[int, ...], float], Tensor] = {}

    def compute(
        self, source: Slot, slot: Slot, indices: Indices, *, units: int, seed: int, go_on: Callable[[int], bool],
        version: int | None = None,
    ) -> tuple[int, Report]:  # fmt: skip
        """Compute as many blocks as ``go_on(block)`` allows, at the weights of one slot, and write the sum to another.

        Returns the number of blocks, and what is reported of the gradient.
        """
        self._begin(source, slot, seed, version)
        if not self._in_the_end:
            done, report = self._by_blocks(slot, indices, units, go_on)
        if self._in_the_end:  # which may have turned out only now
            self._begin(source, slot, seed, version)
            done, report = self._together(slot, indices, units, go_on)
        return done, report

    def _by_blocks(self, slot: Slot, indices: Indices, units: int, go_on: Callable[[int], bool]) -> tuple[int, Report]:
        total, ranks = len(indices), self._ranks.size
        passed = _Passed(split=units > 1 or self._micro_batches > 1 or ranks > 1)
        most = -(-total // (self._micro_batches * ranks))
        while passed.done < units and go_on(passed.done):
            begin, passed.end = passed.end, total * (passed.done + 1) // units
            passed.done += 1
            own = slice(begin, passed.end)
            if ranks > 1:
                if self._sums is None and own.stop - own.start < ranks:
                    raise ConfigError(
                        f"a block of {own.stop - own.start} samples leaves some of {ranks} ranks without one, which a "
                        "parallel model cannot do: use fewer blocks or larger mini-batches"
                    )
                own = share(begin, passed.end, self._ranks)
            for part in [own] if self._micro_batches == 1 else pieces(own.start, own.stop, most):
                if part.start < part.stop and not self._pass(slot, indices, part, passed, by_units=units > 1):
                    return 0, EMPTY_REPORT
        if not passed.done:
            return 0, EMPTY_REPORT
        return passed.done, self._report(slot, passed) if ranks == 1 else self._report_of_ranks(slot, passed)

    def _pass(self, slot: Slot, indices: Indices, part: slice, passed: "_Passed", *, by_units: bool) -> bool:
        """Pass samples through the model, forward and backward. False if their loss cannot be computed in parts."""
        size, total = part.stop - part.start, len(indices)
        passed.passes += 1
        found = self._loss.losses(self._model, self._fetch(indices[part] if passed.split else indices), size)
        if found.logged:
            add_logged(passed.logged, found.logged_sums())
        if (each := found.each) is not None:
            _backward(each, self._factor((size,), self._averaged / total, each))
            slot.losses[part].copy_(each.detach())
            passed.separate.append(part)
            return True
        if found.weight is None and (self._micro_batches > 1 or self._ranks.size > 1):
            raise no_pieces(self._micro_batches, self._ranks.size)
        if found.weight is None and by_units:
            self._in_the_end = True
            return False
        weight, mean = float(total) if found.weight is None else found.weight, found.mean()
        _backward(mean, self._factor((), self._averaged * weight / total if passed.split else 1.0, mean))
        passed.loss_sum += float(mean.detach()) * weight
        passed.loss_weight += weight
        return True

    def _fetch(self, indices: Indices) -> Any:
        batch = self._samples.fetch(indices)
        return batch if self._place.device.type == "cpu" else to_device(batch, self._place.device)

    def _report(self, slot: Slot, passed: "_Passed") -> Report:
        """Hand in what a worker of one process has computed."""
        self._write_logged(slot, passed.logged)
        if len(passed.separate) == passed.passes:
            unused = self._hand_in(slot)
            return slot.report(passed.end, unused=unused)
        passed.add_separate(slot)
        if passed.split and passed.loss_weight:
            self._scale(passed.end / passed.loss_weight, slot)
        return self._hand_in_whole(slot, passed.mean, passed.loss_weight)

    def _report_of_ranks(self, slot: Slot, passed: "_Passed") -> Report:
        """Put together what the ranks have computed, and hand it in."""
        make_dense(self._parameters)
        self._place.finish()  # the losses of its samples are in the slot, where the rank that speaks reads them
        whole = passed.passes - len(passed.separate)
        passed.add_separate(slot)
        having = [0.0 if parameter.grad is None else 1.0 for parameter in self._parameters]
        logged = [number for name in self._logged for number in passed.logged.get(name, (0.0, 0.0))]
        numbers = torch.tensor([whole, passed.loss_sum, passed.loss_weight, *having, *logged], dtype=torch.float64)
        self._ranks.total(numbers)
        (whole, loss_sum, loss_weight), (having, logged) = numbers[:3].tolist(), _split(numbers[3:], len(having))
        factor = passed.end / loss_weight if whole and loss_weight else 1.0
        missing = [number for number, ranks in enumerate(having) if not ranks]
        if self._sums is None:
            if factor != 1.0:
                self._scale(factor, slot)
            gradients, buffers = self._gradients(), self._buffers
        else:
            gradients = self._sums.gradients([parameter.grad for parameter in self._parameters], factor)
            buffers = self._sums.buffers(self._buffers)
        if self._sums is None or self._ranks.speaks:
            self._write(slot, gradients, buffers, missing)
        if self._sums is None:
            self._ranks.total(torch.zeros(1, dtype=torch.float64))  # all have written their parts
        if not self._ranks.speaks:
            return EMPTY_REPORT
        sums = dict(zip(self._logged, zip(logged[::2], logged[1::2], strict=True), strict=True))
        self._write_logged(slot, sums)
        if not whole:
            return slot.report(passed.end, unused=len(missing))
        slot.losses[0] = loss_sum / loss_weight if loss_weight else 0.0
        return slot.report(1, loss_weight, unused=len(missing))

    def _write_logged(self, slot: Slot, logged: Mapping[str, tuple[float, float]]) -> None:
        for place, name in enumerate(self._logged):
            slot.logged[2 * place : 2 * place + 2] = torch.tensor(logged.get(name, (0.0, 0.0)), dtype=torch.float64)

    def _together(self, slot: Slot, indices: Indices, units: int, go_on: Callable[[int], bool]) -> tuple[int, Report]:
        total, done, end = len(indices), 0, 0
        assert isinstance(self._loss, SampleLoss)  # every other loss of a batch is a mean
        passed: list[tuple[Any, Any]] = []
        sizes: list[int] = []
        while done < units and go_on(done):
            begin, end = end, total * (done + 1) // units
            done += 1
            inputs, targets = self._fetch(indices[begin:end])
            passed.append((self._model(copied(inputs)), targets))  # what was fetched is written over by the next block
            sizes.append(end - begin)
        if not done:
            return 0, EMPTY_REPORT
        pair = joined(passed, sizes)
        if pair is None:
            raise ConfigError(
                "the loss is one number for a mini-batch, and the model's outputs are not tensors with a row for each "
                "sample: it cannot be computed in blocks; let the loss return one value for each sample, or blocks=1"
            )
        outputs, targets = pair
        mean = self._loss.of(outputs, targets, end).mean()
        _backward(mean, self._factor((), end / total, mean))
        return done, self._hand_in_whole(slot, float(mean.detach()), end)

    def _scale(self, factor: float, slot: Slot) -> None:
        with torch.no_grad():
            if self._direct and self._writer is not None:
                for number in self._writer.written:
                    slot.parameters[number].mul_(factor)
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _hand_in_whole(self, slot: Slot, mean: float, weight: float) -> Report:
        """Hand in a gradient of which only the loss of the whole batch is known."""
        unused = self._hand_in(slot)
        slot.losses[0] = mean
        return slot.report(1, weight, unused=unused)

    def _begin(self, source: Slot, slot: Slot, seed: int, version: int | None) -> None:
        seed_generators(rank_seed(seed, self._ranks.rank), self._place.device)
        self._place.download(source, version)
        for parameter in self._parameters:
            parameter.grad = None
        if self._writer is not None:
            self._direct = self._writer.to(slot, source)

    def _factor(self, shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
        known = self._factors.get((shape, value))
        if known is None:
            known = self._factors[shape, value] = torch.full(shape, value, dtype=like.dtype, device=like.device)
        return known

    def _hand_in(self, slot: Slot) -> int:
        """Returns how many parameters the loss does not depend on: without a gradient, and marked in the slot."""
        if self._direct and self._writer is not None:
            with torch.no_grad():
                self._writer.finish(self._parameters)
                missing = [number for number in range(len(self._parameters)) if number not in self._writer.written]
                for number in missing:
                    slot.parameters[number].zero_()
                for buffer, values in zip(slot.buffers, self._buffers, strict=True):
                    buffer.copy_(values)
            self._mark(slot, missing)
            return len(missing)
        make_dense(self._parameters)
        missing = [number for number, parameter in enumerate(self._parameters) if parameter.grad is None]
        self._write(slot, self._gradients(), self._buffers, missing)
        return len(missing)

    @staticmethod
    def _mark(slot: Slot, missing: list[int]) -> None:
        if missing:
            slot.unused.zero_()
            slot.unused[missing] = 1

    def _gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]

    def _write(self, slot: Slot, gradients: Sequence[Tensor], buffers: Sequence[Tensor], missing: list[int]) -> None:
        with torch.no_grad():
            self._place.hand_in(slot, gradients, buffers)
            if self._ranks.speaks:
                self._mark(slot, missing)
            self._place.finish()


@dataclass(slots=True)
class _Passed:
    """What came of the samples of a mini-batch that went through the model so far."""

    split: bool  # do they go through it in several passes?
    done: int = 0  # blocks
    end: int = 0  # samples, of all ranks
    passes: int = 0
    separate: list[slice] = field(default_factory=list)  # those whose samples have losses of their own
    loss_sum: float = 0.0  # of the others
    loss_weight: float = 0.0
    logged: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return self.loss_sum / self.loss_weight if self.loss_weight else 0.0

    def add_separate(self, slot: Slot) -> None:
        """Count the losses of single samples with those of the others."""
        self.loss_sum += sum(float(slot.losses[part].sum()) for part in self.separate)
        self.loss_weight += sum(part.stop - part.start for part in self.separate)


def _split(numbers: Tensor, at: int) -> tuple[list[float], list[float]]:
    return numbers[:at].tolist(), numbers[at:].tolist()
