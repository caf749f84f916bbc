"""Whose fault an error is shows in its type."""


class PacelineError(Exception):
    """The root of every error that Paceline raises on purpose."""


class ConfigError(PacelineError, ValueError):
    """The user asked for something that cannot be: the message says what, why not, and the nearest valid choice."""


class IllegalDecision(PacelineError):
    """A strategy asked for something that the rules of the ledger forbid. Nothing was changed."""


class ImpossibleEvent(PacelineError):
    """A fleet reported something that cannot have happened. Nothing was changed."""


class Diverged(PacelineError):
    """A whole round of contributions was not finite. The model keeps its last good weights."""
