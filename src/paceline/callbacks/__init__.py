"""What is called, shown and logged while a run trains: write a ``Callback``, or take one of those that are here."""

from paceline.callbacks.base import Callback, RunInfo, Update, WorkerEvent
from paceline.callbacks.early_stopping import EarlyStopping
from paceline.callbacks.files import CSVLogger
from paceline.callbacks.progress import Progress
from paceline.callbacks.tensorboard import TensorBoard
from paceline.callbacks.trackers import MLflowLogger, WandbLogger
from paceline.storage.metrics import Row

__all__ = [
    "CSVLogger", "Callback", "EarlyStopping", "MLflowLogger", "Progress", "Row", "RunInfo", "TensorBoard", "Update",
    "WandbLogger", "WorkerEvent",
]  # fmt: skip
