"""What a strategy may read: who is here, who computes what, and what was handed in.

The coordinator keeps every reading up to date (``state.LedgerState``), so that a rule never has to loop over the fleet:
reading costs the same with 16 workers as with 10,000.
"""

from collections.abc import Collection, Mapping, Reversible, Sequence
from typing import Protocol, TypeVar

from paceline.core.messages import Groups, Ticket

T_co = TypeVar("T_co", covariant=True)


class Ordered(Collection[T_co], Reversible[T_co], Protocol[T_co]):
    """A collection in an order that can be read from both ends."""


class Ledger(Protocol):
    """The state of a training run, or of one part of it, as its strategy sees it. Read only.

    A part offers its ``round``, never the global version, so that nothing it sees changes behind its back.
    """

    @property
    def workers(self) -> Collection[int]:
        """Who is here."""

    @property
    def idle(self) -> Collection[int]:
        """Who is here, computes nothing, has handed in nothing for the current round, and is not leaving."""

    @property
    def leaving(self) -> Mapping[int, float]:
        """Worker -> the time by which it will be gone, of those who are here and said so."""

    @property
    def free(self) -> Ordered[int]:
        """Who is here and computes nothing, also those that handed something in; the last to become free comes last.

        For rules under which a worker need not wait for the update that uses its work.
        """

    @property
    def running(self) -> Mapping[int, Ticket]:
        """Worker -> the ticket that it computes."""

    @property
    def behind(self) -> Collection[Ticket]:
        """The running tickets that were given out before the last update of this ledger, in that order."""

    @property
    def recalled(self) -> Collection[Ticket]:
        """The running tickets that were asked to hand in what they have."""

    @property
    def fresh(self) -> Mapping[Ticket, int]:
        """Ticket -> units done: handed in, unused, given out since the last update; in the order of arrival."""

    @property
    def late(self) -> Mapping[Ticket, int]:
        """Ticket -> units done: handed in, unused, given out before the last update."""

    @property
    def handed_in(self) -> Ordered[Ticket]:
        """What is fresh and what is late together, in the order of arrival."""

    @property
    def holding(self) -> Mapping[int, int]:
        """Worker -> how many of the fresh tickets are its own; only those who have one."""

    @property
    def kept(self) -> Mapping[Ticket, int]:
        """Ticket -> units done: used, and kept for a later step."""

    @property
    def round(self) -> int:
        """How many updates this ledger has made."""

    def age(self, ticket: Ticket) -> int:
        """How many updates this ledger has made since a ticket, which is not settled, was given out.

        Of the whole, that is the ticket's staleness if it were used next. In a part the part's own rounds are counted.
        """

    @property
    def counts(self) -> Mapping[int, int]:
        """Worker -> how many of its pieces of work an update has used, of those who are here.

        A worker that joins begins with the ``least_count``, so that nobody has to wait for it to catch up.
        """

    @property
    def tally(self) -> Mapping[int, int]:
        """Count -> how many workers have it, of the ``counts``."""

    @property
    def least_count(self) -> int:
        """The smallest of the ``counts``."""

    @property
    def now(self) -> float:
        """The time of the last event."""

    @property
    def updated_at(self) -> float:
        """The time of the last update."""

    @property
    def alarms(self) -> Collection[float]:
        """The times that the strategy asked to be woken at and that have not come yet."""

    @property
    def memory(self) -> Mapping[str, float]:
        """What the strategy asked to remember."""

    @property
    def report(self) -> Mapping[str, float]:
        """Numbers that learning told of the last update: those that the rule asks for by its attribute ``reports``.

        Empty before the first update, and in a part. A number that is not known, such as the inner product of the first
        gradient with the one before, is left out.
        """

    @property
    def reports(self) -> int:
        """How many times learning has told numbers; a rule that counts them sees by it that there are new ones."""

    @property
    def sizes(self) -> Mapping[int, int]:
        """Worker -> the samples of its mini-batches, where workers have sizes of their own; in a part as in the whole.

        They are those of ``train(batch_size=[...])``, or of the last ``Resize``.
        """

    @property
    def groups(self) -> Groups:
        """The workers of each part, if the ledger is split."""

    @property
    def seconds(self) -> Mapping[int, float]:
        """Worker -> the median of what its last ``window`` pieces took for a mini-batch, of those who did so many.

        Pieces of another size than the worker has now do not count.

        Empty unless the ledger was split with a ``window``, and as many pieces as there are workers came in since the
        strategy was shown it last.
        """

    @property
    def last_seconds(self) -> Mapping[int, Sequence[float]]:
        """Worker -> what its last pieces took for a mini-batch, the oldest first, at most ``window`` of them.

        Measured as ``seconds`` are, and always there if the ledger was split with a ``window``.
        """

    def timed(self, window: int) -> Mapping[int, float]:
        """Worker -> the median of what its last ``window`` pieces took for a mini-batch, of those who did so many.

        For rules that do not split the ledger, and read the seconds of one worker at a time. To be asked in every call
        of ``decide``, and first before any work is given out: from then on the work of this ledger is timed.
        """

    @property
    def former_seconds(self) -> Mapping[int, tuple[int, float]]:
        """Worker -> another size of its mini-batches, and the median of what they took: measured as ``seconds`` are.

        Of several sizes before the present one, one that differs the most from it.
        """

    def split(self, groups: Groups, *, window: int = 0) -> Sequence[tuple[int, "Ledger"]]:
        """One part for each group; returns (number, part) of those that something happened to since they were asked.

        They come in the order in which it happened, so that those who arrive together are served as they arrived; at
        first in the order of the groups. A worker that no group names belongs to the last one. The split is made once,
        before any work is given out; from then on ``Regroup`` changes it. With a ``window``, ``seconds`` are measured.
        """

    def parts(self) -> Sequence["Ledger"]:
        """The parts of a split ledger, each a ledger itself."""
