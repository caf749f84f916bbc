"""Has actors started, and sees to what each of them needs until it is ready."""

import os
from functools import partial

from paceline.data.samples import TensorSamples
from paceline.fleets.processes.channel import READY, RECORD
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.supervisor import WorkerHandle
from paceline.fleets.ray import local
from paceline.fleets.ray.actor import Greeting, versions
from paceline.fleets.ray.connection import ALIVE, Gone
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.process import Hand
from paceline.fleets.ray.remote import RemoteChannel, Weights
from paceline.fleets.ray.session import Office


class Agency:
    """Of one run."""

    def __init__(self, fleet: RayFleet, office: Office, context: SharedContext, *, once_a_version: bool) -> None:
        self._deadline = fleet.deadline
        self._office = office
        self._run = office.next_run()
        self._machine = local.machine()
        self._parcels = context.memories.instructions, context.memories.payload
        self._stored: list[object] = []
        self._weights = Weights(context.arena, office.connection, once_a_version=once_a_version)
        self._premises = context
        # may the workers of a node look at the same samples? Code of a data set might write to them
        self._shared = isinstance(context.workload.samples, TensorSamples)

    def start(self, member: WorkerHandle, descriptors: list[int]) -> Hand:
        """An actor for a worker; what it comes to is told by its sentinel and on the common pipe."""
        office, number = self._office, member.number
        hand = Hand(
            office.start(number), self._deadline.at_first,
            has_place=office.connection.has_room, keep=partial(office.keep, number),
        )  # fmt: skip
        desk, key = "", b""
        if office.desk is not None:
            desk, key = office.desk.name, office.desk.expect(descriptors, lambda: hand.gone("ended"))
        hand.handle.ask(partial(self._meet, member, hand), "greet", number, self._machine, desk, key)
        return hand

    def close(self) -> None:
        """When all actors have ended."""
        if self._office.stays:
            self._office.switchboard.settle()
        else:
            self._office.close()

    # The switchboard's thread.

    def _meet(self, member: WorkerHandle, hand: Hand, answer: list[Greeting] | Gone) -> None:
        if isinstance(answer, Gone):
            hand.gone(answer.why)
            return
        (greeting,) = answer
        hand.meet(greeting)
        if greeting.versions != versions():
            ours, theirs = (", ".join(f"{k} {v}" for k, v in each.items()) for each in (versions(), greeting.versions))
            self._refuse(member, hand, f"{greeting.host} has {theirs}, and the server {ours}: install the same")
        elif greeting.near:
            hand.handle.ask(lambda code: hand.done() if code == [0] else hand.gone("ended"), "serve")
        else:
            hand.handle.ask(lambda _: hand.gone(_.why if isinstance(_, Gone) else "ended"), "stay", group=ALIVE)
            self._stored = self._stored or [self._office.connection.put(_array(each)) for each in self._parcels]
            hand.handle.ask(partial(self._begin, member, hand), "prepare", self._run, *self._stored, self._shared)

    def _begin(self, member: WorkerHandle, hand: Hand, answer: list[str] | Gone) -> None:
        if isinstance(answer, Gone):
            hand.gone(answer.why)
        elif answer[0]:
            self._refuse(member, hand, answer[0])
        elif not hand.over:
            member.mailbox = RemoteChannel(member, hand, self._run, self._premises, self._weights)
            os.write(self._premises.post, RECORD.pack(member.number, READY, 0))

    def _refuse(self, member: WorkerHandle, hand: Hand, why: str) -> None:
        member.complaint = why
        hand.gone("ended")


def _array(memory: SharedMemory) -> object:
    return memory.tensor().numpy()
