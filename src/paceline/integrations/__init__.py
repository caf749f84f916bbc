"""Other training frameworks, one module each: ``huggingface`` and ``lightning``, loaded when they are first used."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.integrations import huggingface as huggingface
    from paceline.integrations import lightning as lightning

__all__ = ["huggingface", "lightning"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
