"""Final models of a run as callable modules: the global one, an ensemble included, and the best local one.

model.safetensors   weights and buffers of the global model; of an ensemble those of every member, and its coefficients
local.safetensors   of the local model with the smallest training loss, where workers train models of their own
architecture.pt2    what a model computes (``torch.export``), so that it can be loaded without the code that defined it

A safetensors file is numbers and names. An architecture is as good as a program: when torch reads one, it unpickles
parts of it and evaluates texts of it as Python. So it is read only for who says that its maker is trusted.
"""

import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import as_path
from paceline.files import check_regular, is_there, write_atomically
from paceline.storage.spec_file import read_spec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.learning.workload import Workload

ARCHITECTURE, GLOBAL, LOCAL, LOSS = "architecture.pt2", "model.safetensors", "local.safetensors", "loss.safetensors"
# what torch makes of a header that no run has written, such as one of shapes that no tensor has
UNREADABLE = (MemoryError, OSError, OverflowError, RuntimeError, TypeError, ValueError)
log = logging.getLogger("paceline")


def save_local(directory: Path, local: "nn.Module", workload: "Workload") -> None:
    """Save the best local model, and what its weights are the weights of."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in local.state_dict().items()}
    write_atomically(directory / LOCAL, save(tensors))
    _save_architecture(directory, local, workload)


def _save_architecture(directory: Path, model: "nn.Module", workload: "Workload") -> None:
    import io

    import numpy as np
    import torch

    from paceline.learning.loss import SampleLoss

    buffer = io.BytesIO()
    try:
        if not isinstance(workload.loss, SampleLoss):
            raise ConfigError("only step knows what it is called with")
        inputs, _ = workload.unaugmented.fetch(np.arange(min(2, len(workload.unaugmented))))
        alone = copy.deepcopy(model).cpu().eval()
        program = torch.export.export(alone, (inputs.cpu(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, buffer)
    except Exception as error:  # whatever torch cannot export: the weights are saved all the same
        log.warning("the model's architecture cannot be saved (%s): load(directory, model=...) needs it", error)
        return
    write_atomically(directory / ARCHITECTURE, buffer.getvalue())


def load(
    directory: Path | str,
    which: Literal["global", "local"] = "global",
    model: "nn.Module | None" = None,
    *,
    trust: bool = False,
) -> "nn.Module":
    """The final model of a run, in eval mode: what ``run.model`` was (``global``), or ``run.local``.

    model  a module of the trained architecture, whose values do not matter. Weights are all that is then read, and
           nothing in the directory can run code
    trust  read the architecture that the run saved, where no ``model`` is given. Whoever made the directory can then
           run code of theirs on this machine: say so only of your own runs, or of somebody whose programs you would run
    """
    directory = as_path("directory", directory)
    if (directory / "config.json").is_file():
        read_spec(directory / "config.json")  # one of a newer format may hold something else
    tensors = _weights(directory, which)
    if model is None:
        _check_architecture(directory, trust=trust)
    try:
        members = {int(name.split(".")[1]) for name in tensors if name.startswith("members.")}
    except ValueError:
        members = set()
    if "weights" in tensors and members:
        from paceline.learning.models.ensemble import Ensemble

        if tensors["weights"].shape != (len(members),):
            raise ConfigError(
                f"{directory} holds {len(members)} models of an ensemble, and coefficients of shape "
                f"{list(tensors['weights'].shape)}: Paceline did not save them"
            )
        each = [_filled(directory, model, _member(tensors, number)) for number in sorted(members)]
        return Ensemble(each, tensors["weights"]).eval()
    return _filled(directory, model, tensors)


def _weights(directory: Path, which: str) -> "dict[str, Tensor]":
    file = directory / (GLOBAL if which == "global" else LOCAL)
    check_regular(file)
    if not file.is_file():
        raise ConfigError(
            f"no {which} model in {directory}: {file.name} is missing; give the directory of a finished run"
        )
    return read_tensors(file)


def read_tensors(file: Path) -> "dict[str, Tensor]":
    """The tensors in a safetensors file, by their names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_regular(file)
    try:
        return load_file(file)
    except (SafetensorError, *UNREADABLE) as error:
        line = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file} is not a model that Paceline saved: {line or type(error).__name__}") from None


def _check_architecture(directory: Path, *, trust: bool) -> None:
    file = directory / ARCHITECTURE
    if not is_there(file):
        raise ConfigError(f"{directory} holds weights only: give load(directory, model=) a module that they fit")
    check_regular(file)
    if not trust:
        raise ConfigError(
            f"{file} is not read: whoever made it could run code of theirs on this machine. Give load(directory, "
            "model=) a module that the weights fit, and only these are read; or, if you would run a program by whoever "
            "made the directory, load(directory, trust=True)"
        )


def _member(tensors: "dict[str, Tensor]", number: int) -> "dict[str, Tensor]":
    prefix = f"members.{number}."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _filled(directory: Path, model: "nn.Module | None", tensors: "dict[str, Tensor]") -> "nn.Module":
    """A module of the run's architecture with these values; it or the one that was trained may be a compiled one."""
    import torch

    from paceline.learning.model_state import COMPILED

    if model is not None:
        filled = copy.deepcopy(model).eval()
    else:
        try:
            filled = _always_in_eval_mode(torch.export.load(directory / ARCHITECTURE).module())
        except Exception as error:  # a foreign or broken file can fail anywhere
            raise ConfigError(f"{directory / ARCHITECTURE} cannot be read: {error}") from None
    names = {name.replace(COMPILED, ""): name for name in filled.state_dict()}
    try:
        filled.load_state_dict(
            {names.get(plain := name.replace(COMPILED, ""), plain): each for name, each in tensors.items()}
        )
    except RuntimeError as error:
        raise ConfigError(f"the weights in {directory} do not fit the model: {error}") from None
    return filled


def _always_in_eval_mode(exported: "nn.Module") -> "nn.Module":
    """What was exported computes as in eval mode; torch refuses to be asked for it, which hinders whoever just asks."""

    def train(mode: bool = True) -> "nn.Module":
        if mode:
            raise ConfigError(
                "a loaded model can be called, not trained: give load(directory, model=) a module to train"
            )
        return exported

    exported.train = train  # type: ignore[method-assign]
    exported.eval = lambda: exported  # type: ignore[method-assign]
    exported.training = False
    return exported
