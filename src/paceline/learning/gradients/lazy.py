"""Gradients that are computed when a step needs them, and never if none does.

A simulated worker's contribution is a promise: a model version and the samples of a mini-batch. A step asks for a
weighted sum of promises, which is one backward pass per model version where the model allows it.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.codec import whole
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.batches import Losses
from paceline.data.partition import Indices
from paceline.data.samples import TensorSamples, joined, to_device
from paceline.learning.contributions import (
    Evaluated,
    Pass,
    Weights,
    pack_samples,
    pack_tickets,
    pack_weights,
    share_out,
    unpack_samples,
    unpack_tickets,
    unpack_weights,
)
from paceline.learning.copies import has_backward_hooks
from paceline.learning.fusing import Fusing
from paceline.learning.generators import seed_generators, work_seed
from paceline.learning.loss import backward_in_pieces, numbers
from paceline.learning.model_state import (
    HALF,
    BufferChange,
    ModelState,
    Snapshot,
    all_finite,
    like,
    mixes_samples,
    norm,
)
from paceline.learning.task import device_of
from paceline.learning.threads import Threads
from paceline.learning.workload import Workload

ONE = Fraction(1)
FUSED_SAMPLES = 1024  # a larger pass gains nothing more and only takes memory


@dataclass(slots=True)
class _Bundle:
    """A combination that was computed and may be wanted again: the mean of the last round's fastest in LGC-SGD."""

    weights: Weights
    gradients: list[Tensor]
    buffers: list[BufferChange]
    unused: Collection[int]


