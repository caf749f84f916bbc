"""The weights that a run directory holds, as modules: alone, or in a module of the trained architecture."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.files import is_there
from paceline.storage.checkpoint import read_checkpoint
from paceline.storage.saved_models import GLOBAL, LOCAL, LOSS, load, read_tensors


class Weights(nn.Module):
    """Weights and buffers by their names, without the code that computes with them.

    ``module.load_state_dict(weights.state_dict())`` puts them into a module of the trained architecture.
    """

    def __init__(self, tensors: Mapping[str, Tensor], why: str) -> None:
        super().__init__()
        self._tensors = dict(tensors)
        self._why = why

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination |= {f"{prefix}{name}": tensor.clone() for name, tensor in self._tensors.items()}

    def forward(self, *inputs: Any) -> NoReturn:
        raise ConfigError(self._why)

    def extra_repr(self) -> str:
        return f"{len(self._tensors)} tensors, {sum(each.numel() for each in self._tensors.values()):,} numbers"


def final_weights(directory: Path, model: nn.Module | None) -> nn.Module:
    """The final model of a run, or that of its last checkpoint if it did not finish."""
    if is_there(directory / GLOBAL):
        return _loaded(directory, "global", model)
    try:
        server = read_checkpoint(directory / "checkpoint.safetensors").get("server")
    except ConfigError as error:
        return Weights({}, f"{directory} has no weights: the run did not finish, and {error}")
    state = server.get("model") if isinstance(server, dict) else None
    tensors = {name: each for name, each in (state or {}).items() if isinstance(each, Tensor)}
    if not tensors:
        return Weights({}, f"{directory} has no weights: the run did not finish, and its workers train models")
    if model is None:
        return Weights(tensors, _without_code(directory))
    filled = copy.deepcopy(model).eval()
    wanted = filled.state_dict().keys()  # a checkpoint has buffers that are not persistent too
    try:
        filled.load_state_dict({name: each for name, each in tensors.items() if name in wanted})
    except RuntimeError as error:
        raise ConfigError(f"the weights in {directory} do not fit the model: {error}") from None
    return filled


def local_weights(directory: Path, model: nn.Module | None) -> nn.Module | None:
    """The best local model, where workers trained models of their own."""
    return _loaded(directory, "local", model) if is_there(directory / LOCAL) else None


def loss_weights(directory: Path) -> nn.Module | None:
    """The parameters of a loss that was trained with the model."""
    if not is_there(directory / LOSS):
        return None
    return Weights(read_tensors(directory / LOSS), f"{directory / LOSS} holds the parameters of the loss, not its code")


def _loaded(directory: Path, which: Literal["global", "local"], model: nn.Module | None) -> nn.Module:
    if model is not None:
        return load(directory, which, model)
    return Weights(read_tensors(directory / (GLOBAL if which == "global" else LOCAL)), _without_code(directory))


def _without_code(directory: Path) -> str:
    return f"{directory} holds weights, not the code of the model: give load_run(directory, model=) a module they fit"
