"""EC-DNN and E-DNN: the workers' outputs make an ensemble, which is distilled back into their models."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.cost import Cost
from paceline.learning.loss import SampleLoss
from paceline.learning.models.contributions import Models
from paceline.learning.models.ensemble import Ensemble, Relabelled, Weighing, relabel
from paceline.learning.models.training import Beginning
from paceline.learning.workload import Workload
from paceline.strategies.aggregation import EnsembleModels

FORWARD_SHARE = 1 / 3  # of the time of a training step; a backward pass takes about twice as long as a forward pass
NOTHING = Cost(0, 0, 0.0, 0)
TINY = 1e-12  # keeps the gradient of a distance of 0 finite
TOLD = 3  # names in a warning
log = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True)
class SoftLabels:
    """A distribution over the classes for some samples: ``labels[places[i]]`` for sample i; none where that is -1."""

    places: Indices
    labels: Tensor

    def of(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Which of the samples have labels (their places in ``indices``), and those."""
        places = self.places[indices]
        having = np.flatnonzero(places >= 0)
        return torch.from_numpy(having), self.labels[torch.from_numpy(places[having])]

    @property
    def samples(self) -> Indices:
        """Those that have labels, in the order of ``labels``."""
        having = np.flatnonzero(self.places >= 0)
        return having[np.argsort(self.places[having])]

    def __reduce__(self) -> tuple[Any, ...]:
        """Packed without a place for every sample that has none."""
        return soft_labels, (self.samples, self.labels, len(self.places))


def soft_labels(samples: Indices, labels: Tensor, of: int) -> SoftLabels:
    """Labels for these samples out of so many."""
    places = np.full(of, -1, dtype=np.int64)
    places[samples] = np.arange(len(samples))
    return SoftLabels(places, labels)


@dataclass(frozen=True, slots=True)
class Distillation:
    r"""$\beta$ times the cross entropy against the ensemble's outputs, Eq. (10).

    $$\beta\, L(f, \bar y) = -\beta \sum_c \bar y_c \log f_c,$$

    where $f$ are softmax outputs and $\bar y$ the pseudo labels. A sample without one adds nothing; the mean is over
    the whole mini-batch.
    """

    weight: float
    labels: SoftLabels

    def __call__(self, outputs: Tensor, indices: Indices) -> Tensor:
        places, labels = self.labels.of(indices)
        if not len(places):
            return outputs.new_zeros(())
        logarithms = torch.log_softmax(outputs[places.to(outputs.device)], dim=1)
        return -self.weight * (labels.to(outputs.device) * logarithms).sum() / len(indices)


@dataclass(frozen=True, slots=True)
class Diversity:
    r"""$\alpha$ times the negative distance to the mean of the compressed models' outputs, Eq. (9).

    $$\alpha L_{sim}(f, \bar z) = -\alpha \lVert f - \bar z \rVert_2 \quad\text{(or, squared, its square)}.$$
    """

    weight: float
    centres: SoftLabels
    squared: bool = False

    def __call__(self, outputs: Tensor, indices: Indices) -> Tensor:
        places, centres = self.centres.of(indices)
        if not len(places):
            return outputs.new_zeros(())
        apart = torch.softmax(outputs[places.to(outputs.device)], dim=1) - centres.to(outputs.device)
        squares = apart.square().sum(dim=1)
        distances = squares if self.squared else (squares + TINY).sqrt()
        return -self.weight * distances.sum() / len(indices)


class Given(NamedTuple):
    """The labels that a worker was given for its local work: of the ensemble, of the compressed models."""

    labels: SoftLabels | None
    centres: SoftLabels | None


