"""What is called while a run trains, and the values that it is called with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.core.ledger import Ledger
from paceline.core.messages import Ticket
from paceline.storage.metrics import Row

if TYPE_CHECKING:
    from paceline.core.coordinator import Strategy
    from paceline.engine.limits import Stop
    from paceline.engine.result import Run
    from paceline.fleets.base import Fleet


@dataclass(frozen=True)
class RunInfo:
    """A run that begins, or is resumed.

    strategy       who waits for whom, and ``fleet`` who trains
    stop           when the run ends
    config         what it was started with, by name, as numbers and texts: strategy, fleet, workers, optimizer with its
                   settings, learning_rate, batch_size, seed and more, for loggers
    directory      of the run, if it has one
    resumed        whether it continues an earlier run, which made ``updates`` and has the rows of ``history``
    epoch_samples  of an epoch, as ``Stop`` counts them
    ledger         who is here and who computes what; read only, and up to date while the run lasts
    """

    strategy: "Strategy"
    fleet: "Fleet"
    stop: "Stop"
    config: Mapping[str, float | str | None]
    directory: Path | None
    resumed: bool
    updates: int
    history: Sequence[Row]
    epoch_samples: int
    ledger: Ledger = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Update:
    """The model was updated.

    updates    how many updates were made, this one included
    seconds    when, on the clock of the run: virtual time on a simulated fleet
    samples    used so far
    staleness  of the contributions that it is the first to use, on average
    weights    the weight of each contribution that it used; ``workers`` are those who made them
    """

    updates: int
    seconds: float
    samples: int
    staleness: float
    weights: Mapping[Ticket, Fraction] = field(repr=False)

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(sorted({ticket.worker for ticket in self.weights}))


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A worker joined the run, left it, or was late.

    kind     ``joined``; ``left``; or ``late``: its group made an update without its work, which was recalled, stopped
             or thrown away, or which a later update used. One that all others wait for is not late
    worker   its number
    seconds  when, on the clock of the run
    """

    kind: Literal["joined", "left", "late"]
    worker: int
    seconds: float


class Callback:
    """Is told what happens in a run: derive from it, and override what you need. The rest costs nothing.

    Each method may return a text: the run then ends for that reason, which is in ``run.ended``, with its weights and a
    checkpoint kept. One that raises ends the run as well, and ``train`` raises its error again when all is on disk.
    """

    needs: Sequence[str] = ()  # names of metrics that the evaluation must return, else the run is refused

    def on_start(self, run: RunInfo) -> str | None:
        """A run begins, or is resumed."""

    def on_update(self, update: Update) -> str | None:
        """The model was updated."""

    def on_evaluate(self, row: Row) -> str | None:
        """The model was evaluated, at the latest after the last update."""

    def on_checkpoint(self, path: Path) -> str | None:
        """A checkpoint was written to a file: at the interval asked for, and when the run ends."""

    def on_wait(self, seconds: float) -> str | None:
        """Real workers are waited for: called a few times a second with the time on the clock of the run."""

    def on_worker(self, event: WorkerEvent) -> str | None:
        """A worker joined, left, or was late."""

    def on_end(self, run: "Run") -> str | None:
        """The run has ended, also by Ctrl-C; its files are written. ``run`` is what ``train`` returns."""

    def close(self) -> None:
        """Release what is held: called last, whatever happened, even if the run has no result."""
