"""What is called, shown and logged while a run trains: write a ``Callback``, or take the one of TensorBoard."""

from paceline.callbacks.base import Callback
from paceline.callbacks.tensorboard import TensorBoard
from paceline.storage.metrics import Row

__all__ = ["Callback", "Row", "TensorBoard"]
