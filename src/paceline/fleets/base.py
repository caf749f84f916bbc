"""What a fleet offers to the training loop, whichever machines and clock are behind it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from paceline.core.codec import MOST_WORKERS
from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.core.messages import Event, Step, Ticket
from paceline.data.sizes import BatchSizes
from paceline.trace.format import MachineWorkers

if TYPE_CHECKING:
    from paceline.learning.contributions import Contributions
    from paceline.learning.workload import Workload


MOST_THREADS = 1024  # of one process: more than any machine has cores


class WorkerGroup(Protocol):
    """The workers of one run, at work."""

    @property
    def about(self) -> Mapping[str, object]:
        """What the first line of a trace says of the fleet and its clock."""
        ...

    def wait(self) -> Sequence[Event]:
        """The next event, or several of one instant; nothing when nothing can happen any more."""
        ...

    def start(self, ticket: Ticket) -> None: ...

    def halt(self, ticket: Ticket) -> None: ...

    def recall(self, ticket: Ticket) -> None: ...

    def wake_at(self, at: float) -> None: ...

    def close(self) -> None:
        """The run is over: let the workers go. What they contributed may still be asked for."""
        ...


@runtime_checkable
class RealTime(Protocol):
    """Workers whose clock runs while one waits, so that waiting can be ended: by the time, or by somebody who asks."""

    @property
    def now(self) -> float: ...

    def end_waiting(self, at: float, asked: Callable[[], bool]) -> None:
        """From now on ``wait`` comes back with nothing at that time, and soon after ``asked()`` is true."""
        ...


@runtime_checkable
class FollowsSteps(Protocol):
    """Workers for whose time it matters what an update is made of."""

    def stepped(self, step: Step, /) -> None:
        """An update was made, before the next work is given out."""
        ...


@runtime_checkable
class Announcing(Protocol):
    """Workers that tell more of a ticket than that it arrived: what it costs, or what the worker itself took."""

    announce: Callable[..., None]


class InlineWorker(Protocol):
    """Does the workers' work in this process, when a recorded run is replayed."""

    def hand_in(self, ticket: Ticket, done: int, /) -> None:
        """Compute so many units of a ticket, as its worker did."""
        ...

    def halt(self, ticket: Ticket, /) -> None: ...

    def join(self, worker: int, /) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class PlacedWorker(InlineWorker, Protocol):
    """An inline worker for workers of several machines."""

    def place(self, machines: MachineWorkers, /) -> None:
        """The workers are on these machines from now on."""
        ...

    def leave_out(self, lost: Mapping[int, Collection[Ticket]], /) -> None:
        """What each update has to do without: it was lost with its machine."""
        ...


@runtime_checkable
class Placed(Protocol):
    """Workers that tell on which machines they are, when a run begins or is resumed."""

    on_placed: Callable[[MachineWorkers], None]


class Fleet(Protocol):
    """The description of a fleet; launched once for every run.

    What its workers have to hand in is ``workload.kind``: gradients, or models of their own.
    """

    @property
    def workers(self) -> int: ...

    def launch(self, workload: "Workload", seed: int, /) -> "tuple[WorkerGroup, Contributions]":
        """Start the workers. Returns them, and what they contribute."""
        ...


@runtime_checkable
class Replayable(Fleet, Protocol):
    """A fleet whose runs can be replayed."""

    def inline(self, workload: "Workload", seed: int, /) -> "tuple[InlineWorker, Contributions]":
        """A worker in this process that does the same arithmetic as those of the fleet, and what it contributes."""
        ...


@runtime_checkable
class Placeable(Replayable, Protocol):
    """A fleet whose workers may have been on several machines, by which their gradients were added up."""

    def inline_on(
        self, placement: MachineWorkers, workload: "Workload", seed: int, /
    ) -> "tuple[PlacedWorker, Contributions]":
        """A worker in this process that does the same arithmetic as those of the machines."""
        ...


@runtime_checkable
class Labelled(Protocol):
    """A fleet that knows where its workers are: one label for each, or one under each of several names; or none."""

    @property
    def labels(self) -> Sequence[str] | Mapping[str, Sequence[str]]: ...


def labels_of(fleet: object) -> Sequence[str]:
    """One label for each worker, all of its own together; nothing if the fleet has none."""
    labels = fleet.labels if isinstance(fleet, Labelled) else ()
    return [", ".join(own) for own in zip(*labels.values(), strict=True)] if isinstance(labels, Mapping) else labels


@runtime_checkable
class Sized(Protocol):
    """A fleet whose workers' durations depend on the sizes of their mini-batches."""

    def sized(self, sizes: BatchSizes) -> "Fleet":
        """The same workers with the durations of mini-batches of these sizes."""
        ...


def medians_at(fleet: Fleet, batch_size: int | Sequence[int] | None) -> tuple[float, ...] | None:
    """What a mini-batch of its size typically takes each worker; None where the fleet does not know."""
    if batch_size is not None and isinstance(fleet, Sized):
        fleet = fleet.sized(BatchSizes.of(batch_size, fleet.workers))
    found: tuple[float, ...] | None = getattr(fleet, "medians", None)
    return found


def check_number(workers: int) -> None:
    """Refuse more workers than any machine could keep account of, before it tries to."""
    if workers > MOST_WORKERS:
        number = f"{workers:,}" if workers < 10**18 else shown(workers)
        raise ConfigError(f"{number} workers are more than can be kept account of: at most {MOST_WORKERS:,}")


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads of torch that no machine has, before somebody tries to start them."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"threads={shown(threads)} is not possible: 1 to {MOST_THREADS:,}, or none to have it chosen")


def check_labels(labels: Sequence[str], workers: int) -> None:
    given = isinstance(labels, Sequence) and not isinstance(labels, str)
    if not given or not all(isinstance(label, str) for label in labels):
        raise ConfigError(f"labels={shown(labels)} are none: give a list of texts, one for each worker")
    if labels and len(labels) != workers:
        raise ConfigError(f"{len(labels)} labels for {workers} workers: give one for each, or none")


class NoInlineWorker:
    """For contributions that are computed when a step asks for them: there is nothing to do before."""

    def hand_in(self, ticket: Ticket, done: int) -> None:
        pass

    def halt(self, ticket: Ticket) -> None:
        pass

    def join(self, worker: int) -> None:
        pass

    def close(self) -> None:
        pass
