"""Packages that only some callbacks need."""

from importlib import import_module
from typing import Any

from paceline.core.errors import ConfigError


def imported(module: str, extra: str, what: str) -> Any:
    """A module of a package that Paceline does not install by itself; one line with the extra if it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"{what} needs the package {extra}: pip install 'paceline[{extra}]'") from None
