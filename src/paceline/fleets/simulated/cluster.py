"""Machines with several workers, one link each, and a server in shards: what passes between them, and when.

An update takes one sum of gradients from each machine that has a part in it, and a version of the model goes to a
machine once, when somebody there needs it. What happens, with the latency $l$ of a message:

1. A worker is given work with a version. If its machine has that version, it begins after $l$; if the version is on its
   way, when it is there. Else the server sends it as soon as it is made: $l$, and then its bytes.
2. It computes, and reports that it is done: $l$. What it computed stays where it is.
3. A step asks every machine for the weighted sum of its own contributions ($l$), which comes back ($l$, and its bytes).
   The server takes ``sum_seconds`` for each sum, in the order in which they come, and ``step_seconds`` for the
   optimizer as soon as it has all sums of an update. Steps are made in order; what others send meanwhile travels at the
   same time.

A message passes the link of its machine and that of the server at once, each shared by what passes it (``links``). Of
S shards each has a link of its own, 1/S of every message, and 1/S of the server's work. What happens to one of them
happens to all at the same time, so that one is looked at.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from paceline.core.codec import MOST_WORKERS, whole
from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, check_fields, check_most
from paceline.core.stateful import State
from paceline.fleets.simulated.links import Link

TICKS = 10**12  # a second
WIRES: Mapping[str, float] = {"float32": 1.0, "bfloat16": 0.5}  # of the model's bytes, what goes between machines
MOST_SHARDS = 1_000_000
LEAST_GIGABITS = 1e-9  # one bit a second
MOST_BYTES = 1e15  # of a message
LINK, DEPART, DEALT_WITH = range(3)  # what comes first of things at one instant
SERVER_IN, SERVER_OUT = -1, -2  # numbers of links; those of machine m are 2m (in) and 2m + 1 (out)
WEIGHTS, SUM = 0, 1  # kinds of message
Job = tuple[int, int]  # of the server: a version to make, and 1 for its optimizer step, 0 for one of its sums


@dataclass(frozen=True)
class Machines:
    """Workers on machines, and the server on others: one gradient and one set of weights a machine and update.

    workers_each  workers 0 to 7 are on the first machine, 8 to 15 on the second, and so on
    gigabits      a second, of the link of every machine and of every shard, each way; shared by what passes at once
    latency       seconds that a message takes besides its bytes
    shards        servers, each on a machine of its own with its share of the model and of the work
    sum_seconds   what one server takes for the sum of one machine, and ``step_seconds`` for the optimizer of an update;
                  S shards take 1/S of it
    message_bytes  the size of the weights, and of a gradient; by default that of the model (none in ``simulate``)
    """

    workers_each: int = 8
    gigabits: float = 10.0
    latency: float = 0.0
    shards: int = 1
    sum_seconds: float = 0.0
    step_seconds: float = 0.0
    message_bytes: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.workers_each < 1:
            raise ConfigError(f"workers_each={self.workers_each} is not possible: at least 1 worker on a machine")
        if not LEAST_GIGABITS <= self.gigabits < math.inf:
            raise ConfigError(
                f"gigabits={self.gigabits:g} is not possible: a finite number of more than 0 a second, at least "
                f"{LEAST_GIGABITS:g}"
            )
        if not 1 <= self.shards <= MOST_SHARDS:
            raise ConfigError(f"shards={self.shards} is not possible: 1 to {MOST_SHARDS:,}")
        for name in ("latency", "sum_seconds", "step_seconds", "message_bytes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)} is not possible: a finite number of at least 0")
        check_most(self, MOST_WORKERS, "workers_each")
        check_most(self, MOST_SECONDS, "latency", "sum_seconds", "step_seconds")
        check_most(self, MOST_BYTES, "message_bytes")

    def machine(self, worker: int) -> int:
        """The machine that a worker is on."""
        return worker // self.workers_each

    def wire_bytes(self, model_bytes: int, wire: str) -> int:
        """What a message has between machines."""
        return math.ceil((self.message_bytes or model_bytes) * WIRES[wire])

    def alone(self, wire_bytes: int) -> tuple[float, float]:
        """The seconds that a message alone takes on the link of its machine, and on that of a shard."""
        seconds = wire_bytes * 8 / (self.gigabits * 1e9)
        return seconds, seconds / self.shards

    def server_seconds(self, sums: int) -> float:
        """What the server, or each of its shards, takes for an update that so many machines have a part in."""
        return (sums * self.sum_seconds + self.step_seconds) / self.shards

    def round_seconds(self, sums: int, wire_bytes: int) -> float:
        """What a round of so many machines takes besides computing, if all begin together and nobody else sends.

        Weights and a report, an order and sums, and the server's time; messages share the links of the server.
        """
        own, server = self.alone(wire_bytes)
        return 4 * self.latency + 2 * max(own, sums * server) + self.server_seconds(sums)


class Cluster:
    """The machines, links and server of one run. ``next_tick`` is when something happens next; ``run`` makes it happen.

    ``sent`` counts the messages that were sent: weights, and sums.
    """

    def __init__(self, machines: Machines, wire_bytes: int) -> None:
        self.wire_bytes = wire_bytes
        self.sent = [0, 0]
        self._machines = machines
        own, server = machines.alone(wire_bytes)
        self._own, self._server = round(own * TICKS), round(server * TICKS)  # ticks that a message takes alone
        self._latency = round(machines.latency * TICKS)
        costs = machines.sum_seconds, machines.step_seconds
        self._costs = tuple(round(seconds / machines.shards * TICKS) for seconds in costs)
        self._heap: list[tuple[int, int, int]] = []  # (tick, what, number of a link or a message)
        self._links: dict[int, Link] = {}
        self._messages: dict[int, list[int]] = {}  # number -> kind, machine, version, links that still carry it
        self._numbered = 0
        self._jobs: deque[Job] = deque()  # of the server, in the order in which they came; the first is dealt with
        self._sums: dict[int, int] = {}  # version that is to be made -> sums that are still to be added
        self._made = 0  # the newest version
        self._asked = 0  # the newest version that a step was decided for
        self._newest: dict[int, int] = {}  # machine -> the newest version that it has
        self._unmade: dict[int, list[int]] = {}  # version that is to be made -> machines to which it goes then
        self._waiting: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (machine, version) -> who, and when

    def want(self, worker: int, serial: int, version: int, now: int) -> int | None:
        """A worker is to begin ticket ``serial`` with a version. Returns when, if its machine has it; else it waits."""
        machine, ready = self._machines.machine(worker), now + self._latency
        if self._newest.get(machine, -1) == version:
            return ready
        if (machine, version) in self._waiting:
            self._waiting[machine, version].append((worker, serial, ready))
            return None
        self._waiting[machine, version] = [(worker, serial, ready)]
        if version <= self._made:
            self._send(WEIGHTS, machine, version, ready)
        else:
            self._unmade.setdefault(version, []).append(machine)
        return None

    def step(self, workers: Iterable[int], now: int) -> None:
        """An update was decided on contributions of these workers: their machines send their sums."""
        self._asked += 1
        machines = sorted({self._machines.machine(worker) for worker in workers})
        self._sums[self._asked] = len(machines)
        for machine in machines:
            self._send(SUM, machine, self._asked, now + 2 * self._latency)

    def next_tick(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now: int) -> list[tuple[int, int, int]]:
        """All that happens at a tick. Returns who can begin: worker, number of its ticket, and when."""
        begin: list[tuple[int, int, int]] = []
        while self._heap and self._heap[0][0] == now:
            _, what, number = heappop(self._heap)
            if what == LINK:
                link = self._links[number]
                if link.next_end() != now:
                    continue  # something began meanwhile, and it is due at another time
                for message in link.take(now):
                    self._passed(message, now, begin)
                self._expect(number)
            elif what == DEPART:
                self._depart(number, now)
            else:
                self._dealt_with(now)
        return begin

    def _send(self, kind: int, machine: int, version: int, departs: int) -> None:
        self.sent[kind] += 1
        self._numbered += 1
        self._messages[self._numbered] = [kind, machine, version, 2]
        heappush(self._heap, (departs, DEPART, self._numbered))

    def _depart(self, message: int, now: int) -> None:
        kind, machine, _, _ = self._messages[message]
        for number, ticks in (
            (2 * machine + kind, self._own),
            (SERVER_IN if kind == SUM else SERVER_OUT, self._server),
        ):
            if number not in self._links:
                self._links[number] = Link()
            self._links[number].begin(message, ticks, now)
            self._expect(number)

    def _expect(self, link: int) -> None:
        if (end := self._links[link].next_end()) is not None:
            heappush(self._heap, (end, LINK, link))

    def _passed(self, message: int, now: int, begin: list[tuple[int, int, int]]) -> None:
        """One of its two links has carried all of a message."""
        entry = self._messages[message]
        entry[3] -= 1
        if entry[3]:
            return
        kind, machine, version, _ = self._messages.pop(message)
        if kind == SUM:
            self._queue_sum(version, now)
            return
        self._newest[machine] = version
        for worker, serial, ready in self._waiting.pop((machine, version), ()):
            begin.append((worker, serial, max(ready, now)))

    def _queue_sum(self, version: int, now: int) -> None:
        self._jobs.append((version, 0))
        if len(self._jobs) == 1:
            heappush(self._heap, (now + self._costs[0], DEALT_WITH, 0))

    def _dealt_with(self, now: int) -> None:
        """The server has dealt with the first of its jobs. A step that can be made comes before sums that wait."""
        version, stepped = self._jobs.popleft()
        if stepped:
            self._made = version
            del self._sums[version]
            for machine in self._unmade.pop(version, ()):
                self._send(WEIGHTS, machine, version, now + self._latency)
        else:
            self._sums[version] -= 1
        if self._sums.get(self._made + 1) == 0:
            self._jobs.appendleft((self._made + 1, 1))
        if self._jobs:
            heappush(self._heap, (now + self._costs[self._jobs[0][1]], DEALT_WITH, 0))

    def state(self) -> State:
        return {
            "counts": [*self.sent, self._numbered, self._made, self._asked],
            "heap": sorted([list(entry) for entry in self._heap if entry[1] != LINK]),
            "links": [[number + 2, link.state()] for number, link in sorted(self._links.items())],
            "messages": [[number, *entry] for number, entry in sorted(self._messages.items())],
            "jobs": list(map(list, self._jobs)),
            "sums": sorted(map(list, self._sums.items())),
            "newest": sorted(map(list, self._newest.items())),
            "unmade": [[version, list(machines)] for version, machines in sorted(self._unmade.items())],
            "waiting": [[*where, list(map(list, who))] for where, who in sorted(self._waiting.items())],
        }

    def restore(self, state: State) -> None:
        *sent, self._numbered, self._made, self._asked = map(whole, state["counts"])
        self.sent = sent
        self._heap = [(whole(tick), whole(what), whole(number)) for tick, what, number in state["heap"]]
        self._messages = {whole(number): list(map(whole, entry)) for number, *entry in state["messages"]}
        self._jobs = deque((whole(version), whole(stepped)) for version, stepped in state["jobs"])
        self._sums = {whole(version): whole(count) for version, count in state["sums"]}
        self._newest = {whole(machine): whole(version) for machine, version in state["newest"]}
        self._unmade = {whole(version): list(map(whole, machines)) for version, machines in state["unmade"]}
        self._waiting = {
            (whole(machine), whole(version)): [(whole(worker), whole(serial), whole(at)) for worker, serial, at in who]
            for machine, version, who in state["waiting"]
        }
        for number, link in state["links"]:
            own = self._links[whole(number) - 2] = Link()
            own.restore(link)
            self._expect(number - 2)
        heapify(self._heap)
