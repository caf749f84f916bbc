"""A run done again with nothing but its trace: every gradient from first principles, in one process."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from paceline.core.messages import Arrived, Start, Step, Ticket
from paceline.data.batches import Batches, Sampling, Shuffled
from paceline.data.partition import Indices
from paceline.learning.task import Task
from paceline.trace.reading import Trace


@dataclass(frozen=True)
class WrittenDown:
    """A sampling that writes down what every worker draws."""

    sampling: Sampling = Shuffled()
    draws: dict[int, list[Indices]] = field(default_factory=dict, repr=False, compare=False)

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return _WritingDown(self.sampling.open(shards, batch_size, seed), self.draws)


class _WritingDown:
    def __init__(self, batches: Batches, draws: dict[int, list[Indices]]) -> None:
        self._batches = batches
        self._draws = draws

    def draw(self, worker: int) -> Indices:
        indices = self._batches.draw(worker)
        self._draws.setdefault(worker, []).append(indices.copy())
        return indices

    def put_back(self, worker: int, indices: Indices) -> None:
        self._batches.put_back(worker, indices)


def retrace(trace: Trace, draws: Mapping[int, Sequence[Indices]], task: Task, lr: float, updates: int) -> nn.Module:
    """The model that plain SGD with this trace and these mini-batches must have led to in so many updates.

    Each ticket's gradient is computed at the weights of the version that the ticket names, on the samples that were
    done. Takes a pair of tensors as data, and a model without randomness and buffers.
    """
    assert isinstance(task.train, tuple)
    inputs, targets = task.train
    model = copy.deepcopy(task.model)
    versions: list[list[Tensor]] = [[p.detach().clone() for p in model.parameters()]]
    batches: dict[Ticket, Tensor] = {}
    drawn: Counter[int] = Counter()
    for fact in trace:
        if isinstance(fact, Start):
            worker = fact.ticket.worker
            batches[fact.ticket] = torch.from_numpy(draws[worker][drawn[worker]])
            drawn[worker] += 1
        elif isinstance(fact, Arrived):
            batch = batches[fact.ticket]
            batches[fact.ticket] = batch[: len(batch) * fact.done // fact.ticket.work.units]
        elif isinstance(fact, Step):
            moved = [weights.clone() for weights in versions[-1]]
            for ticket, weight in fact.weights.items():
                with torch.no_grad():
                    for parameter, weights in zip(model.parameters(), versions[ticket.version], strict=True):
                        parameter.copy_(weights)
                loss = task.function(model(inputs[batches[ticket]]), targets[batches[ticket]])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                for weights, gradient in zip(moved, gradients, strict=True):
                    weights.sub_(gradient, alpha=lr * float(weight))
            versions.append(moved)
            if len(versions) > updates:
                break  # the run ended before what follows was carried out
    with torch.no_grad():
        for parameter, weights in zip(model.parameters(), versions[-1], strict=True):
            parameter.copy_(weights)
    return model
