r"""Compensation for the age of a gradient: the option ``compensate_delay`` of ``train`` (DC-ASGD).

$$w_{t+1} = w_t - \eta\left(g + \lambda\, g \odot g \odot (w_t - w_{t-\tau})\right), \qquad g = g(w_{t-\tau}; \xi),$$

where $w_{t-\tau}$ are the weights that the worker downloaded, $\lambda$ is ``compensate_delay`` and $\odot$ multiplies
element by element. It is the first term of a Taylor series of the gradient at $w_t$, with $g \odot g$ in place of the
Hessian's diagonal. The term is not linear in $g$, so it belongs to the run and not to the strategy, and is defined for
updates along a single gradient only.

The server keeps the weights of every version that a worker still computes on: at most one copy of the model a worker.

Zheng et al., *Asynchronous Stochastic Gradient Descent with Delay Compensation*, ICML 2017, Eq. (10).
"""

from collections.abc import Collection

import torch
from torch import Tensor

from paceline.core.codec import whole
from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Joined, Start, Step, Ticket
from paceline.core.stateful import State
from paceline.learning.contributions import pack_tickets, unpack_tickets
from paceline.learning.model_state import ModelState, like, norm

TURNS = 3  # in which every worker hands in once, to see what a strategy steps on


class DelayCompensation:
    """Keeps what workers downloaded, and adds the compensation to a gradient."""

    def __init__(self, strength: float, state: ModelState) -> None:
        self._strength = strength
        self._state = state
        self._downloads: dict[int, list[Tensor]] = {}  # version -> its weights
        self._open: dict[Ticket, None] = {}
        self._users: dict[int, int] = {}  # version -> how many open tickets have it

    def downloaded(self, ticket: Ticket) -> None:
        """A worker was given the present weights."""
        version = ticket.version
        if version not in self._downloads:
            self._downloads[version] = [parameter.detach().clone() for parameter in self._state.parameters]
        self._open[ticket] = None
        self._users[version] = self._users.get(version, 0) + 1

    def settled(self, ticket: Ticket) -> None:
        version = ticket.version
        del self._open[ticket]
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version], self._downloads[version]

    def apply(self, tickets: Collection[Ticket]) -> float:
        """Add to the gradient of one ticket, which lies in the parameters' ``grad``. Returns the norm of the sum."""
        if len(tickets) != 1:
            raise refusal(f"an update uses {len(tickets)} gradients at once")
        (ticket,) = tickets
        with torch.no_grad():
            for parameter, downloaded in zip(self._state.parameters, self._downloads[ticket.version], strict=True):
                if (gradient := parameter.grad) is not None:
                    gradient.addcmul_(gradient.square(), parameter.detach() - downloaded, value=self._strength)
        return norm(self._state.gradients)

    def state(self) -> State:
        return {
            "tickets": pack_tickets(self._open),
            "downloads": [[version, weights] for version, weights in self._downloads.items()],
        }

    def restore(self, state: State) -> None:
        present = [parameter.data for parameter in self._state.parameters]
        self._downloads = {whole(version): like(present, weights) for version, weights in state["downloads"]}
        for ticket in unpack_tickets(state["tickets"]):
            if ticket.version not in self._downloads:
                raise ValueError(f"the weights that {ticket} was computed with are missing")
            self._open[ticket] = None
            self._users[ticket.version] = self._users.get(ticket.version, 0) + 1


def refusal(why: str) -> ConfigError:
    return ConfigError(
        f"compensate_delay is defined for updates along one gradient each, and {why}: use Asynchronous, "
        "BoundedStaleness, DelayAdaptive, Ringmaster or Rescaled, or leave it out"
    )


def check_single(strategy: Strategy, workers: int) -> None:
    """Refuse a strategy that steps on several gradients, or keeps one.

    A strategy is a pure function of its ledger, so it can be asked: everybody joins, and hands in a few times.
    """
    coordinator = Coordinator(strategy)
    running: dict[int, Ticket] = {}
    events: list[Joined | Arrived] = [Joined(0.0, worker) for worker in range(workers)]
    now = 0.0
    for _ in range(TURNS):
        while events:
            now += 1.0
            event = events.pop(0)
            if isinstance(event, Arrived) and running.get(event.ticket.worker) != event.ticket:
                continue
            if isinstance(event, Arrived):
                event = Arrived(now, running.pop(event.ticket.worker), event.done)
            _look(strategy, coordinator.receive(event), running)
        events = [Arrived(now, ticket, ticket.work.units) for _, ticket in sorted(running.items())]


def _look(strategy: Strategy, instructions: Collection[object], running: dict[int, Ticket]) -> None:
    name = type(strategy).__name__
    for each in instructions:
        if isinstance(each, Start):
            running[each.ticket.worker] = each.ticket
            if each.ticket.work.kind != "gradient":
                raise refusal(f"{name} lets workers hand in models")
        elif isinstance(each, Step):
            if len(each.weights) > 1:
                raise refusal(f"{name} combines several")
            if each.keep:
                raise refusal(f"{name} keeps them for later updates")
