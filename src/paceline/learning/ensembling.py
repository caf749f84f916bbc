"""EC-DNN and E-DNN: the workers' outputs are aggregated, and distilled back into their models."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from torch import Tensor, nn

from paceline.core.facts import Ticket
from paceline.learning.distillation import Distillation, Diversity, SoftLabels, soft_labels
from paceline.learning.ensemble import Ensemble
from paceline.learning.job import Bill, Job
from paceline.learning.local_training import Addition, LocalTrainer
from paceline.learning.relabelling import Weighing, relabel
from paceline.sampling.partition import Indices
from paceline.strategies.ensemble_compression import EnsembleCompression

FORWARD_SHARE = 1 / 3  # of the time of a training step; a backward pass takes about twice as long as a forward pass


class _Exchanged(NamedTuple):
    labels: list[SoftLabels]  # of each worker
    coefficients: Tensor | None  # of the models, if they were fitted


class Ensembling:
    """Keeps who is in the ensemble, and what its outputs are for the samples of each worker."""

    def __init__(self, job: Job, strategy: EnsembleCompression, trainers: Sequence[LocalTrainer]) -> None:
        self._job = job
        self._strategy = strategy
        self._trainers = trainers
        self._bytes = job.state.message_bytes
        self._round = 0
        self._members: Sequence[int] = range(len(trainers))
        self._coefficients: Tensor | None = None
        self._chosen: list[Indices] = []  # the samples that each worker labels
        self._labels: list[SoftLabels] = []
        self._centres: list[SoftLabels] = []
        self._owed: dict[int, Bill] = {}  # what the last exchange cost a worker, charged to its next piece
        if not strategy.same_start:
            for trainer in trainers:
                trainer.start_afresh()

    @property
    def model(self) -> nn.Module:
        return Ensemble([self._trainers[worker].model for worker in self._members], self._coefficients)

    def started(self, ticket: Ticket) -> Bill:
        exchange = self._owed.pop(ticket.worker, Bill(0, 0, 0.0, 0))
        return Bill(exchange.download, ticket.work.units, exchange.forwards, self._bytes)

    def settled(self, ticket: Ticket) -> None:
        """A worker goes on with its own model, whatever became of its last piece."""

    def prepare(self, ticket: Ticket) -> Sequence[Addition | None]:
        worker, steps, strategy = ticket.worker, ticket.work.units, self._strategy
        distilled = min(strategy.compressed, steps) if ticket.work.kind == "distilled_steps" else 0
        label = Distillation(strategy.distillation, self._labels[worker]) if self._labels else None
        apart = Diversity(strategy.diversity, self._centres[worker], strategy.squared) if self._centres else None
        return [label] * distilled + [apart] * (steps - distilled)

    def combine(self, weights: Mapping[Ticket, Fraction], spoiled: Sequence[Ticket]) -> None:
        strategy = self._strategy
        members = sorted({ticket.worker for ticket in weights})
        self._coefficients = self._coefficients if members == self._members else None
        self._members = members
        self._reset([ticket.worker for ticket in spoiled])
        compressed = strategy.exchanges_twice and self._round % 2 == 1
        self._round += 1
        ends = self._round == strategy.rounds
        if compressed:  # its outputs are the centres; the coefficients stay those of the last ensemble
            self._centres = [] if ends else self._exchange("simple").labels
            return
        wanted = strategy.distillation > 0 and strategy.compressed > 0 and not ends
        if wanted or strategy.weights == "regression":
            self._choose()
            found = self._exchange(strategy.weights)
            self._coefficients = found.coefficients
            self._labels = found.labels if wanted else []
        if strategy.diversity > 0 and not strategy.compressed and not ends:
            self._choose()
            self._centres = self._exchange("simple").labels

    def _choose(self) -> None:
        pairs = zip(self._trainers, self._job.shards, strict=True)
        self._chosen = [trainer.choose(shard, self._strategy.relabel) for trainer, shard in pairs]

    def _exchange(self, rule: str) -> "_Exchanged":
        """Every worker gets the members' models and passes its chosen samples through all of them."""
        strategy, samples = self._strategy, self._job.unaugmented
        models = [self._trainers[worker].model for worker in self._members]
        weighing = Weighing(rule, strategy.pooled, strategy.non_negative)
        found = relabel(models, samples, self._chosen, weighing)
        for worker, chosen in enumerate(self._chosen):
            foreign = len(models) - (worker in self._members)
            forwards = FORWARD_SHARE * len(models) * len(chosen) / self._job.batch_size
            self._owed[worker] = Bill(foreign * self._bytes, 0, forwards, 0)
        pairs = zip(self._chosen, found.labels, strict=True) if strategy.relabel else ()
        return _Exchanged([soft_labels(chosen, labels, len(samples)) for chosen, labels in pairs], found.coefficients)

    def _reset(self, spoiled: Sequence[int]) -> None:
        """A model that is not finite becomes a copy of the first member of the ensemble."""
        for worker in spoiled:
            self._trainers[worker].load(list(self._trainers[self._members[0]].values()))
