"""Before a run: how fast, how stale, and up to which step it converges."""

from paceline.predict.answer import Prediction, Wishes, predict
from paceline.predict.descent import Descent

__all__ = ["Descent", "Prediction", "Wishes", "predict"]
