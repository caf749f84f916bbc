"""What carries a run's instructions out on the model: the protocol, and what both servers have in common."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.errors import ConfigError, Diverged
from paceline.core.messages import Joined, Left, Step, Ticket
from paceline.core.stateful import State
from paceline.data.batches import Batches, ObservesLosses, ObservesMembership, Resizable
from paceline.data.replicas import ObservesUse
from paceline.learning.contributions import Contributions, Evaluated, pack_tickets, unpack_tickets
from paceline.learning.loss import add_logged
from paceline.learning.optimizers import check_as_made

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("paceline")


class Learner(Protocol):
    """Carries instructions out on the model, which it holds, and counts what it took."""

    updates: int
    samples: int
    non_finite: list[Ticket]  # what was left out so far
    made: Mapping[str, Any]  # the settings that the optimizer was made with

    @property
    def model(self) -> "nn.Module": ...

    @property
    def contributions(self) -> Contributions: ...

    def attend(self, event: Joined | Left, /) -> None:
        """A worker joined or left."""
        ...

    def start(self, ticket: Ticket, /) -> None:
        """Draw the mini-batches of a ticket that is given out."""
        ...

    def shorten(self, ticket: Ticket, done: int, /) -> None:
        """Only some units of a ticket were handed in."""
        ...

    def drop(self, ticket: Ticket, /) -> None:
        """A ticket will never be used: its mini-batches are drawn again."""
        ...

    def step(self, step: Step, /) -> Sequence[Ticket]:
        """Update the model. Returns the contributions that were left out because they are not finite."""
        ...

    def resize(self, sizes: Mapping[int, int], /) -> None:
        """From now on workers have mini-batches of these sizes."""
        ...

    def report(self) -> Mapping[str, float]:
        """Numbers of the last update that the strategy asked for; asked only where it does."""
        ...

    def evaluated(self, loss: float, accuracy: float, /) -> None:
        """The model was evaluated: a scheduler that waits for that may lower the learning rate."""
        ...

    def training_loss(self) -> float:
        """The mean loss of the samples used since the last call."""
        ...

    def training_metrics(self) -> Mapping[str, float]:
        """What a step logged in training, as means over the samples used since the last call."""
        ...

    def best_local(self) -> "nn.Module | None":
        """The best of the workers' own models, where they have any."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State, /) -> None: ...


class WorkNumbers:
    """Numbers the tickets of each worker, from 0 on.

    A ticket that is dropped does not count if it is the worker's last one: its mini-batch goes back, is drawn again,
    and then meets the same random numbers. So a worker that is lost, or a run that is resumed, changes nothing.
    """

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._last: dict[int, Ticket] = {}

    def give(self, ticket: Ticket) -> int:
        """The number of a ticket that is given out."""
        worker = ticket.worker
        number = self._next.get(worker, 0)
        self._next[worker] = number + 1
        self._last[worker] = ticket
        return number

    def take_back(self, ticket: Ticket) -> None:
        """It was dropped."""
        if self._last.get(ticket.worker) == ticket:
            del self._last[ticket.worker]
            self._next[ticket.worker] -= 1

    def state(self) -> State:
        last = [plain_ticket(ticket) for ticket in self._last.values()]
        return {"next": [[worker, number] for worker, number in self._next.items()], "last": last}

    def restore(self, state: State) -> None:
        self._next = {whole(worker): whole(number) for worker, number in state["next"]}
        self._last = {ticket.worker: ticket for ticket in map(ticket_from, state["last"])}
        if any(not self._next.get(worker) for worker in self._last):
            raise ValueError("a worker cannot have a last ticket without a number")


