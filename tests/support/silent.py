"""Coordinators of strategies that decide nothing, for tests that decide themselves."""

from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Groups, Joined, Ticket, Within, gradient
from paceline.testing import snapshot, walk


class Silent(Strategy):
    """Splits the ledger, if it is given groups, and decides nothing."""

    def __init__(self, groups: Groups = ()) -> None:
        self.groups = groups

    def decide(self, ledger: Ledger) -> list[Decision]:
        if self.groups:
            list(ledger.split(self.groups))
        return []


def coordinator_of(*workers: int, blocks: int = 1) -> Coordinator:
    """The workers joined at 0, and each runs the ticket t0, t1, ... in this order."""
    coordinator = Coordinator(Silent())
    coordinator.receive(*(Joined(0.0, worker) for worker in workers))
    coordinator.carry_out([Assign(worker, gradient(blocks)) for worker in workers])
    return coordinator


def split_coordinator() -> Coordinator:
    """Four workers at work in two groups, the even (part 0) and the odd ones."""
    coordinator = Coordinator(Silent(groups=((0, 2), (1, 3))))
    coordinator.receive(*(Joined(0.0, worker) for worker in range(4)))
    coordinator.carry_out([Within(worker % 2, Assign(worker)) for worker in range(4)])
    return coordinator


def tickets(coordinator: Coordinator) -> tuple[Ticket, ...]:
    return tuple(sorted(coordinator.ledger.running.values()))


def dump(coordinator: Coordinator) -> object:
    """Everything that the coordinator shows, parts included."""
    return coordinator.version, [(numbers, snapshot(ledger)) for numbers, ledger in walk(coordinator.ledger)]
