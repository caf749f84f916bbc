"""Whose fault an error is shows in its type."""

from collections.abc import Sequence

from paceline.core.messages import Ticket


class PacelineError(Exception):
    """The root of every error that Paceline raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """The user asked for something that cannot be: the message says what, why not, and the nearest valid choice."""


class CannotWrite(PacelineError, OSError):
    """A file could not be written: the disk is full or read-only. The message names it and says how to continue."""


class IllegalDecision(PacelineError):
    """A strategy asked for something that the rules of the ledger forbid. Nothing was changed."""


class ImpossibleEvent(PacelineError):
    """A fleet reported something that cannot have happened. Nothing was changed."""


class Diverged(PacelineError):
    """All contributions of a round (``non_finite``), or an update, are not finite. The last good weights are kept."""

    def __init__(self, message: str, non_finite: Sequence[Ticket] = ()) -> None:
        super().__init__(message)
        self.non_finite = non_finite


class WorkerFailed(PacelineError):
    """What the user brought raised an error in a worker, whose number and traceback are in the message."""


class TooFewWorkers(PacelineError):
    """Fewer workers are left than ``min_workers``, so the run ends."""
