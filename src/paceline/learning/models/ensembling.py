"""EC-DNN and E-DNN: the workers' outputs are aggregated, and distilled back into their models."""

import logging
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.cost import Bill
from paceline.learning.models.distillation import Distillation, Diversity, SoftLabels, soft_labels
from paceline.learning.models.ensemble import Ensemble
from paceline.learning.models.local_training import LocalTrainer
from paceline.learning.models.local_work import Beginning
from paceline.learning.models.relabelling import Relabelled, Weighing, relabel
from paceline.learning.workload import Workload
from paceline.strategies.ensemble_compression import EnsembleCompression

FORWARD_SHARE = 1 / 3  # of the time of a training step; a backward pass takes about twice as long as a forward pass
NOTHING = Bill(0, 0, 0.0, 0)
log = logging.getLogger("paceline")


class Given(NamedTuple):
    """The labels that a worker was given for its piece of work: of the ensemble, of the compressed models."""

    labels: SoftLabels | None
    centres: SoftLabels | None


class Ensembling:
    """Keeps who is in the ensemble, and what its outputs are for the samples of each worker."""

    def __init__(self, workload: Workload, strategy: EnsembleCompression, trainers: Sequence[LocalTrainer]) -> None:
        self._workload = workload
        self._strategy = strategy
        self._trainers = trainers
        self._round = 0
        self._members: Sequence[int] = list(range(len(trainers)))
        self._coefficients: Tensor | None = None
        self._chosen: list[Indices] = []  # the samples that each worker labels
        self._labels: list[SoftLabels] = []  # the ensemble's outputs for them
        self._centres: list[SoftLabels] = []  # the mean outputs of the compressed models
        self._owed: dict[int, Bill] = {}  # what the last exchange cost a worker, charged to its next piece
        self._given: dict[Ticket, Given] = {}
        relabel(
            [trainers[0].model], workload.unaugmented, [workload.shards[0][:1]], Weighing()
        )  # refuses what has no classes
        if not strategy.same_start and not sum(trainer.start_afresh() for trainer in trainers):
            log.warning("no layer of the model knows how to draw its weights anew: all workers begin with the same")

    @property
    def model(self) -> nn.Module:
        return Ensemble([self._trainers[worker].model for worker in self._members], self._coefficients)

    def started(self, ticket: Ticket) -> None:
        worker = ticket.worker
        self._given[ticket] = Given(
            self._labels[worker] if self._labels else None, self._centres[worker] if self._centres else None
        )

    def bill(self, ticket: Ticket) -> Bill:
        exchange = self._owed.pop(ticket.worker, NOTHING)
        return exchange._replace(mini_batches=ticket.work.units, upload=self._workload.state.message_bytes)

    def settled(self, ticket: Ticket) -> None:
        """A worker goes on with its own model, whatever became of its last piece."""
        del self._given[ticket]

    def beginning(self, ticket: Ticket) -> Beginning:
        """Every worker goes on from its own model: first come the steps that distil the ensemble, then the others."""
        (labels, centres), steps, strategy = self._given[ticket], ticket.work.units, self._strategy
        distilled = min(strategy.compressed, steps) if ticket.work.kind == "distilled_steps" else 0
        label = Distillation(strategy.distillation, labels) if labels else None
        apart = Diversity(strategy.diversity, centres, strategy.squared) if centres else None
        return Beginning(None, [label] * distilled + [apart] * (steps - distilled))

    def combine(self, weights: Mapping[Ticket, Fraction], spoiled: Sequence[Ticket]) -> None:
        strategy = self._strategy
        self._admit([ticket.worker for ticket in weights])
        self._reset([ticket.worker for ticket in spoiled])
        compressed = strategy.exchanges_twice and self._round % 2 == 1
        self._round += 1
        ends = self._round == strategy.rounds
        if ends:
            self._end()
        elif compressed:
            self._labels, self._centres = [], self._soft(self._exchange("simple"))
        else:
            self._choose()
            if strategy.weights == "regression" or (strategy.distillation > 0 and strategy.compressed > 0):
                found = self._exchange(strategy.weights)
                self._coefficients, self._labels = found.coefficients, self._soft(found)
            if strategy.diversity > 0 and not strategy.compressed:  # the models stay as they are
                self._centres = self._soft(self._exchange("simple"))

    def state(self) -> State:
        """Labels are kept once, however many refer to them."""
        given = [each for pair in self._given.values() for each in pair if each is not None]
        soft = list({id(each): each for each in [*self._labels, *self._centres, *given]}.values())
        place = {id(each): number for number, each in enumerate(soft)}
        return {
            "round": self._round,
            "members": list(self._members),
            "coefficients": self._coefficients,
            "chosen": list(self._chosen),
            "soft": [[each.samples, each.labels] for each in soft],
            "labels": [place[id(each)] for each in self._labels],
            "centres": [place[id(each)] for each in self._centres],
            "given": [
                [plain_ticket(ticket), *(None if each is None else place[id(each)] for each in pair)]
                for ticket, pair in self._given.items()
            ],
            "owed": {str(worker): list(bill) for worker, bill in self._owed.items()},
        }

    def restore(self, state: State) -> None:
        samples = len(self._workload.unaugmented)
        soft = [soft_labels(chosen, labels, samples) for chosen, labels in state["soft"]]
        self._round, self._members = whole(state["round"]), [whole(worker) for worker in state["members"]]
        self._coefficients, self._chosen = state["coefficients"], list(state["chosen"])
        if max(self._members) >= len(self._trainers) or len(self._chosen) not in (0, len(self._trainers)):
            raise ValueError(
                f"members {self._members} and {len(self._chosen)} choices of {len(self._trainers)} workers"
            )
        for chosen in self._chosen:
            soft_labels(chosen, torch.empty(0), samples)  # refuses samples that there are not
        self._labels = [soft[whole(number)] for number in state["labels"]]
        self._centres = [soft[whole(number)] for number in state["centres"]]
        for ticket, *pair in state["given"]:
            self._given[ticket_from(ticket)] = Given(*(None if each is None else soft[whole(each)] for each in pair))
        for worker, (download, mini_batches, forwards, upload) in state["owed"].items():
            self._owed[int(worker)] = Bill(whole(download), whole(mini_batches), real(forwards), whole(upload))

    def check_restored(self, tickets: Collection[Ticket], updates: int) -> None:
        if self._round != updates or self._given.keys() != {*tickets}:
            raise ValueError("what labels were given out for does not fit the work that is not settled")

    def _end(self) -> None:
        """Coefficients of the last models; there is no next piece of work to charge this to."""
        self._labels, self._centres = [], []
        if self._strategy.weights == "regression":
            self._choose()
            self._coefficients = self._relabel("regression").coefficients

    def _admit(self, workers: Sequence[int]) -> None:
        """The ensemble is made of those that handed in a finite model; if there are none, it stays what it is."""
        members = sorted(workers) or self._members
        self._coefficients = self._coefficients if members == self._members else None
        self._members = members

    def _reset(self, spoiled: Sequence[int]) -> None:
        """A model that is not finite becomes a copy of the ensemble's first member that is."""
        finite = [worker for worker in [*self._members, *range(len(self._trainers))] if worker not in spoiled]
        for worker in spoiled:
            self._trainers[worker].load(list(self._trainers[finite[0]].values()))

    def _choose(self) -> None:
        pairs = zip(self._trainers, self._workload.shards, strict=True)
        self._chosen = [trainer.choose(shard, self._strategy.relabel) for trainer, shard in pairs]

    def _exchange(self, rule: str) -> Relabelled:
        """Every worker gets the members' models and passes its chosen samples through all of them."""
        for worker, chosen in enumerate(self._chosen):
            foreign = len(self._members) - (worker in self._members)
            forwards = FORWARD_SHARE * len(self._members) * len(chosen) / self._workload.batch_size
            self._owed[worker] = Bill(foreign * self._workload.state.message_bytes, 0, forwards, 0)
        return self._relabel(rule)

    def _relabel(self, rule: str) -> Relabelled:
        models = [self._trainers[worker].model for worker in self._members]
        weighing = Weighing(rule, self._strategy.pooled, self._strategy.non_negative)
        return relabel(models, self._workload.unaugmented, self._chosen, weighing)

    def _soft(self, found: Relabelled) -> list[SoftLabels]:
        """The labels by sample; nothing where none were chosen."""
        if not self._strategy.relabel:
            return []
        samples = len(self._workload.unaugmented)
        return [soft_labels(*pair, samples) for pair in zip(self._chosen, found.labels, strict=True)]