class LazyGradients:
    """Holds the promises, and the model versions that they refer to, until they are settled."""

    measure_spread = False  # whether each worker's gradient is computed by itself, and its norm told

    def __init__(self, workload: Workload, *, fused: bool, seed: int, threads: Threads) -> None:
        self._state = state = workload.state
        self._data = workload.samples
        self._loss = workload.loss
        self._device = device_of(state.model)
        self._micro_batches = workload.micro_batches
        self._fusing = Fusing(self._why_exact() if fused else "asked for")
        self._seed = seed
        self._threads = threads
        self._version = 0
        self._samples: dict[Ticket, Indices] = {}
        self._numbers: dict[Ticket, int] = {}  # how many its worker was given before
        self._snapshots: dict[int, Snapshot] = {}
        self._users: dict[int, int] = {}  # model version -> how many promises refer to it
        self._bundles: list[_Bundle] = []
        self._non_finite: set[Ticket] = set()  # known not to be finite, and not settled yet
        self._even: dict[tuple[Fraction, int, int], Tensor] = {}

    def _why_exact(self) -> str | None:
        """Why mini-batches are not even tried together, if that is known beforehand."""
        if self._micro_batches > 1:
            return f"a mini-batch goes through the model in {self._micro_batches} micro-batches"
        if has_backward_hooks(self._state.trained):
            return "hooks look at the gradients of single mini-batches"
        if any(parameter.dtype in HALF for parameter in self._state.parameters):
            return "gradients of half precision are added up in single precision"
        why_not = mixes_samples(self._state.trained)
        return self._loss.why_whole if why_not is None and self._loss.state()["separable"] is False else why_not

    @cached_property
    def _totals(self) -> list[Tensor]:
        """The vectors that gradients are added up in: the model's own, or of single precision for half."""
        return [flat.float() if flat.dtype in HALF else flat for flat in self._state.gradients]

    @cached_property
    def _total_of(self) -> list[Tensor]:
        """Each parameter's part of these: its ``grad``, or of half precision a view of the wider vector."""
        return [*_parts(self._state, self._totals)]

    @property
    def evaluation(self) -> str:
        """How gradients are computed, and why."""
        why_not = self._fusing.why_not
        return "fused" if why_not is None else f"exact: {why_not}"

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int) -> None:
        (self._samples[ticket],) = batches
        self._numbers[ticket] = number
        self._users[ticket.version] = self._users.get(ticket.version, 0) + 1

    def shorten(self, ticket: Ticket, done: int) -> Indices:
        indices = self._samples[ticket]
        samples = len(indices) * done // ticket.work.units
        self._samples[ticket] = indices[:samples]
        return indices[samples:]

    def batches(self, ticket: Ticket) -> Sequence[Indices]:
        return (self._samples[ticket],)

    @property
    def version(self) -> int:
        """Of the model: how many updates it has seen."""
        return self._version

    def open_tickets(self) -> Collection[Ticket]:
        return self._samples.keys()

    def settle(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            del self._samples[ticket]
            del self._numbers[ticket]
            self._non_finite.discard(ticket)
            if self._bundles:
                self._bundles = [bundle for bundle in self._bundles if ticket not in bundle.weights]
            version = ticket.version
            self._users[version] -= 1
            if not self._users[version]:
                del self._users[version]
                self._snapshots.pop(version, None)

    def before_update(self) -> None:
        """The model is about to change: copy this version if somebody still works on it."""
        if self._version in self._users:
            self._snapshots[self._version] = self._state.copy()
        self._version += 1

    def state(self) -> State:
        """The promises, the model versions they refer to, and the combinations that may be wanted again."""
        snapshots = [[v, {"parameters": s.parameters, "buffers": s.buffers}] for v, s in self._snapshots.items()]
        return {
            "version": self._version,
            "samples": pack_samples(self._samples),
            "numbers": list(self._numbers.values()),
            "snapshots": snapshots,
            "bundles": [
                [
                    pack_weights(each.weights),
                    each.gradients,
                    [[str(w), began, own] for w, began, own in each.buffers],
                    list(each.unused),
                ]
                for each in self._bundles
            ],
            "spoiled": pack_tickets(sorted(self._non_finite)),
            "loss": self._loss.state(),
            "fusing": self._fusing.state(),
            "threads": self._threads.state(),
        }

    def restore(self, state: State) -> None:
        self._version = whole(state["version"])
        samples = unpack_samples(state["samples"], len(self._data))
        numbers = state.get("numbers", [ticket.serial for ticket in samples])  # in older ones seeds went by tickets
        for (ticket, indices), number in zip(samples.items(), numbers, strict=True):
            self.promise(ticket, (indices,), whole(number))
        self._snapshots = {whole(v): self._state.snapshot_from(each) for v, each in state["snapshots"]}
        if missing := self._users.keys() - self._snapshots.keys() - {self._version}:
            raise ValueError(f"model version {min(missing)} is missing")
        present = self._state.view().buffers
        for weights, gradients, *more in state["bundles"]:  # older checkpoints tell nothing more
            changes = [
                BufferChange(Fraction(weight), like(present, began), like(present, own))
                for weight, began, own in (more[0] if more else ())
            ]
            unused = [whole(number) for number in more[1]] if more else []
            sums = like(self._totals, gradients)
            self._bundles.append(_Bundle(unpack_weights(weights), sums, changes, unused))
        self._non_finite.update(unpack_tickets(state["spoiled"]))
        self._loss.restore(state["loss"])
        if "fusing" in state:  # older checkpoints have neither
            self._fusing.restore(state["fusing"])
            self._threads.restore(state["threads"])

    def evaluate(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        """Leave the weighted sum in the parameters' ``grad``; leave out, and report, what is not finite."""
        if self._non_finite and not self._non_finite.isdisjoint(weights):  # kept from a step that left them out already
            weights = share_out(weights, self._non_finite.intersection(weights))
        result = self._sum(weights, keep)
        if not result.finite:
            non_finite = [ticket for ticket in sorted(weights) if not self._sum({ticket: Fraction(1)}, ()).finite]
            self._non_finite.update(non_finite)
            self._bundles = []
            rest = share_out(weights, non_finite)
            result = self._sum(rest, [ticket for ticket in keep if ticket in rest])
            result.non_finite = non_finite
        return result

    def _sum(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        state, totals = self._state, self._totals
        for total in totals:
            total.zero_()
        counts = self._counts()
        result = Evaluated()
        known = [(bundle, _ratio(weights, bundle.weights)) for bundle in self._bundles]
        bundled = {ticket for bundle, ratio in known if ratio for ticket in bundle.weights}
        tickets = [ticket for ticket in weights if ticket not in bundled] if bundled else list(weights)
        present = state.view()
        if keep:
            keep = frozenset(keep)
            kept = [ticket for ticket in tickets if ticket in keep]
            self._backward(kept, weights, present, result)
            sums = [total.clone() for total in totals]
            unused = _unchanged(counts, self._counts())
            self._bundles.append(_Bundle({t: weights[t] for t in kept}, sums, list(result.buffers), unused))
            tickets = [ticket for ticket in tickets if ticket not in keep]
        self._backward(tickets, weights, present, result)
        result.unused = _unchanged(counts, self._counts())
        for bundle, ratio in known:
            if ratio:
                for total, gradient in zip(totals, bundle.gradients, strict=True):
                    total.add_(gradient, alpha=float(ratio))
                result.buffers += [each._replace(weight=ratio * each.weight) for each in bundle.buffers]
                result.unused = [number for number in result.unused if number in bundle.unused]
        for flat, total in zip(state.gradients, totals, strict=True):
            if flat is not total:
                flat.copy_(total)
        result.norm = norm(state.gradients)
        result.finite = result.norm < math.inf or all_finite(state.gradients)
        return result

    def _backward(self, tickets: list[Ticket], weights: Weights, present: Snapshot, result: Evaluated) -> None:
        """Add the weighted gradients to ``grad``, version by version, in worker order."""
        versions: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            versions.setdefault(ticket.version, []).append(ticket)
        for version in sorted(versions, reverse=True):
            together = sorted(versions[version], key=_worker_order)
            if version == self._version:
                self._backward_one_version(together, weights, result)
            else:
                self._state.swap_in(self._snapshots[version])
                try:
                    self._backward_one_version(together, weights, result)
                finally:
                    self._state.swap_in(present)

    def _backward_one_version(self, tickets: list[Ticket], weights: Weights, result: Evaluated) -> None:
        if self.measure_spread:
            for ticket in tickets:
                before = [total.clone() for total in self._totals]
                self._backward_alone(ticket, weights[ticket], result)
                own = [now - then for now, then in zip(self._totals, before, strict=True)]
                result.mean_square += norm(own) ** 2 / float(weights[ticket])
            return
        if self._fusing.why_not is not None:
            for ticket in tickets:
                self._backward_alone(ticket, weights[ticket], result)
            return
        for group in _groups_of_samples(tickets, self._samples):
            self._backward_fused(group, weights, result)

    def _backward_fused(self, tickets: list[Ticket], weights: Weights, result: Evaluated) -> None:
        batches = [self._samples[ticket] for ticket in tickets]
        sizes = [len(batch) for batch in batches]
        found = None
        if self._batches_join(batch := self._fetch(tickets, batches)):
            batch, samples = to_device(batch, self._device), sum(sizes)
            self._choose_threads(batch, samples)
            if len(tickets) == 1 or self._may_join(batch, sizes):
                before = self._state.lend_buffers()
                found = self._loss.losses(self._state.model, batch, samples)
                if (losses := found.each) is not None:
                    self._backward_together(losses, tickets, batches, weights)
                own_buffers = self._state.take_buffers_back(before)
        if found is None or found.each is None:
            for ticket in tickets:
                self._backward_alone(ticket, weights[ticket], result)
            return
        result.passes.append(_pass(tickets, batches, numbers(found.each), found.logged_sums()))
        if before:
            result.buffers.append(BufferChange(sum((weights[t] for t in tickets), Fraction()), before, own_buffers))

    def _backward_together(
        self, losses: Tensor, tickets: list[Ticket], batches: list[Indices], weights: Weights
    ) -> None:
        """Begin a backward pass with the weights, where it was shown to be linear in them, or there is none."""
        if len(tickets) > 1 or weights[tickets[0]] == 1:
            torch.autograd.backward(losses, self._spread(tickets, batches, weights, losses))
            return
        with self._apart(weights[tickets[0]]):
            torch.autograd.backward(losses, self._evenly(ONE, len(batches[0]), 1, losses))

    def _fetch(self, tickets: list[Ticket], batches: list[Indices]) -> Any:
        """The samples of all tickets as one batch; nothing if their batches cannot be joined.

        What a data set or a collate function draws for each of them is what its worker would draw alone.
        """
        if isinstance(self._data, TensorSamples):
            return self._data.fetch(np.concatenate(batches) if len(batches) > 1 else batches[0])
        each: list[Any] = []
        for ticket, indices in zip(tickets, batches, strict=True):
            self._draw_for(ticket)
            each.append(self._data.fetch(indices))
        return joined(each, [len(indices) for indices in batches])

    def _batches_join(self, batch: Any) -> bool:
        if batch is None:
            self._fusing.refuse("batches of several workers differ in shape, or hold more than a row for each sample")
        return batch is not None

    def _may_join(self, batch: Any, sizes: list[int]) -> bool:
        """May these samples, so many of each worker, go through the model together? Only some passes are tried."""
        fusing = self._fusing
        if fusing.passes == fusing.next_trial and not fusing.allows(self._state.model, self._loss, batch, sizes):
            return False
        fusing.passes += 1
        return True

    def _choose_threads(self, batch: Any, samples: int) -> None:
        """Let torch have as many threads as are right for a pass over so many samples."""
        if samples not in self._threads.settled:
            self._threads.choose(self._state.model, lambda model: self._loss.passed(model, batch), samples)

    def _backward_alone(self, ticket: Ticket, weight: Fraction, result: Evaluated) -> None:
        state, indices = self._state, self._samples[ticket]
        self._draw_for(ticket)
        if self._micro_batches > 1:
            self._backward_in_pieces(ticket, weight, result)
            return
        batch = to_device(self._data.fetch(indices), self._device)
        self._choose_threads(batch, len(indices))
        before = state.lend_buffers()
        found = self._loss.losses(state.model, batch, len(indices))
        mean = found.mean()
        with self._apart(weight):
            torch.autograd.backward(mean)
        own_buffers = state.take_buffers_back(before)  # a backward pass may change them too, if it recomputes
        logged = found.logged_sums()
        if found.each is None:
            losses = numbers(mean.reshape(1))
            result.passes.append(Pass((ticket,), (indices,), losses, *found.sum_and_weight(), logged))
        else:
            result.passes.append(_pass((ticket,), (indices,), numbers(found.each), logged))
        if before:
            result.buffers.append(BufferChange(weight, before, own_buffers))

    def _backward_in_pieces(self, ticket: Ticket, weight: Fraction, result: Evaluated) -> None:
        """The same with a pass for each of a mini-batch's micro-batches."""
        state, indices = self._state, self._samples[ticket]

        def fetch(part: slice) -> Any:
            batch = to_device(self._data.fetch(indices[part]), self._device)
            self._choose_threads(batch, part.stop - part.start)
            return batch

        before = state.lend_buffers()
        with self._apart(weight):
            found = backward_in_pieces(
                self._loss, state.model, state.parameters, fetch, samples=len(indices), count=self._micro_batches
            )
        own_buffers = state.take_buffers_back(before)
        result.passes.append(Pass((ticket,), (indices,), *found))
        if before:
            result.buffers.append(BufferChange(weight, before, own_buffers))

    @contextmanager
    def _apart(self, weight: Fraction) -> Iterator[None]:
        """Let a backward pass compute a worker's own gradient, and add it, times a weight, to those there are.

        A backward pass that began with the weight would come to the same only if it were linear: hooks and functions
        of the user's own may clip or round the gradients on their way.
        """
        parameters, totals, factor = self._state.parameters, self._total_of, float(weight)
        grads = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        yield
        for parameter, total, grad in zip(parameters, totals, grads, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=factor)
            parameter.grad = grad

    def _counts(self) -> list[int]:
        """How often each parameter's total was changed: it stays where a backward pass does not reach one."""
        return [total._version for total in self._total_of]

    def _draw_for(self, ticket: Ticket) -> None:
        """What is drawn now belongs to a ticket."""
        seed_generators(work_seed(self._seed, ticket.worker, self._numbers[ticket]), self._device)

    def _spread(self, tickets: list[Ticket], batches: list[Indices], weights: Weights, like: Tensor) -> Tensor:
        """Each ticket's weight, spread evenly over its samples."""
        parts: list[Tensor] = []
        begin = 0
        while begin < len(tickets):
            weight, size = weights[tickets[begin]], len(batches[begin])
            end = begin + 1
            while end < len(tickets) and weights[tickets[end]] is weight and len(batches[end]) == size:
                end += 1
            parts.append(self._evenly(weight, size, end - begin, like))
            begin = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _evenly(self, weight: Fraction, size: int, count: int, like: Tensor) -> Tensor:
        key = weight, size, count
        if key not in self._even:
            if len(self._even) >= 1000:
                self._even.clear()
            value = float(weight / size)
            self._even[key] = torch.full((size * count,), value, dtype=like.dtype, device=like.device)
        return self._even[key]


def evaluation_of(contributions: object) -> str | None:
    """How gradients are computed, and why, where that is this process's to choose."""
    return contributions.evaluation if isinstance(contributions, LazyGradients) else None


def _pass(
    tickets: Sequence[Ticket], batches: Sequence[Indices], losses: Losses, logged: Mapping[str, tuple[float, float]]
) -> Pass:
    """One whose samples have losses of their own."""
    return Pass(tickets, batches, losses, float(losses.sum(dtype=np.float64)), len(losses), logged)


def _ratio(weights: Weights, of: Weights) -> Fraction | None:
    """The factor by which ``weights`` contains ``of``, if it does."""
    ratio: Fraction | None = None
    last: tuple[Fraction | None, Fraction | None] = None, None
    for ticket, weight in of.items():
        now = weights.get(ticket)
        if now is last[0] and weight is last[1]:  # equal weights are mostly one object
            continue
        if now is None or not weight:
            return None
        if ratio is None:
            ratio = now / weight
        elif now != ratio * weight:
            return None
        last = now, weight
    return ratio


def _groups_of_samples(tickets: list[Ticket], samples: Mapping[Ticket, Indices]) -> Iterable[list[Ticket]]:
    group: list[Ticket] = []
    size = 0
    for ticket in tickets:
        if group and size + len(samples[ticket]) > FUSED_SAMPLES:
            yield group
            group, size = [], 0
        group.append(ticket)
        size += len(samples[ticket])
    yield group


def _parts(state: ModelState, totals: Sequence[Tensor]) -> Iterator[Tensor]:
    """Each parameter's part of some vectors, one for each type of number."""
    kinds = dict.fromkeys((parameter.dtype, parameter.device) for parameter in state.parameters)
    left = dict(zip(kinds, totals, strict=True))
    for parameter in state.parameters:
        kind, own, size = (parameter.dtype, parameter.device), parameter.grad, parameter.numel()
        part, left[kind] = left[kind][:size], left[kind][size:]
        yield own if own is not None and own.dtype == part.dtype else part.view(parameter.shape).data


def _unchanged(before: list[int], after: list[int]) -> list[int]:
    return [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one == other]


def _worker_order(ticket: Ticket) -> tuple[int, int]:
    return ticket.worker, ticket.serial
