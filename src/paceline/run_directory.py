"""What a run leaves on disk.

config.json        what was asked for, everything filled in
trace.jsonl        events and instructions, as they happen
metrics.jsonl      a line for each judgement of the model, as they happen
model.safetensors  the weights and buffers at the end; pruning.safetensors, which samples were left out, if any could be
summary.json       how it ended; the last file to be written
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.files import write_atomically
from paceline.run import Row

if TYPE_CHECKING:
    from torch import nn


class RunDirectory:
    """The directory of one run."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} is not empty: choose another directory for the run, or remove it first")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        write_atomically(path / "config.json", _json(config))
        self._metrics = (path / "metrics.jsonl").open("w", encoding="utf-8", buffering=1)

    @property
    def trace(self) -> Path:
        return self.path / "trace.jsonl"

    def row(self, row: Row) -> None:
        values = {name: None if math.isnan(value) else value for name, value in row._asdict().items()}
        self._metrics.write(json.dumps(values) + "\n")

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *exception: object) -> None:
        self._metrics.close()

    def finish(self, model: "nn.Module", summary: Mapping[str, Any]) -> None:
        from safetensors.torch import save

        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
        write_atomically(self.path / "model.safetensors", save(tensors))
        write_atomically(self.path / "summary.json", _json(summary))


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
