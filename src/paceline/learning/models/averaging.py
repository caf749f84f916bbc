"""MA-DNN and its kin: the workers' parameters are averaged, or pull the model and each other."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.core.codec import whole
from paceline.core.errors import IllegalDecision
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.data.samples import to_device
from paceline.learning.cost import Cost
from paceline.learning.model_state import BufferChange, like
from paceline.learning.models.contributions import Models, in_order
from paceline.learning.models.outer import OuterOptimizer
from paceline.learning.models.training import Beginning, LocalTrainer
from paceline.learning.task import device_of
from paceline.learning.workload import Workload
from paceline.strategies.aggregation import AverageModels


class Averaging:
    r"""Keeps the average, and the earlier averages that somebody still works on.

    | ``combines`` | new model | a worker continues from |
    |---|---|---|
    | ``changes`` | $w + \sum_k \alpha_k (w_k - w^{(k)})$, worker $k$ having begun with $w^{(k)}$ | the new model |
    | ``models`` | $(1 - \sum_k \alpha_k)\, w + \sum_k \alpha_k w_k$ | the new model |
    | ``elastic`` | the same | $w_k - \alpha_k (w_k - w)$, its own model |

    Where all began with $w$ and $\sum \alpha_k = 1$, the first is $\sum_k \alpha_k w_k$ as well. With an outer
    optimizer, the new model less $w$ is not added, but is the negative gradient of a step. Buffers move as parameters
    do, without an outer optimizer, but mini-batches are always counted whole (``ModelState.move_buffers``).
    """

    kinds: Collection[str] = ("local_steps",)

    def __init__(self, workload: Workload, settings: AverageModels) -> None:
        self.model: nn.Module = workload.state.model
        self._parameters = [parameter.data for parameter in workload.state.parameters]
        self._workload = workload
        self._settings = settings
        self._trainers = workload.trainers
        self._outer = (
            None
            if settings.outer is None
            else OuterOptimizer(settings.outer, workload.state.named_parameters(), len(workload.trainers))
        )
        self._version = 0
        self._open: set[int] = set()  # workers whose work is not settled
        self._users: Counter[int] = Counter()  # version -> local work that began with it and is not settled
        self._earlier: dict[int, list[Tensor]] = {}
        # where a worker continues from its own model: what its counters were when it began; its trainer still has that
        self._counters: dict[int, list[Tensor]] = {}

    @property
    def made(self) -> Mapping[str, Any]:
        return {} if self._outer is None else self._outer.made

    @property
    def needs_state(self) -> str:
        return "momentum='averaged' averages it on the server" if self._settings.momentum == "averaged" else ""

    @property
    def only_last(self) -> str:
        return "the elastic force pulls the model that it continues from" if self._elastic else ""

    @property
    def _elastic(self) -> bool:
        return self._settings.combines == "elastic"

    def started(self, ticket: Ticket, batches: Sequence[Indices]) -> None:
        if self._elastic and ticket.worker in self._open:
            raise IllegalDecision(
                f"cannot give worker {ticket.worker} new work before its last model is used: the elastic force pulls "
                "the model that it continues from; let EASGD wait by Synchronous, FastestK or Asynchronous"
            )
        self._open.add(ticket.worker)
        self._note_counters(ticket.worker)
        self._users[ticket.version] += 1

    def cost(self, ticket: Ticket) -> Cost:
        size = self._workload.state.message_bytes
        return Cost(download=size, mini_batches=ticket.work.units, forwards=0.0, upload=size)

    def settled(self, ticket: Ticket) -> None:
        self._open.discard(ticket.worker)
        self._users[ticket.version] -= 1
        if not self._users[ticket.version]:
            del self._users[ticket.version]
            self._earlier.pop(ticket.version, None)

    def beginning(self, ticket: Ticket) -> Beginning:
        values = None if self._elastic else self._begun_with(ticket)
        return Beginning(values, [None] * ticket.work.units)

    def combine(self, weights: Mapping[Ticket, Fraction], non_finite: Sequence[Ticket], models: Models) -> None:
        """In worker order, so that runs repeat bit for bit."""
        ordered = {ticket: weights[ticket] for ticket in sorted(weights, key=in_order)}
        trainers = [self._trainers[worker] for worker in dict.fromkeys(ticket.worker for ticket in ordered)]
        of_this_version = sum(ticket.version == self._version for ticket in ordered)
        if self._users[self._version] > of_this_version and not self._elastic:
            self._earlier[self._version] = [value.clone() for value in self._values()]
        with torch.no_grad():
            self._add_up(ordered, models)
        self._version += 1
        if self._elastic:
            for ticket in non_finite:
                self._trainers[ticket.worker].load(list(self._values()))
        if self._settings.momentum == "averaged" and trainers:
            self._average_momenta(trainers)
        if self._settings.recalibrate and trainers:
            batches = self._mini_batches([ticket.worker for ticket in ordered], self._settings.recalibrate)
            with self._trainers[0].served(self._version):  # neither data nor dropout may move the run's random numbers
                recalibrate(self.model, batches, self._workload.loss.passed)

    def state(self) -> State:
        return {
            "model": self._workload.state.state(),
            "version": self._version,
            "users": dict(self._users),
            "earlier": dict(self._earlier),
            **({} if self._outer is None else {"outer": self._outer.state()}),
        }

    def restore(self, state: State) -> None:
        self._workload.state.restore(state["model"])
        self._version = whole(state["version"])
        self._users.update({whole(version): whole(count) for version, count in state["users"].items()})
        present = list(self._values())
        self._earlier = {whole(version): like(present, values) for version, values in state["earlier"].items()}
        if self._outer is not None:
            self._outer.restore(state["outer"])

    def check_restored(self, tickets: Collection[Ticket], updates: int) -> None:
        if self._version != updates or self._users != Counter(ticket.version for ticket in tickets):
            raise ValueError("the versions of the average do not fit the work that began with them")
        self._open = {ticket.worker for ticket in tickets}
        for worker in self._open:
            self._note_counters(worker)
        missing = self._users.keys() - self._earlier.keys() - {self._version}
        if missing and not self._elastic:
            raise ValueError(f"version {min(missing)} of the average is missing")

    def _values(self) -> Iterable[Tensor]:
        yield from self._parameters
        yield from self._workload.state.buffers

    def _begun_with(self, ticket: Ticket) -> list[Tensor]:
        return list(self._values()) if ticket.version == self._version else self._earlier[ticket.version]

    def _add_up(self, weights: Mapping[Ticket, Fraction], models: Models) -> None:
        if not weights:
            return  # nothing was learnt: an outer optimizer makes no step either
        total = sum(weights.values())
        changes = self._settings.combines == "changes"
        # a sum of models, not of their changes since the download, is rounded less
        fresh = not self._elastic and all(ticket.version == self._version for ticket in weights)
        sums_up = not changes or (fresh and total == 1)
        begun = {t: self._begun_with(t) if changes else list(self._values()) for t in weights}
        handed_in = {ticket: models(ticket) for ticket in weights}
        of_buffers = len(self._parameters)
        moves = [BufferChange(weights[t], self._buffers_of(t), own[of_buffers:]) for t, own in handed_in.items()]
        outer = None if self._outer is None or self._outer.is_the_mean else self._outer
        differences: list[Tensor | None] = []
        for number, value in enumerate(self._parameters):  # one after the other: no second copy of the model
            if all(torch.equal(own[number], begun[t][number]) for t, own in handed_in.items()):
                differences.append(None)  # nobody's loss depends on it: not even rounded
                continue
            moved = torch.zeros_like(value, dtype=torch.promote_types(value.dtype, torch.float32))
            for ticket, own in handed_in.items():
                moved.add_(
                    own[number] if sums_up else own[number] - begun[ticket][number], alpha=float(weights[ticket])
                )
            if sums_up and total != 1:
                moved.add_(value, alpha=float(1 - total))
            if self._elastic:
                self._pull(number, value, weights)
            if outer is not None:
                differences.append(value - moved if sums_up else -moved)
            else:
                value.copy_(moved) if sums_up else value.add_(moved)
        if outer is not None:
            outer.step(differences)
        self._workload.state.move_buffers(moves, fresh=fresh, pulled=not changes)

    def _buffers_of(self, ticket: Ticket) -> Sequence[Tensor]:
        """The buffers that a worker began with; where they are its own, only the counters are."""
        return self._counters[ticket.worker] if self._elastic else self._begun_with(ticket)[len(self._parameters) :]

    def _note_counters(self, worker: int) -> None:
        if self._elastic:
            own, state = list(self._trainers[worker].values())[len(self._parameters) :], self._workload.state
            self._counters[worker] = [b.clone() if state.counts_whole(n) else b for n, b in enumerate(own)]

    def _pull(self, number: int, centre: Tensor, weights: Mapping[Ticket, Fraction]) -> None:
        """Pull the workers' own parameters towards the model as it was before this update."""
        for ticket, weight in weights.items():
            own = self._trainers[ticket.worker].parameters[number].data
            own.lerp_(centre.to(own.dtype), float(weight))

    def _average_momenta(self, trainers: Sequence[LocalTrainer]) -> None:
        """Whatever floating-point tensors the optimizers keep for each parameter: of these, for all."""
        for number in range(len(self._parameters)):
            states = [trainer.optimizer.state.get(trainer.parameters[number], {}) for trainer in trainers]
            names = dict.fromkeys(name for state in states for name in state)
            kept = {name: [state[name] for state in states if name in state] for name in names}
            averages = {  # of those that have used the parameter
                name: torch.stack(values).mean(dim=0)
                for name, values in kept.items()
                if isinstance(values[0], Tensor) and values[0].is_floating_point()
            }
            for trainer in self._trainers if averages else ():
                own = trainer.optimizer.state[trainer.parameters[number]]
                own.update({name: average.clone() for name, average in averages.items()})

    def _mini_batches(self, workers: Sequence[int], count: int) -> Iterator[Any]:
        """So many mini-batches, from all workers in turn."""
        size, device = self._workload.batch_size, device_of(self.model)
        for number in range(count):
            shard = self._workload.shards[workers[number % len(workers)]]
            begin = number // len(workers) * size % max(1, len(shard) - size)
            yield to_device(self._workload.unaugmented.fetch(shard[begin : begin + size]), device)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any], passed: Callable[[nn.Module, Any], Any]) -> None:
    """Compute the running statistics of batch normalisation anew, as means over batches, each of them passed through.

    This is ``torch.optim.swa_utils.update_bn``, but what is in eval mode stays in it, and keeps its statistics.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    if layers:
        for batch in batches:
            passed(model, batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
