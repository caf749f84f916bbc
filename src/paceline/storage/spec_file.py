"""``config.json``: the spec of a run as data, read back and compared field by field.

    {
      "batch_size": 32,
      "format": 2,
      "strategy": {"kind": "LiveCompensation", "quorum": 2, "blocks": 4, "recall": true, "scale": true, "warm_up": 0},
      ...
    }

Format 1 had no number, and the ``repr`` of each value instead of its description.
"""

import ast
import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.files import read_regular
from paceline.storage.description import LONGEST, describe, difference, mapping_of, plain_repr, spell, unless_default

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT = 2
LARGEST = 1 << 24  # bytes of a configuration or a summary
RENAMED = {"Deadline": "SilenceTimeout", "HandedOn": "ReassignShards"}  # classes, since format 1


def spec_text(spec: "DataclassInstance", extra: Mapping[str, Any]) -> str:
    """The content of ``config.json``: a line for each field of the spec, and for what is kept beside it."""
    values = {field.name: describe(getattr(spec, field.name)) for field in fields(spec)}
    lines = sorted({"format": FORMAT, **values, **extra}.items())
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in lines) + "\n}\n"


def read_spec(path: Path) -> dict[str, Any]:
    """What ``config.json`` holds."""
    values = read_object(path)
    if "format" in values and values["format"] != FORMAT:
        from paceline import __version__

        number = str(values["format"])[:20]
        raise ConfigError(f"{path} has format {number}, and Paceline {__version__} reads formats 1 and {FORMAT}")
    return values


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        value = json.loads(read_regular(path, LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"cannot read {path}: it holds no JSON object")
    return value


def spec_difference(saved: Mapping[str, Any], spec: "DataclassInstance", but: Collection[str] = ()) -> str | None:
    """The first field in which a run was begun with something else, as in "strategy.quorum = 2, not 3".

    Fields named in ``but`` are not compared, nor those whose metadata say so. A field that the file lacks had its
    default: the run may be older than the field.
    """
    compare = difference if "format" in saved else _difference_of_repr
    for field in fields(spec):
        if field.name in but or not field.metadata.get("compared", True):
            continue
        name, value = field.name, getattr(spec, field.name)
        found = compare(name, saved[name], value) if name in saved else unless_default(name, field, value)
        if found is not None:
            return found
    return None


def field_of(saved: Mapping[str, Any], name: str, inside: str) -> Any:
    """A field of a value in ``config.json``, such as the ``seconds`` of ``stop``; None if there is none."""
    value = saved.get(name)
    value = parse_repr(value) if isinstance(value, str) else value
    return value.get(inside) if isinstance(value, dict) else None


def spell_field(saved: Mapping[str, Any], name: str) -> str:
    """A value in ``config.json`` as a line of Python."""
    value = saved.get(name)
    return value if isinstance(value, str) else spell(value)


def parse_repr(text: str) -> Any:
    """The description of a value whose ``repr`` this is; None if the text is more than names, fields and literals."""
    try:
        return _description(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _description(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value):
            return describe(value)
        case ast.Name("inf" | "nan" as name):
            return describe(float(name))
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            return describe(-number)
        case ast.UnaryOp(ast.USub(), ast.Name("inf")):
            return describe(float("-inf"))
        case ast.List(items) | ast.Tuple(items):
            return [_description(each) for each in items]
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return mapping_of([(_description(key), _description(each)) for key, each in pairs if key is not None])
        case ast.Call(ast.Name(name), [], keywords):
            named = {each.arg: _description(each.value) for each in keywords if each.arg is not None}
            return {"kind": RENAMED.get(name, name), **named}
    raise ValueError(f"{type(node).__name__} is no part of a description")


def _difference_of_repr(name: str, saved: Any, value: object) -> str | None:
    """The same for format 1, in which a value is a number, nothing, or a text."""
    if not isinstance(saved, str):
        return difference(name, saved, value)
    text = plain_repr(value)
    for old, new in RENAMED.items():
        text = text.replace(f"{new}(", f"{old}(")
    if saved == text:
        return None
    parsed = parse_repr(saved)
    same_class = isinstance(parsed, dict) and parsed.get("kind") == type(value).__name__
    return (
        difference(name, parsed, value) if same_class else f"{name} = {saved[:LONGEST]}, not {spell(describe(value))}"
    )
