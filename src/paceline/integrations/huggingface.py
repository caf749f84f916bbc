"""Hugging Face: record the steps of its ``Trainer``, or train one of its models with Paceline.

    Trainer(..., callbacks=[paceline.integrations.huggingface.RecorderCallback("runs/mine")])

    task = paceline.integrations.huggingface.task_from(model, train=dataset, test=dataset, collate=collator)

Needs ``pip install 'paceline[huggingface]'``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.data.samples import Collate, Data
from paceline.learning.step import Metrics
from paceline.learning.task import Task
from paceline.recording.ddp import watch_parameters
from paceline.recording.recorder import Recorder

try:
    from transformers import PreTrainedModel, TrainerCallback, default_data_collator
except ImportError:
    raise ConfigError(
        "paceline.integrations.huggingface needs transformers: pip install 'paceline[huggingface]'"
    ) from None

__all__ = ["RecorderCallback", "task_from"]


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


def task_from(
    model: Any,
    train: Data,
    test: Data | None = None,
    *,
    collate: Collate | None = None,
    metrics: Metrics | None = None,
) -> Task:
    """A task that trains a Hugging Face model, which computes its loss itself from ``labels`` in the batch.

    train, test  data sets of what the collator takes: dictionaries with ``input_ids`` and ``labels``, or the like
    collate      a data collator; ``default_data_collator`` if it is not given
    metrics      as those of ``paceline.Task``

    Loss functions of a ``Trainer`` (``compute_loss_func``, label smoothing) are not known here. A loss is the mean over
    a batch and counts for as many samples as it has, also where they have different numbers of tokens.
    """
    if not isinstance(model, PreTrainedModel):
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ConfigError(f"a model of Hugging Face (PreTrainedModel) is needed, not {given}: use paceline.Task(step=)")
    collator = default_data_collator if collate is None else collate
    return Task(model, train=train, test=test, step=_loss, collate=_Collate(collator), metrics=metrics)


class _Collate:
    """Makes a plain dictionary of what a collator returns."""

    def __init__(self, collator: Collate) -> None:
        self._collator = collator

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        batch = self._collator(samples)
        if not isinstance(batch, Mapping):
            try:
                batch = dict(batch)
            except (TypeError, ValueError):
                raise ConfigError(f"the collator returned a {type(batch).__name__}: a dictionary is needed") from None
        return dict(batch)


def _loss(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    loss = getattr(outputs := model(**batch), "loss", None)
    if loss is None and isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    if loss is None:
        raise ConfigError(
            f"{type(model).__name__} returned no loss: the batch needs labels, and has {', '.join(map(str, batch))}"
        )
    return {"loss": loss}
