"""Hugging Face's ``Trainer``: record its steps.

    Trainer(..., callbacks=[paceline.integrations.huggingface.RecorderCallback("runs/mine")])

Needs ``pip install 'paceline[huggingface]'``.
"""

from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.recording.ddp import watch_parameters
from paceline.recording.recorder import Recorder

try:
    from transformers import TrainerCallback
except ImportError:
    raise ConfigError(
        "paceline.integrations.huggingface needs transformers: pip install 'paceline[huggingface]'"
    ) from None

__all__ = ["RecorderCallback"]


class RecorderCallback(TrainerCallback):  # type: ignore[misc]
    """Records the steps of a ``Trainer`` as ``paceline.record`` does; each process is a worker.

    A step is an update, with all its accumulated mini-batches. Under DDP computing is told from waiting.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = directory
        self._recorder: Recorder | None = None
        self._step: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Open the file of this process."""
        recorder = self._recorder = Recorder(self.directory, args.process_index, args.world_size).open()
        if args.world_size > 1 and model is not None and not args.fsdp and args.deepspeed is None:
            recorder.on_close(watch_parameters(model.parameters(), recorder))

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin an update."""
        if self._recorder is not None:
            self._step = self._recorder.step(args.train_batch_size * args.gradient_accumulation_steps)
            self._step.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End an update."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Close the file."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
