"""How old the gradients were that the model was moved along."""

from collections.abc import Collection, Sequence

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.messages import Step, Ticket
from paceline.core.stateful import State


class Staleness:
    """How many updates were made between a contribution's download of the model and its first use.

    Of an update: the mean over the contributions that it uses for the first time. Of a run: the mean over its updates.
    """

    def __init__(self) -> None:
        self.updates = 0
        self.total = 0.0
        self.maximum = 0
        self._kept: set[Ticket] = set()
        self._row_updates, self._row_total = 0, 0.0

    def count(self, version: int, step: Step, dropped: Collection[Ticket] = ()) -> list[int]:
        """Count an update of a model version; the staleness of each contribution that it is the first to use.

        ``dropped`` are the contributions that were thrown away since the update before: nothing of them is remembered.
        """
        kept = self._kept
        ages = [version - ticket.version for ticket in step.weights if ticket not in kept]
        if step.keep or kept:
            kept.difference_update(step.weights, dropped)  # in place: copies would take longer
            kept.update(step.keep)
        self.add(ages)
        return ages

    def add(self, ages: Sequence[int]) -> None:
        """Count an update, given the staleness of each contribution that it is the first to use."""
        if ages:
            self.total += sum(ages) / len(ages)
            self.maximum = max(self.maximum, *ages)
        self.updates += 1

    def add_one(self, age: int) -> None:
        """Count an update that uses one contribution, for the first time."""
        self.total += age
        self.updates += 1
        self.maximum = max(self.maximum, age)

    def state(self) -> State:
        totals = [self.updates, self.maximum, self.total, self._row_updates, self._row_total]
        return {"totals": totals, "kept": [plain_ticket(ticket) for ticket in sorted(self._kept)]}

    def restore(self, state: State) -> None:
        updates, maximum, total, row_updates, row_total = state["totals"]
        self.updates, self.maximum, self._row_updates = map(whole, (updates, maximum, row_updates))
        self.total, self._row_total = map(real, (total, row_total))
        self._kept = set(map(ticket_from, state["kept"]))

    @property
    def mean(self) -> float:
        return self.total / self.updates if self.updates else 0.0

    def mean_since_last_row(self) -> float:
        updates, total = self.updates - self._row_updates, self.total - self._row_total
        self._row_updates, self._row_total = self.updates, self.total
        return total / updates if updates else 0.0
