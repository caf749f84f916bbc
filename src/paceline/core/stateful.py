"""What a checkpoint needs of everything that changes while a model is trained."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from paceline.core.errors import ConfigError

State = Mapping[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """Its state can be kept in a checkpoint in the middle of a run, and restored in another process.

    ``state`` returns everything that the rest of the run depends on and that a new object does not know: a
    mapping of numbers, texts, lists, mappings, numpy arrays and torch tensors, however deep, and nothing else. It is
    written at once, so that arrays need not be copied. ``restore`` is called on a new object, made with the same
    arguments; what follows must be the same, bit for bit. It raises ``ValueError`` for a state that cannot be.
    """

    def state(self) -> State: ...

    def restore(self, state: State, /) -> None: ...


def check_stateful(parts: Mapping[str, object]) -> Mapping[str, Stateful]:
    """All parts of a run, if each of them has a state that a checkpoint can hold."""
    found: dict[str, Stateful] = {}
    for name, part in parts.items():
        if not isinstance(part, Stateful):
            raise ConfigError(
                f"this run cannot be kept in a checkpoint: its {name} ({type(part).__name__}) has no state() and "
                f"restore(); see paceline.core.stateful.Stateful"
            )
        found[name] = part
    return found
