"""The end of a run when something has happened, which may take fewer updates than usual or many more."""

from collections import Counter

from paceline.callbacks import Callback, Update, WorkerEvent


class Until(Callback):
    """Ends a run when workers have "left", "joined" or been "late", in this order, and so many updates later."""

    def __init__(self, *kinds: str, updates: int = 0) -> None:
        self._kinds = list(kinds)
        self._updates = updates

    def on_worker(self, event: WorkerEvent) -> str | None:
        if self._kinds and event.kind == self._kinds[0]:
            del self._kinds[0]
        return self._ended()

    def on_update(self, update: Update) -> str | None:
        self._updates -= not self._kinds
        return self._ended()

    def _ended(self) -> str | None:
        return None if self._kinds or self._updates > 0 else "seen"


class UntilAll(Callback):
    """Ends a run when each of so many workers has had a part in so many updates."""

    def __init__(self, workers: int, updates: int) -> None:
        self._workers = workers
        self._updates = updates
        self._counts = Counter[int]()

    def on_update(self, update: Update) -> str | None:
        self._counts.update(update.workers)
        enough = sum(count >= self._updates for count in self._counts.values())
        return "seen" if enough == self._workers else None
