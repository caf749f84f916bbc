"""Lightning's ``Trainer``: record its steps.

    Trainer(..., callbacks=[paceline.integrations.lightning.RecorderCallback("runs/mine")])

Works with the packages ``lightning`` and ``pytorch_lightning``, whichever is there. Needs
``pip install 'paceline[lightning]'``.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.core.errors import ConfigError
from paceline.recording.recorder import Recorder

__all__ = ["RecorderCallback"]
PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same framework under two names


def _frameworks() -> list[Any]:
    """Lightning under each name by which it was imported; else under the first that is installed."""
    if imported := [module for name in PACKAGES if (module := sys.modules.get(name)) is not None]:
        return imported
    for name in PACKAGES:
        try:
            return [import_module(name)]
        except ImportError:
            continue
    raise ConfigError("paceline.integrations.lightning needs Lightning: pip install 'paceline[lightning]'")


class RecorderCallback(*[framework.Callback for framework in _frameworks()]):  # type: ignore[misc]
    """Records the steps of a ``Trainer`` as ``paceline.record`` does; each process is a worker.

    A step is a mini-batch. With ``strategy="ddp"`` computing is told from waiting, and mini-batches whose gradients are
    accumulated are counted to the update that they are a part of.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = directory
        self._recorder: Recorder | None = None
        self._step: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the file of this process."""
        recorder = self._recorder = Recorder(self.directory, trainer.global_rank, trainer.world_size).open()
        if isinstance(model := trainer.strategy.model, DistributedDataParallel):
            recorder.watch(model)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step."""
        if self._recorder is not None:
            self._step = self._recorder.step(_samples(batch))
            self._step.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the file."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the file: what was recorded until then is kept."""
        self.on_train_end(trainer, pl_module)


def _samples(batch: Any) -> int | None:
    """How many samples a mini-batch has: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else None
    inside = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, Sequence) else ()
    if isinstance(batch, str | bytes):
        return None
    return next((size for part in inside if (size := _samples(part)) is not None), None)
