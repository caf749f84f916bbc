"""The agent of a machine: an actor that hosts the machine's workers, which are processes that share its memory.

What a worker does, and how it is told, is as in a ``ProcessFleet``. The agent passes orders on to its workers and their
answers back, many at a time; it holds the weights that they read and the gradients that they hand in, and adds up those
that the server names. It decides nothing.
"""

import os
from collections.abc import Sequence
from typing import Any

from paceline.fleets.ray.connection import start_time, this_node
from paceline.fleets.ray.host import Host, missing_memory
from paceline.fleets.ray.messages import AgentInfo, HostSettings, versions
from paceline.fleets.ray.wire import Bytes, split
from paceline.learning.gradients.held import Parts
from paceline.learning.gradients.sharding import Bounds


class Agent:
    """The actor. Its methods are called by Ray; those that only ask run beside those that bring orders."""

    _run: int = -1
    _host: Host | None = None

    def describe(self) -> AgentInfo:
        return AgentInfo(os.getpid(), *this_node(), versions(), start_time(os.getpid()))

    def open(self, run: int, settings: HostSettings, config: Bytes, payload: Bytes) -> str:
        """Get ready for a run. Returns why it cannot, or nothing."""
        self.close()
        if missing := missing_memory(settings, config, payload):
            return missing
        self._run, self._host = run, Host(settings, config, payload)
        return ""

    def close(self) -> None:
        """The run is over: end its workers, free its memory."""
        host, self._host, self._run = self._host, None, -1
        if host is not None:
            host.close()

    def exchange(
        self, run: int, number: int, commands: list[tuple[Any, ...]], waiting: int, results: int, *chunks: Bytes
    ) -> Any:
        """Carry commands out, and return what workers have told; waits until there is something.

        number    how many of these calls came before: they are carried out in that order
        commands  weights, copies, orders, and sums to be sent along with the news of arrivals
        waiting   so many calls may wait at once; one more returns at once
        results   the messages, and in chunks the sums that go with them
        chunks    weights that came with the call
        """
        if run != self._run or self._host is None:
            return [[], *([b""] * (results - 1))] if results > 1 else []
        found = self._host.exchange(number, commands, waiting, results, chunks)
        return found if results > 1 else found[0]

    def control(self, run: int, commands: Sequence[tuple[str, int, int]]) -> None:
        """Start and kill processes, halt and recall tickets: at once, beside whatever is delivered."""
        if run == self._run and self._host is not None:
            for command, worker, number in commands:
                self._host.control(command, worker, number)

    def sum(self, run: int, after: int, parts: Parts, ends: Sequence[int], chunks: int) -> Any:
        """A weighted sum of rows, in chunks; before them, what is besides a gradient in some slots.

        ``after`` so many calls of ``exchange``: rows of a checkpoint come with the first.
        """
        host = self._open(run, after)
        return [[host.end(slot) for slot in ends], *split(host.sum(parts), chunks)]

    def sum_pieces(self, run: int, after: int, parts: Parts, ends: Sequence[int], bounds: Sequence[Bounds]) -> Any:
        """The same in pieces, one for each shard."""
        host = self._open(run, after)
        return [[host.end(slot) for slot in ends], *host.sum_pieces(parts, bounds)]

    def finite(self, run: int, after: int, slots: Sequence[int]) -> list[bool]:
        return [*self._open(run, after).machine.finite(slots)]

    def read(self, run: int, after: int, slot: int) -> Bytes:
        """A whole slot."""
        return self._open(run, after).arena.bytes(slot).numpy()

    def ping(self) -> None:
        """It is alive if this returns."""

    def _open(self, run: int, after: int) -> Host:
        if run != self._run or self._host is None:
            raise LookupError(f"run {run} is over")
        self._host.wait_for(after)
        return self._host
