"""What a user gives, against the type that is asked for: one line says which value is of another kind."""

from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.core.errors import ConfigError

PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def check_fields(value: object) -> None:
    """Raise ``ConfigError`` for the first field of a frozen dataclass that is not of its type.

    Numbers, truth values, texts, and what has to ``decide`` (a strategy) are looked at; the rest is for the dataclass
    itself. Numbers of numpy become those of Python.
    """
    kind: Any = type(value)
    for name, kinds in _kinds(kind):
        given = getattr(value, name)
        if type(given) in kinds:
            continue
        try:
            object.__setattr__(value, name, as_kind(given, kinds))
        except TypeError as error:
            raise ConfigError(f"{type(value).__name__} cannot have {name}={shown(given)}: give {error}") from None


def as_kind(given: Any, kinds: tuple[type, ...]) -> Any:
    """A value as one of some kinds; ``TypeError`` with what is wanted, in words, if it is none of them."""
    truth = isinstance(given, bool) or type(given).__name__ in ("bool", "bool_")
    for kind in kinds:
        if kind is bool and truth:
            return bool(given)
        if kind is int and isinstance(given, Integral) and not truth:
            return int(given)
        if kind is float and isinstance(given, Real) and not truth:
            return given if isinstance(given, int | float) else float(given)
        if kind is str and isinstance(given, str):
            return given
        if kind not in PLAIN and kind is not NoneType and not isinstance(given, type) and _decides(given):
            return given
    if given is None and NoneType in kinds:
        return None
    wanted = " or ".join(PLAIN.get(kind, "a strategy, such as Synchronous()") for kind in kinds if kind is not NoneType)
    raise TypeError(wanted + (", or None" if NoneType in kinds else ""))


def shown(given: Any) -> str:
    """A value as a message shows it: short, on one line."""
    text = " ".join(repr(given).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _decides(given: object) -> bool:
    return callable(getattr(given, "decide", None))


@cache
def _kinds(kind: Any) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """The fields that can be looked at, and the types that each may have."""
    hints = get_type_hints(kind)
    found = []
    for field in fields(kind):
        hint = hints[field.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if field.init and all(each in PLAIN or each is NoneType or hasattr(each, "decide") for each in kinds):
            found.append((field.name, kinds))
    return tuple(found)
