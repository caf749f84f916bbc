"""What is called, shown and logged while a run trains: write a ``Callback``, or take one of those that are here."""

from paceline.callbacks.base import Callback, RunInfo, Update, WorkerEvent
from paceline.callbacks.progress import Progress
from paceline.callbacks.tensorboard import TensorBoard
from paceline.storage.metrics import Row

__all__ = ["Callback", "Progress", "Row", "RunInfo", "TensorBoard", "Update", "WorkerEvent"]
