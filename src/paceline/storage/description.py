"""Values as data: how a run directory keeps what a run was made of, and tells one value from another.

A dataclass becomes its class and its fields, {"kind": "FastestK", "k": 3, "stop_late": true}, with dataclasses inside
it in the same way. Fields with ``repr=False`` or ``init=False`` are left out: they say nothing about the result.
Numbers, texts, lists and mappings stay what they are. JSON has no infinity, no keys but texts and no functions, so

    {"kind": "float", "value": "inf"}       {"kind": "mapping", "items": [[3, 4.0]]}       {"kind": "set", "items": []}
    {"kind": "function", "name": "make_sgd"}       {"kind": "partial", "function": ..., "arguments": [...], ...}

Anything else, such as a strategy of a user's own that is no dataclass, is known by its class and its ``repr``, without
addresses in memory: {"kind": "MyStrategy", "text": "MyStrategy(3)"}. One with the ``repr`` that Python gives to every
object is known by its class alone: make it a dataclass, and its fields are compared too.

A wrapper on which no result depends, such as a fleet whose workers stay between runs, has an attribute
``described_as``: the value that it is described by.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

LONGEST = 300  # characters of a value in a message


def describe(value: object) -> Any:
    """A value as JSON can hold it."""
    value = getattr(value, "described_as", value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else {"kind": "float", "value": repr(number)}
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in _compared(value)}}
    if isinstance(value, Mapping):
        return mapping_of([(describe(key), describe(each)) for key, each in value.items()])
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [describe(each) for each in value]
    if isinstance(value, Set):
        return {"kind": "set", "items": sorted(map(describe, value), key=json.dumps)}
    if isinstance(value, partial):
        arguments = {"arguments": describe(value.args), "keywords": describe(value.keywords)}
        return {"kind": "partial", "function": describe(value.func), **arguments}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"kind": "function", "name": value.__qualname__}
    if type(value).__repr__ is object.__repr__:
        return {"kind": type(value).__name__}
    return {"kind": type(value).__name__, "text": plain_repr(value)}


def spell(description: Any) -> str:
    """A description as a line of Python, cut if it is long."""
    try:
        text = " ".join(_spell(description).split())
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def difference(name: str, saved: Any, value: object) -> str | None:
    """The first place where a value is another one than its description says, as in "strategy.quorum = 2, not 3".

    A field that the description lacks had its default: the description may be older than the field.
    """
    value = getattr(value, "described_as", value)
    if is_dataclass(value) and isinstance(saved, dict) and saved.get("kind") == type(value).__name__:
        return _difference_of_fields(name, saved, value)
    now = describe(value)
    if isinstance(value, Sequence) and isinstance(now, list) and isinstance(saved, list) and len(now) == len(saved):
        pairs = enumerate(zip(saved, value, strict=True))
        return next(filter(None, (difference(f"{name}[{i}]", old, new) for i, (old, new) in pairs)), None)
    if isinstance(value, Mapping) and (items := _items(saved)) is not None and [*items] == [*(_items(now) or ())]:
        inside = ((key, each) for key, each in value.items())
        found = (difference(f"{name}[{key!r}]", items[_key(describe(key))], each) for key, each in inside)
        return next(filter(None, found), None)
    same = saved == now and isinstance(saved, bool) == isinstance(now, bool)
    return None if same else f"{name} = {spell(saved)}, not {spell(now)}"


def plain_repr(value: object) -> str:
    """The ``repr`` of a value without addresses in memory, which say nothing about it."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _compared(value: Any) -> list[Field[Any]]:
    """The fields by which a dataclass is known."""
    return [field for field in fields(value) if field.init and field.repr]


def _difference_of_fields(name: str, saved: Mapping[str, Any], value: object) -> str | None:
    compared = _compared(value)
    for field in compared:
        inside, here = f"{name}.{field.name}", getattr(value, field.name)
        found = (
            difference(inside, saved[field.name], here) if field.name in saved else unless_default(inside, field, here)
        )
        if found is not None:
            return found
    unread = saved.keys() - {"kind", *(field.name for field in compared)}
    return f"{name}.{min(unread)}, which this version of Paceline does not know" if unread else None


def unless_default(name: str, field: Field[Any], value: object) -> str | None:
    """How a value differs from the default of its field, which is what a run had that was begun before the field."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if default is MISSING:
        return f"{name} unknown, not {spell(describe(value))}"
    return difference(name, describe(default), value)


def mapping_of(items: Sequence[tuple[Any, Any]]) -> Any:
    """The description of a mapping with these descriptions of its keys and values."""
    if all(isinstance(key, str) and key != "kind" for key, _ in items):
        return dict(items)
    return {"kind": "mapping", "items": sorted(map(list, items), key=lambda item: _key(item[0]))}


def _items(description: Any) -> dict[str, Any] | None:
    """The items of a described mapping, by their keys as JSON, in order."""
    if not isinstance(description, dict):
        return None
    if "kind" not in description:
        return {_key(key): description[key] for key in sorted(description)}
    try:
        return {_key(key): each for key, each in description["items"]} if description["kind"] == "mapping" else None
    except (LookupError, TypeError, ValueError):
        return None


def _key(description: Any) -> str:
    return json.dumps(description, sort_keys=True)


def _spell(description: Any) -> str:
    if isinstance(description, list):
        return f"[{', '.join(map(_spell, description))}]"
    if not isinstance(description, dict):
        return repr(description)
    kind = description.get("kind")
    rest = {key: each for key, each in description.items() if key != "kind"}
    if kind == "float" or "text" in rest:
        return str(rest.get("value", rest.get("text")))
    if kind == "function":
        return str(rest.get("name"))
    if kind is None or kind in ("mapping", "set"):
        items = rest.get("items") if kind else [[key, each] for key, each in rest.items()]
        pairs = items if isinstance(items, list) else []
        both = [isinstance(pair, list) and len(pair) == 2 and kind != "set" for pair in pairs]
        spelled = (f"{_spell(p[0])}: {_spell(p[1])}" if two else _spell(p) for p, two in zip(pairs, both, strict=True))
        return f"{{{', '.join(spelled)}}}"
    return f"{kind}({', '.join(f'{key}={_spell(each)}' for key, each in rest.items())})"
