"""Curves for TensorBoard, on request."""

from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.storage.metrics import Row


class TensorBoard:
    """Writes the metrics of each evaluation by updates; those ``after`` an update replace what is there already."""

    def __init__(self, directory: Path, after: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            needs = "tensorboard=True needs the package tensorboard: pip install 'paceline[tensorboard]'"
            raise ConfigError(needs) from None
        self._writer = SummaryWriter(str(directory), purge_step=None if after is None else after + 1)

    def on_evaluation(self, row: Row) -> None:
        for name in ("loss", "accuracy", "training_loss", "staleness", "samples", "seconds"):
            self._writer.add_scalar(name, getattr(row, name), row.updates)

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()
