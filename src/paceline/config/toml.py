"""TOML as tables, lists, texts and numbers, and back."""

import json
import math
import tomllib
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError


def parse_tables(text: str, where: str) -> dict[str, Any]:
    """The tables of a text; ``where`` names it in messages."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is not read: its tables or lists are nested too deeply") from None


def to_toml(table: Mapping[str, Any]) -> str:
    """A tree of tables, lists, texts and numbers as TOML. Lists of tables become ``[[name]]`` sections."""
    return "\n".join(_section(table, ())).strip() + "\n"


def _section(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines, later = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            later += ["", f"[{_dotted((*path, key))}]", *_section(value, (*path, key))]
        elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
            for each in value:
                later += ["", f"[[{_dotted((*path, key))}]]", *_section(each, (*path, key))]
        else:
            lines.append(f"{_dotted((key,))} = {_scalar(value)}")
    return lines + later


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(
        key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key) for key in path
    )


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise TypeError(f"no TOML for {value!r}")
