"""Typed fields: what a user gives, in Python or in a file, against the type that is asked for.

A refusal is one line: where, what, why, the value, and a choice that would do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.core.errors import ConfigError

T = TypeVar("T")
Table = Mapping[str, Any]
PLAIN = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
MOST_SECONDS = 1e12  # that are given for anything: a trace ends at a thousand times as many


# Of a dataclass that was made in Python.


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
            try:
                number = float(given)
            except OverflowError:
                raise TypeError("a number below 1e308") from None
            return given if isinstance(given, int | float) else number
        if kind is str and isinstance(given, str):
            return given
        if kind not in PLAIN and kind is not NoneType and not isinstance(given, type) and _decides(given):
            return given
    if given is None and NoneType in kinds:
        return None
    wanted = " or ".join(PLAIN.get(kind, "a strategy, such as Synchronous()") for kind in kinds if kind is not NoneType)
    raise TypeError(wanted + (", or None" if NoneType in kinds else ""))


def as_path(name: str, given: Any) -> Path:
    """An argument that names a file or a directory; ``ConfigError`` if it is none."""
    try:
        return Path(given)
    except TypeError:
        raise ConfigError(f'{name}={shown(given)} is no path: give one, such as "runs/first"') from None


def shown(given: Any) -> str:
    """A value as a message shows it: short, on one line."""
    text = " ".join(_repr(given).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _repr(given: Any) -> str:
    try:
        return repr(given)
    except ValueError:  # Python spells no whole number of more than 4,300 digits
        return f"{type(given).__name__} of thousands of digits"


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


# Of the tables of a file.


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: the nearest one, and all of them."""
    known = list(known)
    close = get_close_matches(name.lower(), [each.lower() for each in known], n=1, cutoff=0.5)
    meant = next((each for each in known if close and each.lower() == close[0]), None)
    listed = ", ".join(known) or "nothing"
    return f"did you mean {meant!r}? (known: {listed})" if meant else f"choose from {listed}"


def refuse_unknown(table: Table, known: Iterable[str], where: str) -> None:
    """Raise for the first key of a table that means nothing."""
    known = list(known)
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}: {nearest(key, known)}")


def as_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a table of keys and values, not {as_written(value)}")
    return value


def build(kind: type[T], table: Table, where: str) -> T:
    """A dataclass from a table: every key a field, every field without a default there, every value of its type.

    The fields of a dataclass that it holds are keys of the same table.
    """
    known = _leaves(kind)
    refuse_unknown(table, known, where)
    for name, (hint, field) in known.items():
        if name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}: {name!r} is missing: give {name} = {described(hint)}")
    values = {name: read_value(known[name][0], value, f"{where}.{name}") for name, value in table.items()}
    try:
        return _made(kind, values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _leaves(kind: type[Any]) -> dict[str, tuple[Any, Field[Any]]]:
    """The type of each field that can be given; instead of a dataclass that is held, its own fields."""
    found: dict[str, tuple[Any, Field[Any]]] = {}
    for hint, field in _given(kind):
        found |= _leaves(hint) if _is_held(hint) else {field.name: (hint, field)}
    return found


def _made(kind: type[T], values: Table) -> T:
    own = {field.name: _made(hint, values) for hint, field in _given(kind) if _is_held(hint)}
    own |= {field.name: values[field.name] for _, field in _given(kind) if field.name in values}
    return kind(**own)


def _is_held(hint: Any) -> TypeGuard[type[Any]]:
    return isinstance(hint, type) and is_dataclass(hint)


def _given(kind: type[Any]) -> list[tuple[Any, Field[Any]]]:
    hints = get_type_hints(kind)
    return [(hints[field.name], field) for field in fields(kind) if field.init]


def named(kinds: Mapping[str, type[Any]], table: dict[str, Any], key: str, where: str) -> Any:
    """A dataclass from a table in which one key says which it is."""
    rest = dict(table)
    name = rest.pop(key, None)
    if not isinstance(name, str):
        raise ConfigError(f"{where}.{key}: must be one of {', '.join(kinds)}, not {as_written(name)}")
    if name not in kinds:
        raise ConfigError(f"{where}.{key}: unknown name {name!r}: {nearest(name, kinds)}")
    return build(kinds[name], rest, where)


def name_in(kinds: Mapping[str, type[Any]], value: object) -> str:
    return next(name for name, kind in kinds.items() if kind is type(value))


def read_value(kind: Any, value: Any, where: str) -> Any:
    """A value of the wanted type; whole numbers also do where any number is wanted."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return read_value(next(each for each in arguments if each is not NoneType), value, where)
    if origin is Literal:
        if value not in arguments:
            known = nearest(value, map(str, arguments)) if isinstance(value, str) else f"choose {described(kind)}"
            raise ConfigError(f"{where}: {as_written(value)} is unknown: {known}")
        return value
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: must be {described(kind)}, not {as_written(value)}")
        return tuple(read_value(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where}: {as_written(value)} is too large: give a number below 1e308") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: must be {described(kind)}, not {as_written(value)}")
    return value


def described(kind: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return described(next(each for each in arguments if each is not NoneType))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list, each {described(arguments[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def as_written(value: Any) -> str:
    """A value as a message about a file shows it: short, and as TOML spells it."""
    text = "a table" if isinstance(value, dict) else str(value).lower() if isinstance(value, bool) else _repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def table_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that a user could have given, those that are None left out; see ``build``."""
    table: dict[str, Any] = {}
    for name, each in ((field.name, getattr(value, field.name)) for field in fields(value) if field.init):
        table |= table_of(each) if is_dataclass(each) else {} if each is None else {name: each}
    return table


def check_least(value: object, least: int, *names: str) -> None:
    """Raise ``ConfigError`` for the first of these fields of a strategy that is smaller than possible."""
    for name in names:
        if (given := getattr(value, name)) < least:
            kind = type(value).__name__
            raise ConfigError(f"{kind} cannot have {name}={given}: at least {least} (nearest {name}={least})")


def check_most(value: object, most: float, *names: str) -> None:
    """Raise ``ConfigError`` for the first of these fields that is larger than anything a run could count to."""
    for name in names:
        if (given := getattr(value, name)) is not None and given > most:
            raise ConfigError(
                f"{type(value).__name__} cannot have {name}={shown(given)}: larger than a run can count with "
                f"(nearest {name}={most if isinstance(most, int) else format(most, 'g')})"
            )


def check_quorum(quorum: int, workers: int) -> None:
    if not 1 <= quorum <= workers:
        nearest = min(max(quorum, 1), workers)
        raise ConfigError(
            f"a quorum of {quorum} does not fit {workers} workers: choose 1 to {workers} (nearest {nearest})"
        )


def check_blocks(blocks: int, batch_size: int | None) -> None:
    if blocks < 1:
        raise ConfigError(f"a batch cannot have {blocks} blocks: at least 1")
    if batch_size is not None and batch_size > 0 and batch_size % blocks:
        fitting = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - blocks))
        raise ConfigError(
            f"{blocks} blocks do not divide a batch of {batch_size} evenly: nearest {nearest} (blocks={nearest})"
        )
