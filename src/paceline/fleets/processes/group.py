"""The worker processes of one run, as the training loop sees them: a source of events.

Workers write to one pipe, which keeps the order of arrival. The server waits for the pipe and for the ends of processes
at once. When a process has ended, what it wrote before is read first, so that everything that was handed in counts. A
halted ticket may still come in; it is ignored.

What was read waits until the training loop is told of it. Only then do contributions take it in: when a report is read
is a matter of timing, when it is told is in the trace, and a replay does the same at the same place.
"""

import heapq
import logging
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from paceline.core.codec import real, whole
from paceline.core.errors import TooFewWorkers, WorkerFailed
from paceline.core.messages import Arrived, Event, Joined, Leaving, Left, Rang, Ticket
from paceline.core.stateful import State
from paceline.fleets.processes.channel import FAILED, LEAVING, READY, RECORD, STAYING, Channel, Order
from paceline.fleets.processes.supervisor import MAX_FAILURES, ServerChannel, Supervisor, WorkerProcess
from paceline.fleets.processes.timeouts import DurationHistory, SilenceTimeout
from paceline.learning.arena.arena import Report
from paceline.learning.contributions import SharedContributions
from paceline.learning.generators import work_seed
from paceline.trace.format import Computed, MachineWorkers

CHECK_INTERVAL = 0.25  # seconds between two checks for silent workers
READ_BYTES = 256 * RECORD.size  # at most, by one call
SEND_WITHIN = 0.001  # seconds that orders to other machines may wait for each other
LONGEST_NOTICE = 3600.0  # seconds that a notice names at most: also if nobody knows when a machine will go
MAX_COUNTED = 1.0  # seconds of one wait that count for timeouts at most: the server itself may have been stopped

log = logging.getLogger("paceline")


class WorkerHandle:
    """One worker: a number that stays, and a process that may be replaced.

    Times are seconds of the clock of ``ProcessWorkers``, which counts only the time that the server spends waiting.
    """

    def __init__(self, number: int, channel: Channel, timeout: SilenceTimeout) -> None:
        self.number = number
        self.shared_channel = channel
        self.channel: ServerChannel = channel  # another one where the process shares no memory with the server
        self.history = DurationHistory(timeout)
        self._at_first = timeout.at_first
        self.process: WorkerProcess | None = None
        self.ready = False
        self.ticket: Ticket | None = None
        self.assigned_at = 0.0  # when it got the ticket that it has to answer, or was started
        self.heard_at = 0.0  # when it last gave a sign of life
        self.last_heartbeat = 0
        self.last_received = 0
        self.owes_answer = False  # it was sent an order, and has handed nothing in since
        self.kill_reason = ""  # why the server killed it, if it did
        self.error = ""  # the traceback of what it raised
        self.failures = 0  # how often in a row it ended without handing anything in
        self.gone_by: float | None = None  # when its machine will be gone, by ``time.monotonic``, if that is known
        self.stays = False  # it was to be gone, and is not

    @property
    def overdue_at(self) -> float:
        """When it will have been silent for too long; never for a worker without a ticket."""
        if self.process is None or (self.ready and self.ticket is None):
            return float("inf")
        if self.ready:
            return self.heard_at + self.history.limit
        limit = self.process.start_timeout  # loading data and modules may take longer than a mini-batch ever did
        return self.heard_at + (self._at_first if limit is None else limit)

    def kill_silent(self, now: float) -> None:
        """Kill it because it was silent for too long."""
        silent = f"{now - self.heard_at:.3g} s"
        if self.ready:
            self.kill_reason = f"was silent for {silent} ({self.history.reason()}), and was killed"
        else:
            self.kill_reason = f"was not ready after {silent}, and was killed"
        if self.process is not None:
            self.process.kill()

    def renew(self) -> None:
        """Let its process end, so that another one joins: who has announced to leave gets no work any more."""
        self.stays, self.kill_reason = False, "was to be lost with its machine, and is not: it was ended"
        self.channel.quit()

    def assign(self, ticket: Ticket, now: float) -> None:
        """It has a ticket from now on. If it never received the last order, its silence began with that one."""
        if not self.owes_answer or self.channel.last_received != self.last_received:
            self.assigned_at = self.heard_at = now
        self.last_heartbeat = self.channel.last_heartbeat
        self.ticket, self.last_received, self.owes_answer = ticket, self.channel.last_received, True

    def check_heartbeat(self, now: float) -> None:
        """Another block or mini-batch since the last look is a sign of life."""
        if self.ticket is not None and self.channel.last_heartbeat != self.last_heartbeat:
            self.last_heartbeat, self.heard_at = self.channel.last_heartbeat, now

    def complete(self, now: float) -> None:
        """It has handed in its ticket."""
        mini_batches = 1 if self.ticket is None else self.ticket.work.mini_batches
        self.history.add((now - self.assigned_at) / mini_batches)
        self.ticket, self.owes_answer, self.failures = None, False, 0

    def activity(self) -> str:
        """What it was doing, for a message."""
        if not self.ready:
            return "while it started"
        return "while it had nothing to do" if self.ticket is None else f"while it ran {self.ticket}"