class Ensembling:
    """Keeps who is in the ensemble, and what its outputs are for the samples of each worker."""

    kinds: Collection[str] = ("local_steps", "distilled_steps")
    made: Mapping[str, Any] = MappingProxyType({})
    needs_state = ""
    only_last = "an ensemble has one member a worker"

    def __init__(self, workload: Workload, settings: EnsembleModels) -> None:
        self._workload = workload
        self._settings = settings
        self._trainers = trainers = workload.trainers
        self._round = 0
        self._members: Sequence[int] = list(range(len(trainers)))
        self._coefficients: Tensor | None = None
        self._chosen: list[Indices] = []  # the samples that each worker labels
        self._labels: list[SoftLabels] = []  # a regression's outputs for all of them
        self._asked = ""  # what the next work is given for the samples of its mini-batches: labels, centres or nothing
        self._owed: dict[int, Cost] = {}  # what the last exchange cost a worker, charged to its next work
        self._given: dict[Ticket, Given] = {}
        relabel(
            [trainers[0].model], workload.unaugmented, [workload.shards[0][:1]], Weighing()
        )  # refuses what has no classes
        if not settings.same_start:
            (names, *_) = [trainer.start_afresh() for trainer in trainers]
            if names:
                log.warning(
                    "all workers begin with the same values of %s%s: no layer has a reset_parameters that draws them",
                    ", ".join(names[:TOLD]),
                    f" and {len(names) - TOLD} more" if len(names) > TOLD else "",
                )

    @property
    def model(self) -> nn.Module:
        return Ensemble([self._trainers[worker].model for worker in self._members], self._coefficients)

    def started(self, ticket: Ticket, batches: Sequence[Indices]) -> None:
        """Label the chosen samples of these mini-batches: nobody asks for the others.

        The models are those of the last exchange until the next one.
        """
        labels, centres = self._labels[ticket.worker] if self._labels else None, None
        distilled = self._distilled(ticket)
        if self._asked == "labels":
            labels = self._label(ticket.worker, batches[:distilled], self._settings.weights)
        elif self._asked == "centres":
            centres = self._label(ticket.worker, batches[distilled:], "simple")
        self._given[ticket] = Given(labels, centres)

    def _distilled(self, ticket: Ticket) -> int:
        """How many steps of some work distil the ensemble."""
        return self._settings.distils(ticket.work.units) if ticket.work.kind == "distilled_steps" else 0

    def _label(self, worker: int, batches: Sequence[Indices], rule: str) -> SoftLabels | None:
        if not self._settings.relabel or not batches:
            return None
        samples = np.intersect1d(np.concatenate(batches), self._chosen[worker])
        with self._trainers[worker].served(self._round):
            (labels,) = self._relabel(rule, [samples]).labels
        return soft_labels(samples, labels, len(self._workload.unaugmented))

    def cost(self, ticket: Ticket) -> Cost:
        exchange = self._owed.pop(ticket.worker, NOTHING)
        return exchange._replace(mini_batches=ticket.work.units, upload=self._workload.state.message_bytes)

    def settled(self, ticket: Ticket) -> None:
        """A worker continues with its own model, whatever became of its last work."""
        del self._given[ticket]

    def beginning(self, ticket: Ticket) -> Beginning:
        """Every worker continues from its own model: first come the steps that distil the ensemble, then the others."""
        (labels, centres), steps, settings = self._given[ticket], ticket.work.units, self._settings
        distilled = self._distilled(ticket)
        label = Distillation(settings.distillation, labels) if labels else None
        apart = Diversity(settings.diversity, centres, settings.squared) if centres else None
        return Beginning(None, [label] * distilled + [apart] * (steps - distilled))

    def combine(self, weights: Mapping[Ticket, Fraction], non_finite: Sequence[Ticket], models: Models) -> None:
        settings = self._settings
        self._admit([ticket.worker for ticket in weights])
        self._reset([ticket.worker for ticket in non_finite])
        compressed = settings.exchanges_twice and self._round % 2 == 1
        self._round += 1
        self._labels, self._asked = [], ""
        if self._round == settings.rounds:
            self._end()
        elif compressed:
            self._charge()
            self._asked = "centres"
        else:
            self._choose()
            if settings.weights == "regression" or (settings.distillation > 0 and settings.compressed != 0):
                self._charge()
                self._asked = "labels"
            if settings.weights == "regression":
                self._fit()
            if settings.diversity > 0 and settings.compressed == 0:  # the models stay as they are
                self._charge()
                self._asked = "centres"

    def state(self) -> State:
        """Labels are kept once, however many refer to them."""
        given = [each for pair in self._given.values() for each in pair if each is not None]
        soft = list({id(each): each for each in [*self._labels, *given]}.values())
        place = {id(each): number for number, each in enumerate(soft)}
        return {
            "round": self._round,
            "members": list(self._members),
            "coefficients": self._coefficients,
            "chosen": list(self._chosen),
            "soft": [[each.samples, each.labels] for each in soft],
            "labels": [place[id(each)] for each in self._labels],
            "asked": self._asked,
            "given": [
                [plain_ticket(ticket), *(None if each is None else place[id(each)] for each in pair)]
                for ticket, pair in self._given.items()
            ],
            "owed": {str(worker): list(cost) for worker, cost in self._owed.items()},
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
        self._asked = str(state.get("asked", self._asked_by(state)))
        for ticket, *pair in state["given"]:
            self._given[ticket_from(ticket)] = Given(*(None if each is None else soft[whole(each)] for each in pair))
        for worker, (download, mini_batches, forwards, upload) in state["owed"].items():
            self._owed[int(worker)] = Cost(whole(download), whole(mini_batches), real(forwards), whole(upload))

    def _asked_by(self, state: State) -> str:
        """For older checkpoints, which have labels for all chosen samples."""
        if state.get("centres") and (not state["labels"] or self._settings.compressed == 0):
            return "centres"
        return "labels" if state["labels"] and self._settings.weights != "regression" else ""

    def check_restored(self, tickets: Collection[Ticket], updates: int) -> None:
        if self._round != updates or self._given.keys() != {*tickets}:
            raise ValueError("what labels were given out for does not fit the work that is not settled")

    def _end(self) -> None:
        """Coefficients of the last models; there is no next work to charge this to."""
        if self._settings.weights == "regression":
            self._choose()
            self._coefficients = self._regression().coefficients

    def _admit(self, workers: Sequence[int]) -> None:
        """The ensemble is made of those that handed in a finite model; if there are none, it stays what it is."""
        members = sorted(workers) or self._members
        self._coefficients = self._coefficients if members == self._members else None
        self._members = members

    def _reset(self, non_finite: Sequence[int]) -> None:
        """A model that is not finite becomes a copy of the ensemble's first member that is."""
        finite = [worker for worker in [*self._members, *range(len(self._trainers))] if worker not in non_finite]
        for worker in non_finite:
            self._trainers[worker].load(list(self._trainers[finite[0]].values()))

    def _choose(self) -> None:
        pairs = zip(self._trainers, self._workload.shards, strict=True)
        self._chosen = [trainer.choose(shard, self._settings.relabel) for trainer, shard in pairs]

    def _charge(self) -> None:
        """Every worker gets the members' models and passes its chosen samples through all of them."""
        for worker, chosen in enumerate(self._chosen):
            foreign = len(self._members) - (worker in self._members)
            forwards = FORWARD_SHARE * len(self._members) * len(chosen) / self._workload.batch_size
            self._owed[worker] = Cost(foreign * self._workload.state.message_bytes, 0, forwards, 0)

    def _fit(self) -> None:
        """A regression is fitted on all chosen samples, which so have their labels at once."""
        found = self._regression()
        samples = len(self._workload.unaugmented)
        self._coefficients, self._asked = found.coefficients, ""
        self._labels = [soft_labels(*pair, samples) for pair in zip(self._chosen, found.labels, strict=True)]

    def _regression(self) -> Relabelled:
        """On the chosen samples of all workers."""
        with self._trainers[0].served(self._round):
            return self._relabel("regression", self._chosen)

    def _relabel(self, rule: str, parts: Sequence[Indices]) -> Relabelled:
        models = [self._trainers[worker].model for worker in self._members]
        weighing = Weighing(rule, self._settings.pooled, self._settings.non_negative)
        loss = self._workload.loss
        counted = loss.counted if isinstance(loss, SampleLoss) else None
        return relabel(models, self._workload.unaugmented, parts, weighing, counted)
