"""MA-DNN: the workers' parameters are averaged."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn

from paceline.core.facts import Ticket
from paceline.learning.data import to_device
from paceline.learning.job import Bill, Job
from paceline.learning.local_training import Addition, LocalTrainer
from paceline.learning.task import device_of
from paceline.strategies.model_averaging import ModelAveraging


class Averaging:
    r"""Keeps the average, and the earlier averages that somebody still works on.

    $$w \leftarrow w + \sum_k \alpha_k (w_k - w^{(k)}),$$

    where worker $k$ began with $w^{(k)}$; where all began with $w$ and $\sum \alpha_k = 1$, $\sum_k \alpha_k w_k$.
    """

    def __init__(self, job: Job, strategy: ModelAveraging, trainers: Sequence[LocalTrainer]) -> None:
        self.model: nn.Module = job.state.model
        self._parameters = [parameter.data for parameter in job.state.parameters]
        self._buffers = job.state.buffers
        self._job = job
        self._strategy = strategy
        self._trainers = trainers
        self._bytes = job.state.message_bytes
        self._version = 0
        self._users: Counter[int] = Counter()
        self._earlier: dict[int, list[Tensor]] = {}
        self._momenta: dict[int, dict[str, Tensor]] = {}  # parameter -> averaged state of the optimizers
        self._unaware: set[int] = set()  # workers that did not load those yet

    def started(self, ticket: Ticket) -> Bill:
        self._users[ticket.version] += 1
        return Bill(self._bytes, ticket.work.units, 0.0, self._bytes)

    def settled(self, ticket: Ticket) -> None:
        self._users[ticket.version] -= 1
        if not self._users[ticket.version]:
            del self._users[ticket.version]
            self._earlier.pop(ticket.version, None)

    def prepare(self, ticket: Ticket) -> Sequence[Addition | None]:
        trainer = self._trainers[ticket.worker]
        trainer.load(self._begun_with(ticket))
        if ticket.worker in self._unaware:
            self._unaware.discard(ticket.worker)
            for number, parameter in enumerate(trainer.parameters):
                for name, value in self._momenta.get(number, {}).items():
                    trainer.optimizer.state[parameter][name] = value.clone()
        return [None] * ticket.work.units

    def combine(self, weights: Mapping[Ticket, Fraction], spoiled: Sequence[Ticket]) -> None:
        before = [value.clone() for value in self._values()] if self._users[self._version] > len(weights) else None
        current = all(ticket.version == self._version for ticket in weights) and sum(weights.values()) == 1
        self._add_up(weights, current=current)
        self._average_buffers([self._trainers[ticket.worker] for ticket in weights])
        if before is not None:
            self._earlier[self._version] = before
        self._version += 1
        if self._strategy.momentum == "averaged":
            self._average_momenta([self._trainers[ticket.worker] for ticket in weights])
        if self._strategy.recalibrate:
            self._recalibrate([ticket.worker for ticket in weights])

    def _values(self) -> Iterable[Tensor]:
        yield from self._parameters
        yield from self._buffers

    def _begun_with(self, ticket: Ticket) -> list[Tensor]:
        return list(self._values()) if ticket.version == self._version else self._earlier[ticket.version]

    def _add_up(self, weights: Mapping[Ticket, Fraction], *, current: bool) -> None:
        """In worker order, so that runs repeat bit for bit."""
        ordered = sorted(weights, key=lambda ticket: (ticket.worker, ticket.serial))
        moved = [torch.zeros_like(value) for value in self._parameters]
        for ticket in ordered:
            begun = self._begun_with(ticket)
            for number, own in enumerate(self._trainers[ticket.worker].parameters):
                change = own.data if current else own.data - begun[number]
                moved[number].add_(change, alpha=float(weights[ticket]))
        for value, change in zip(self._parameters, moved, strict=True):
            value.copy_(change) if current else value.add_(change)

    def _average_buffers(self, trainers: Sequence[LocalTrainer]) -> None:
        self._job.state.average_buffers([list(trainer.model.buffers()) for trainer in trainers])

    def _average_momenta(self, trainers: Sequence[LocalTrainer]) -> None:
        for number in range(len(self._parameters)):
            states = [trainer.optimizer.state[trainer.parameters[number]] for trainer in trainers]
            self._momenta[number] = {
                name: torch.stack([state[name] for state in states]).mean(dim=0)
                for name, value in states[0].items()
                if isinstance(value, Tensor) and value.is_floating_point()
            }
        self._unaware = set(range(len(self._trainers)))

    def _recalibrate(self, workers: Sequence[int]) -> None:
        """Find the statistics of batch normalisation anew: the mean over some mini-batches, drawn from all workers."""
        layers = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean
        device = device_of(self.model)
        with torch.no_grad():
            for number in range(self._strategy.recalibrate):
                shard, size = self._job.shards[workers[number % len(workers)]], self._job.batch_size
                begin = number // len(workers) * size % max(1, len(shard) - size)
                self.model(to_device(self._job.unaugmented.fetch(shard[begin : begin + size]), device)[0])
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
