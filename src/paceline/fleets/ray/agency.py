"""Has actors started, and sees to what each of them needs until it is ready."""

import os
from functools import partial

from paceline.core.errors import ConfigError
from paceline.fleets.processes.mailbox import READY, RECORD
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.roster import Member, Memories
from paceline.fleets.ray import near
from paceline.fleets.ray.actor import Actor, Greeting, versions
from paceline.fleets.ray.connection import ALIVE, Connection, Gone
from paceline.fleets.ray.far import FarMailbox, Weights
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.hand import Hand
from paceline.fleets.ray.switchboard import Switchboard
from paceline.learning.segments import Segments


class Agency:
    """Of one run."""

    def __init__(
        self, fleet: RayFleet, connection: Connection, switchboard: Switchboard, memories: Memories,
        segments: Segments, post: int, *, shared: bool,
    ) -> None:  # fmt: skip
        self._deadline = fleet.deadline
        self._connection = connection
        self._switchboard = switchboard
        self._desk = near.Desk(switchboard) if fleet.share_memory else None
        self._machine = near.machine()
        self._parcels = memories.instructions, memories.equipment
        self._stored: list[object] = []
        self._segments = segments
        self._weights = Weights(segments, connection)
        self._post = post
        self._shared = shared  # may the workers of a node look at the same samples?

    def start(self, member: Member, descriptors: list[int]) -> Hand:
        """An actor for a worker; what it comes to is told by its sentinel and on the common pipe."""
        hand = Hand(self._connection.start(Actor, member.number), self._deadline.at_first)
        desk, key = "", b""
        if self._desk is not None:
            desk, key = self._desk.name, self._desk.expect(descriptors, lambda: hand.gone("ended"))
        hand.handle.ask(partial(self._meet, member, hand), "greet", member.number, self._machine, desk, key)
        return hand

    def close(self) -> None:
        """When all actors have ended."""
        self._switchboard.close()
        if self._desk is not None:
            self._desk.close()
        self._connection.close()

    # The switchboard's thread.

    def _meet(self, member: Member, hand: Hand, answer: list[Greeting] | Gone) -> None:
        if isinstance(answer, Gone):
            hand.gone(answer.why)
            return
        (greeting,) = answer
        hand.meet(greeting)
        if greeting.versions != versions():
            ours, theirs = (", ".join(f"{k} {v}" for k, v in each.items()) for each in (versions(), greeting.versions))
            self._refuse(member, hand, f"{greeting.host} has {theirs}, and the server {ours}: install the same")
        elif greeting.near:
            hand.handle.ask(lambda _: hand.gone("ended"), "serve")
        else:
            hand.handle.ask(lambda _: hand.gone(_.why if isinstance(_, Gone) else "ended"), "stay", group=ALIVE)
            self._stored = self._stored or [self._connection.put(_array(each)) for each in self._parcels]
            hand.handle.ask(partial(self._begin, member, hand), "prepare", *self._stored, self._shared)

    def _begin(self, member: Member, hand: Hand, answer: list[str] | Gone) -> None:
        if isinstance(answer, Gone):
            hand.gone(answer.why)
        elif answer[0]:
            self._refuse(member, hand, answer[0])
        elif not hand.over:
            member.mailbox = FarMailbox(member, hand, self._segments, self._weights, self._post)
            os.write(self._post, RECORD.pack(member.number, READY, 0))

    def _refuse(self, member: Member, hand: Hand, why: str) -> None:
        member.complaint = why
        hand.gone("ended")


def _array(memory: SharedMemory) -> object:
    return memory.tensor().numpy()
