"""Whose fault an error is shows in its type."""

from collections.abc import Sequence

from paceline.core.messages import Ticket


class PacelineError(Exception):
    """The root of every error that Paceline raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """The user asked for something that cannot be: the message says what, why not, and the nearest valid choice."""


class CannotWrite(PacelineError, OSError):
    """A file could not be written: a full disk, a place that is read-only. The message says which, and how to go on."""


class IllegalDecision(PacelineError):
    """A strategy asked for something that the rules of the ledger forbid. Nothing was changed."""


class ImpossibleEvent(PacelineError):
    """A fleet reported something that cannot have happened. Nothing was changed."""


class Diverged(PacelineError):
    """A whole round of contributions (``spoiled``) was not finite, or a step. The model keeps its last good weights."""

    def __init__(self, message: str, spoiled: Sequence[Ticket] = ()) -> None:
        super().__init__(message)
        self.spoiled = spoiled


class WorkerFailed(PacelineError):
    """What the user brought raised an error in a worker, whose number and traceback are in the message."""


class TooFewWorkers(PacelineError):
    """Fewer workers are left than the run is to go on with."""
