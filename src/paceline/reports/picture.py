"""A timeline gathered for drawing: exact for a window of time from the start, in sums for the whole run."""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from paceline.trace.history import History
from paceline.trace.reading import Trace
from paceline.trace.timeline import KINDS, Mark, Recalled, Span, TimelineReader, Updated


@dataclass
class WorkerSums:
    """One worker over the whole run, in seconds."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    waited_for: int = 0  # updates of several workers for which it came last
    held_up: float = 0.0  # how much earlier these would have been at the arrival of the last but one
    thrown_away: int = 0  # pieces of work that were dropped, whole or in part


@dataclass
class Picture:
    """What happened up to ``until`` (infinite: everything), and what the whole run adds up to."""

    end: float = 0.0
    until: float = math.inf
    spans: list[Span] = field(default_factory=list)
    updates: list[Updated] = field(default_factory=list)
    recalls: list[Recalled] = field(default_factory=list)
    workers: dict[int, WorkerSums] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)

    @property
    def marks(self) -> int:
        return len(self.spans) + len(self.updates) + len(self.recalls)

    def shorten(self) -> None:
        """Halve the window, and forget what is no longer in it."""
        self.until = max([*(span.start for span in self.spans), *(update.at for update in self.updates)]) / 2
        self.spans = [span for span in self.spans if span.start < self.until]
        self.updates = [update for update in self.updates if update.at < self.until]
        self.recalls = [recall for recall in self.recalls if recall.at < self.until]


def gather(trace: Trace, *, limit: int, workers: Collection[int] | None = None, end: float = 0.0) -> Picture:
    """Go through a trace once. Of some ``workers``, or of all, keep at most ``limit`` marks: so long is the window."""
    reader = PictureReader(limit, workers)
    return reader.picture(trace.follow(reader), end)


class PictureReader(TimelineReader):
    """Gathers a timeline while a trace is read."""

    def __init__(self, limit: int, workers: Collection[int] | None = None) -> None:
        super().__init__(self._add_mark)
        self._picture, self._limit, self._chosen = Picture(), limit, workers

    def picture(self, history: History, end: float) -> Picture:
        """What was gathered at the end of a history that this reader observed; the run was stopped at ``end``."""
        self.end(history, end)
        picture = self._picture
        picture.spans = [span._replace(end=min(span.end, picture.until)) for span in picture.spans]
        return picture

    def _add_mark(self, mark: Mark) -> None:
        picture, chosen = self._picture, self._chosen
        kept = picture.until == math.inf or not isinstance(mark, Span)  # else what is beyond the window costs little
        if isinstance(mark, Span):
            _sum_up(picture, mark)
            picture.end = max(picture.end, mark.end)
            if mark.start < picture.until and (chosen is None or mark.worker in chosen):
                picture.spans.append(mark)
                kept = True
        elif isinstance(mark, Updated):
            picture.end = max(picture.end, mark.at)
            for staleness in mark.staleness:
                picture.staleness[staleness] += 1
            if mark.waited_for is not None:
                sums = picture.workers.setdefault(mark.waited_for, WorkerSums())
                sums.waited_for += 1
                sums.held_up += mark.held_up
            if mark.at < picture.until:
                picture.updates.append(mark)
        elif mark.at < picture.until and (chosen is None or mark.worker in chosen):
            picture.recalls.append(mark)
        while kept and picture.marks > self._limit and picture.until > 0:
            picture.shorten()


def _sum_up(picture: Picture, span: Span) -> None:
    if (sums := picture.workers.get(span.worker)) is None:
        sums = picture.workers[span.worker] = WorkerSums()
    sums.seconds[span.kind] += span.end - span.start
    if span.kind == "dropped":
        sums.thrown_away += 1