class ProcessWorkers:
    """The ``WorkerGroup`` of worker processes.

    results  the reading end of the pipe on which workers tell what they have done
    minimum  the run stops when fewer workers than this are ready or on their way
    delays   of workers that are made slow: the seconds that a ticket takes at least
    machines which workers share a machine, where there are several: ``on_placed`` is told when the run begins
    """

    def __init__(
        self, supervisor: Supervisor, contributions: SharedContributions, results: int, seed: int, *,
        minimum: int, replace: bool, delays: Mapping[int, Callable[[Ticket], float]],
        machines: MachineWorkers | None = None,
    ) -> None:  # fmt: skip
        self.about: Mapping[str, object] = {
            "clock": "real", "workers": len(supervisor.workers), "transfer_seconds": 0.0,
        }  # fmt: skip
        self.announce: Callable[[Computed], None] | None = None
        self._machines = machines
        self.on_placed: Callable[[MachineWorkers], None] = lambda machines: None
        self.supervisor = supervisor
        self._contributions = contributions
        self._results = results
        self._seed = seed
        self._minimum = minimum
        self._replace = replace
        self._delays = delays
        self._ends_at = math.inf
        self._asked_to_end: Callable[[], bool] = bool
        self._events: deque[Event] = deque()
        self._reports: dict[Ticket, Report] = {}  # of what was handed in, and the training loop was not told of yet
        self._alarms: list[float] = []
        self._to_notify: list[ServerChannel] = []
        self._waited = 0.0  # seconds spent waiting: the clock of timeouts, which stands still while the server is busy
        self._last_wait = self._zero = time.monotonic()
        self._before = 0.0  # the time at which the checkpoint was written that the run was restored from
        self._joined: set[int] = set()  # workers that the training loop was told to have joined
        self._checked_at = 0.0
        self._flushed_at = 0.0
        self._too_few = ""  # why there are too few workers, once there are
        self._started = False  # whether the workers of the start are ready
        self._anything_done = False  # whether any worker has handed anything in
        self._reasons: list[str] = []
        self._poll = select.epoll()
        os.set_blocking(results, False)
        self._poll.register(results, select.EPOLLIN)
        self._by_sentinel: dict[int, WorkerHandle] = {}

    # The interface of a ``WorkerGroup``.

    def wait(self) -> Sequence[Event]:
        if not self._started:
            return self._wait_for_start()
        for channel in self._to_notify:  # only now: workers that wake up compete with the server for cores
            channel.notify()
        self._to_notify.clear()
        if self._events and self.supervisor.sends_later and time.monotonic() - self._flushed_at > SEND_WITHIN:
            self._flush()  # otherwise orders that follow from what is here already travel together
        while not (over := self.is_over) and not self._events:
            self._flush()
            self._wait_once()
        if over:
            return ()
        event = self._events.popleft()
        if isinstance(event, Arrived):
            self._contributions.hand_in(event.ticket, self._reports.pop(event.ticket))
        elif isinstance(event, Joined):
            self._contributions.forget_worker(event.worker)
            self._joined.add(event.worker)
        elif isinstance(event, Left):
            self._joined.discard(event.worker)
        return (event,)

    def start(self, ticket: Ticket) -> None:
        if not self._started:
            return  # of a restored run, from before its checkpoint: the loop will be told that its worker has left
        worker = self.supervisor.workers[ticket.worker]
        promise = self._contributions.promised(ticket)
        delay = self._delays.get(ticket.worker)
        worker.assign(ticket, self._waited)
        worker.channel.send(
            Order(
                ticket.serial, ticket.work.units, promise.slot, promise.source, promise.indices,
                work_seed(self._seed, ticket.worker, promise.number),
                0.0 if delay is None else delay(ticket), ticket.version,
            )
        )  # fmt: skip
        self._to_notify.append(worker.channel)

    def halt(self, ticket: Ticket) -> None:
        self._contributions.halt(ticket)
        worker = self.supervisor.workers[ticket.worker]
        if worker.ticket == ticket:
            worker.ticket = None
            worker.channel.halt(ticket.serial)
        else:  # it was handed in already, and the event is still in the queue
            self._events = deque(e for e in self._events if not (isinstance(e, Arrived) and e.ticket == ticket))
            self._reports.pop(ticket, None)

    def recall(self, ticket: Ticket) -> None:
        if not self._started:
            return
        self.supervisor.workers[ticket.worker].channel.recall(ticket.serial)

    def end_waiting(self, at: float, asked: Callable[[], bool]) -> None:
        self._ends_at, self._asked_to_end = at, asked

    @property
    def is_over(self) -> bool:
        """Whether waiting is to end."""
        return self._asked_to_end() or self.now >= self._ends_at

    def wake_at(self, at: float) -> None:
        heapq.heappush(self._alarms, at)

    def close(self) -> None:
        self.supervisor.shut_down()
        self._contributions.detach()
        self._poll.close()
        os.close(self._results)
        self._asked_to_end = bool  # it refers to the loop, and the loop to this: break the cycle

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker that has one."""
        processes = [(worker.number, worker.process) for worker in self.supervisor]
        return {number: process.pid for number, process in processes if process is not None and process.pid}

    @property
    def ready(self) -> set[int]:
        """The workers that are ready for work."""
        return {worker.number for worker in self.supervisor if worker.ready}

    @property
    def joined(self) -> frozenset[int]:
        """The workers that the training loop was told to have joined."""
        return frozenset(self._joined)

    def start_all(self) -> None:
        """Start all processes; the run, and its clock, begin when they are ready."""
        for worker in self.supervisor:
            self._start(worker)

    def _wait_for_start(self) -> Sequence[Event]:
        while self.supervisor.is_starting(self._waited) or not self.ready:
            if self._asked_to_end():
                return ()
            self._flush()
            self._wait_once()
        for worker in self.supervisor:
            if worker.process is not None and not worker.ready:
                log.warning("worker %d found no free resources: the run begins without it", worker.number)
        self._started = True
        if self._machines is not None:
            self.on_placed(self._machines)
        self._events.clear()
        self._zero = time.monotonic() - self._before
        left = [Left(self._before, worker) for worker in sorted(self._joined)]  # the workers before the checkpoint
        self._joined = self.ready
        for number in self._joined:
            self._contributions.forget_worker(number)
        joined = [Joined(self._before, worker) for worker in sorted(self._joined)]
        known = [(worker.number, worker.gone_by) for worker in self.supervisor if worker.ready]
        leaving = [self._leaving(self._before, number, by) for number, by in known if by is not None]
        return [*left, *joined, *leaving]

    # A restored run has other processes. To the strategy all workers leave and join again at one instant: tickets that
    # they had are halted, and what they had handed in still counts.

    def state(self) -> State:
        return {"now": self.now, "told of": sorted(self._joined), "alarms": sorted(self._alarms)}

    def restore(self, state: State) -> None:
        self._before = real(state["now"])
        self._joined.update(whole(worker) for worker in state["told of"])
        self._alarms = [real(at) for at in state["alarms"]]

    # Waiting.

    @property
    def now(self) -> float:
        """Seconds of the run; the clock stands still until all workers are ready."""
        return time.monotonic() - self._zero if self._started else self._before

    @property
    def waited(self) -> float:
        """Seconds that the server has spent waiting: the clock of timeouts."""
        return self._waited

    def _flush(self) -> None:
        """Send what is waiting to be sent to other machines."""
        if self.supervisor.sends_later:
            self._flushed_at = time.monotonic()
            self.supervisor.flush()

    def _wait_once(self) -> None:
        """Wait for a record on the pipe, the end of a process, an alarm, or the next check for silent workers."""
        if self._too_few:
            raise TooFewWorkers(self._too_few)
        seconds = CHECK_INTERVAL
        if (due := min(self._ends_at, self._alarms[0]) if self._alarms else self._ends_at) < math.inf and self._started:
            seconds = max(0.0, min(seconds, due - self.now))
        ready = self._poll.poll(seconds)
        now = time.monotonic()
        self._waited += min(now - self._last_wait, MAX_COUNTED)
        self._last_wait = now
        if ready:
            ended = [w for each, _ in ready if each != self._results and self._has_ended(w := self._by_sentinel[each])]
            self._read_results()  # what a worker wrote before its end comes before its end
            for worker in ended:
                self._handle_end(worker)
        if now - self._checked_at >= CHECK_INTERVAL:
            self._checked_at = now
            self._look_after_workers()
        if self._alarms and self._alarms[0] <= (at := self.now):
            while self._alarms and self._alarms[0] <= at:
                heapq.heappop(self._alarms)
            self._events.append(Rang(at))

    def _read_results(self) -> None:
        """Read everything that is in the pipe."""
        workers = self.supervisor.workers
        while True:
            try:
                records = os.read(self._results, READ_BYTES)
            except BlockingIOError:
                return
            for number, done, serial in RECORD.iter_unpack(records):
                worker = workers[number]
                if done == READY:
                    self._handle_ready(worker)
                elif done == FAILED:
                    worker.error = worker.channel.error
                elif done in (LEAVING, STAYING):
                    self._handle_notice(worker, serial / 1000 if done == LEAVING else None)
                elif worker.ticket is not None and worker.ticket.serial == serial:
                    self._handle_result(worker, worker.ticket, done)
            if len(records) < READ_BYTES:
                return

    def _handle_result(self, worker: WorkerHandle, ticket: Ticket, done: int) -> None:
        self._contributions.written(ticket)
        self._reports[ticket] = worker.channel.reported
        if self.announce is not None:
            self.announce(Computed(ticket, worker.channel.seconds))
        worker.complete(self._waited)
        self._anything_done = True
        self._events.append(Arrived(self.now, ticket, done))

    def _handle_ready(self, worker: WorkerHandle) -> None:
        self._has_ended(worker)  # learn its pid, if that message has not been read yet
        worker.ready = True
        self._events.append(Joined(self.now, worker.number))

    def _handle_notice(self, worker: WorkerHandle, gone_by: float | None) -> None:
        """Its machine will be gone by a time of ``time.monotonic``; or stays although it was to be gone."""
        if not worker.ready or worker.kill_reason:
            return  # whoever starts is told when it is ready
        worker.gone_by, worker.stays = gone_by, gone_by is None and self._replace
        if gone_by is not None:
            self._events.append(self._leaving(self.now, worker.number, gone_by))
        elif not self._replace:
            log.warning("worker %d stays without work: to begin anew it would have to be replaced", worker.number)

    def _leaving(self, at: float, worker: int, gone_by: float) -> Leaving:
        return Leaving(at, worker, min(max(gone_by - self._zero, at), at + LONGEST_NOTICE))

    # Starting and replacing.

    def _start(self, worker: WorkerHandle) -> None:
        self.supervisor.start(worker, self._waited)
        assert worker.process is not None
        self._watch(worker.process.sentinel, worker)

    def _look_after_workers(self) -> None:
        """Kill those that are silent, and renew those that stay although they were to be gone."""
        for worker in self.supervisor:
            worker.check_heartbeat(self._waited)
            if worker.overdue_at <= self._waited and worker.process is not None and not worker.kill_reason:
                worker.kill_silent(self._waited)
            if worker.stays and worker.ready and worker.ticket is None:
                worker.renew()
        self._check_enough()

    def _check_enough(self) -> None:
        """Stop the run soon if fewer than the minimum are ready or on their way."""
        if not self._too_few and (expected := len(self.supervisor.expected(self._waited))) < self._minimum:
            left = f"{expected} of {len(self.supervisor.workers)} workers are left, and min_workers={self._minimum}"
            self._too_few = f"{left}: {'; '.join(self._reasons[-3:])}"

    def _has_ended(self, worker: WorkerHandle) -> bool:
        """Whether its process has ended; if not, the process may have another sentinel, which is watched from now."""
        assert worker.process is not None
        before, ended = worker.process.sentinel, worker.process.has_ended()
        if (after := worker.process.sentinel) != before:
            self._watch(after, worker, instead_of=before)
        return ended

    def _watch(self, sentinel: int, worker: WorkerHandle, instead_of: int | None = None) -> None:
        if instead_of is not None:
            self._poll.unregister(instead_of)
            del self._by_sentinel[instead_of]
        self._by_sentinel[sentinel] = worker
        self._poll.register(sentinel, select.EPOLLIN)

    def _handle_end(self, worker: WorkerHandle) -> None:
        """The process of a worker has ended: log why, and replace it unless that is hopeless."""
        assert worker.process is not None
        del self._by_sentinel[worker.process.sentinel]
        self._poll.unregister(worker.process.sentinel)
        end = worker.process.reap()
        worker.process = None
        if worker.error:
            reason = f"raised an error {worker.activity()}:\n{worker.error}"
        else:
            reason = f"{worker.kill_reason or end} {worker.activity()}"
        if worker.error and not self._anything_done:  # most likely every worker will fail
            raise WorkerFailed(f"worker {worker.number} {reason}")
        self._reasons.append(f"worker {worker.number} {reason}")
        worker.failures += 1
        if worker.ready:
            worker.ready, worker.ticket = False, None
            self._events.append(Left(self.now, worker.number))
        following = "it is not replaced"
        if self._replace and worker.failures < MAX_FAILURES:
            try:
                self._start(worker)
                following = "a replacement is on its way"
            except OSError as error:  # no descriptor or no memory is left
                following = f"it cannot be replaced ({error})"
        log.error("worker %d %s; %s", worker.number, reason, following)
        self._check_enough()