class Server:
    """What a server does whatever is handed in: it draws mini-batches, counts, and leaves out what is not finite."""

    kinds: Collection[str]  # of work that it can use
    handed_in: str  # what a contribution is called in messages
    kept_when_diverged: str = ""
    logged_names: Collection[str] = ()  # of what a step logs
    reportable: Collection[str] = ()  # of paceline.core.messages.REPORTS, what it can tell of an update

    def __init__(self, contributions: Contributions, batches: Batches, workers: int, made: Mapping[str, Any]) -> None:
        self.updates = 0
        self.samples = 0
        self.non_finite: list[Ticket] = []
        self.contributions = contributions
        self._batches = batches
        self._observer = batches if isinstance(batches, ObservesLosses) else None
        self._replicas = batches if isinstance(batches, ObservesUse) else None
        self._workers = workers
        self.made = made  # the settings that the optimizer was made with
        self._kept: set[Ticket] = set()
        self._numbers = WorkNumbers()
        self._non_finite_in_a_row = 0
        self._loss_sum, self._loss_weight = 0.0, 0.0
        self._logged: dict[str, tuple[float, float]] = {}  # by a step: sums, and over how many samples

    def attend(self, event: Joined | Left) -> None:
        if isinstance(self._batches, ObservesMembership):
            (self._batches.joined if isinstance(event, Joined) else self._batches.left)(event.worker)

    def resize(self, sizes: Mapping[int, int]) -> None:
        if not isinstance(self._batches, Resizable):
            raise ConfigError(
                f"the strategy changes the sizes of mini-batches, and {type(self._batches).__name__} cannot: use "
                "sampling=Shuffled() or Resampled()"
            )
        self._batches.resize(sizes)

    def report(self) -> Mapping[str, float]:
        raise NotImplementedError  # of a server that can tell anything

    def ask_for(self, names: Collection[str], rule: str) -> None:
        """Tell these numbers of each update from now on; ``rule`` is the strategy that asks, for a refusal."""
        if unknown := [name for name in names if name not in self.reportable]:
            raise ConfigError(
                f"{rule} goes by the {unknown[0]} of each update, which is not told where workers hand in "
                f"{self.handed_in}s: choose a rule that needs no numbers of learning"
            )

    def refuse(self, ticket: Ticket) -> ConfigError:
        """Why work of a ticket's kind cannot be handed in."""
        return ConfigError(
            f"the strategy assigns {ticket.work.kind} to worker {ticket.worker}, and its first work was "
            f"{' or '.join(self.kinds)}: a run has one kind of work, which its first assignments decide"
        )

    def shorten(self, ticket: Ticket, done: int) -> None:
        self._batches.put_back(ticket.worker, self.contributions.shorten(ticket, done))

    def drop(self, ticket: Ticket) -> None:
        if ticket in self._kept:
            self._kept.discard(ticket)
        else:
            self._numbers.take_back(ticket)
            for indices in reversed(self.contributions.batches(ticket)):
                self._batches.put_back(ticket.worker, indices)
        self.contributions.settle((ticket,))

    def training_loss(self) -> float:
        mean = self._loss_sum / self._loss_weight if self._loss_weight else float("nan")
        self._loss_sum, self._loss_weight = 0.0, 0.0
        return mean

    def training_metrics(self) -> dict[str, float]:
        sums, self._logged = self._logged, {}
        names = dict.fromkeys([*self.logged_names, *sums])
        return {name: sums[name][0] / sums[name][1] if name in sums else math.nan for name in names}

    def best_local(self) -> "nn.Module | None":
        return None

    def state(self) -> State:
        """The counts. The batches and the contributions have states of their own."""
        return {
            "made": self.made,
            "counts": [self.updates, self.samples, self._non_finite_in_a_row],
            "loss": [self._loss_sum, self._loss_weight],
            **({"logged": {name: list(each) for name, each in self._logged.items()}} if self._logged else {}),
            "kept": pack_tickets(sorted(self._kept)),
            "spoiled": pack_tickets(self.non_finite),
            "numbers": self._numbers.state(),
        }

    def restore(self, state: State) -> None:
        check_as_made(self.made, state["made"])
        self.updates, self.samples, self._non_finite_in_a_row = map(whole, state["counts"][:3])
        # in older checkpoints the losses are divided by their number, the fourth of the counts
        old = len(state["counts"]) > 3
        self._loss_sum, self._loss_weight = map(float, (state["loss"], state["counts"][3]) if old else state["loss"])
        logged = state.get("logged", {}).items()  # only of a step that logs something
        self._logged = {str(name): (real(total), real(samples)) for name, (total, samples) in logged}
        self._kept.update(unpack_tickets(state.get("kept", ())))
        self.non_finite += unpack_tickets(state["spoiled"])
        if "numbers" in state:  # older checkpoints have none: seeds went by tickets
            self._numbers.restore(state["numbers"])

    def _observe(self, result: Evaluated) -> float:
        """Count the samples and hand their losses out, each sample's once. Returns their mean."""
        kept, observer = self._kept, self._observer
        before = self._loss_sum, self._loss_weight
        for each in result.passes:
            # those that were kept were computed once before
            first = each if not kept or kept.isdisjoint(each.tickets) else each.without(kept)
            self.samples += sum(map(len, first.batches))
            self._loss_sum += first.loss_sum
            self._loss_weight += first.loss_weight
            if first.logged:
                add_logged(self._logged, first.logged)
            if observer is not None:
                for ticket, indices, losses in first.of_tickets():
                    observer.observe(ticket.worker, indices, losses)
        weight = self._loss_weight - before[1]
        return (self._loss_sum - before[0]) / weight if weight else math.nan

    def _count_non_finite(self, new: Sequence[Ticket], non_finite: Sequence[Ticket]) -> None:
        """An update of which nothing new is finite ends the run; single ones, when all workers' in a row are not."""
        if not non_finite:
            self._non_finite_in_a_row = 0
            return
        self.non_finite += non_finite
        finite = any(ticket not in non_finite for ticket in new)
        self._non_finite_in_a_row = 0 if finite else self._non_finite_in_a_row + len(non_finite)
        for ticket in non_finite:
            log.warning(
                "update %d leaves out worker %d: its %s is not finite %s",
                self.updates + 1, ticket.worker, self.handed_in, self._details(ticket),
            )  # fmt: skip
        if not finite and (len(new) > 1 or self._non_finite_in_a_row >= self._workers):
            oldest = min(new, key=lambda ticket: ticket.version)
            raise Diverged(
                f"diverged at update {self.updates + 1}: none of the last {self._non_finite_in_a_row} "
                f"{self.handed_in}s is finite {self._details(oldest)}{self.kept_when_diverged}",
                [*non_finite],
            )

    def _details(self, ticket: Ticket) -> str:
        """What a message tells of a contribution that is not finite."""
        raise NotImplementedError
