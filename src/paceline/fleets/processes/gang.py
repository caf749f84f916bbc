"""A worker of several processes, its ranks: they compute together through ``torch.distributed``, and rank 0 speaks.

Rank 0 is the worker's process: it has the channel, and forks the others before it loads anything. It passes each order
on to them, and whether to continue with each block; so all ranks do the same passes. They meet through a file in memory
that has no name: only who inherits its descriptor can read or write it, and it is freed with the last of them.

What they compute goes between them over the loopback interface: gloo listens there. Others of the machine who connect
to such a port could falsify numbers; nothing that comes through one is run or unpickled.

A worker lives and dies as one. The ranks are in one process group, which is killed with rank 0, and the kernel kills
them when rank 0 ends. Rank 0 watches them: when one is killed, it kills all of them, itself included; when one raises
an error, that rank reports it, and rank 0 ends. So nobody is left waiting in a collective.
"""

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from paceline.core.errors import ConfigError
from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.fork_loop import execute
from paceline.fleets.processes.payload import ComputeFunction
from paceline.learning.arena.arena import Report
from paceline.learning.gradients.ranks import described

PR_SET_PDEATHSIG = 1
BLAME_WITHIN = 1.0  # seconds in which rank 0 finds out whether another rank is the cause of an error of its own
LOOPBACK = "lo"
MET_WITHIN = timedelta(minutes=30)  # as collectives have: the server gives up a worker that is too slow long before


class Gang:
    """The ranks of one worker, as one of them sees them: a ``Ranks`` of ``paceline.learning.gradients.ranks``."""

    def __init__(self, rank: int, size: int, meeting: int, ends: Sequence[Connection], token: int) -> None:
        self.rank = rank
        self.size = size
        self.speaks = rank == 0
        self._store = FileStore(f"/proc/self/fd/{meeting}", size)
        self._store.set_timeout(MET_WITHIN)
        self._ends = ends  # to the other ranks; of those, to rank 0
        self._token = token

    def join(self, device: torch.device) -> None:
        """Meet the other ranks. Collectives take tensors of the CPU, and of the device."""
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # whatever it is for other programs of the user
            os.environ[name] = LOOPBACK
        backend = "cpu:gloo"
        if device.type != "cpu":
            try:
                backend += f",{device.type}:{dist.get_default_backend_for_device(device)}"
            except ValueError:
                raise ConfigError(
                    f"torch.distributed has no backend for {device.type}: use ranks_per_worker=1"
                ) from None
        dist.init_process_group(
            backend, store=self._store, rank=self.rank, world_size=self.size,
            device_id=None if device.type == "cpu" else device,
        )  # fmt: skip

    def mesh(self, device: torch.device) -> Any:
        """All ranks in one dimension, for ``Task(parallel=)``."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(device.type, (self.size,), mesh_dim_names=("ranks",))

    def check_agreement(self, parameters: Sequence[nn.Parameter]) -> None:
        """``ConfigError`` if the parameters of another rank have other shapes or types."""
        self._store.set(f"model of rank {self.rank}", json.dumps(described(parameters)))
        everybody = [json.loads(self._store.get(f"model of rank {rank}")) for rank in range(self.size)]
        for rank, theirs in enumerate(everybody):
            if theirs != everybody[0]:
                number = next((n for n, (a, b) in enumerate(zip(theirs, everybody[0], strict=False)) if a != b), None)
                differ = (
                    f"parameter {number} is {theirs[number]} there, and {everybody[0][number]} on rank 0"
                    if number is not None
                    else f"it has {len(theirs)} parameters, and rank 0 has {len(everybody[0])}"
                )
                raise ConfigError(f"rank {rank} has another model than rank 0: {differ}; let all ranks make the same")

    # ``Ranks``.

    def total(self, numbers: Tensor) -> None:
        dist.all_reduce(numbers)

    def collect(self, vectors: Sequence[Tensor]) -> None:
        for vector in vectors:
            dist.reduce(vector, dst=0)

    # Orders go from rank 0 to the others.

    def leading(self, compute: ComputeFunction) -> ComputeFunction:
        """On rank 0: compute an order together with the others."""

        def led(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Report]:
            self._send(order)

            def decide(block: int) -> bool:
                continues = go_on(block)
                self._send(continues)
                return continues

            return compute(order, decide)

        return led

    def follow(self, compute: ComputeFunction) -> None:
        """On the other ranks: compute orders until rank 0 quits, or is gone."""
        (lead,) = self._ends
        while True:
            try:
                order: Order | None = lead.recv()
            except (EOFError, OSError):
                return
            if order is None:
                return
            compute(order, lambda block: bool(lead.recv()))

    def quit(self) -> None:
        self._send(None)

    def _send(self, what: object) -> None:
        for end in self._ends:
            end.send(what)

    def is_to_blame(self) -> bool:
        """After an error: does it begin with this rank? Then it is this one's to report.

        The end of another rank breaks the collectives of this one. Rank 0 gives ``_watch`` time to find that out, which
        then ends this process.
        """
        if self.rank == 0:
            time.sleep(BLAME_WITHIN)
        try:
            return bool(os.read(self._token, 1))
        except BlockingIOError:
            return False


def start_ranks(number: int, size: int, descriptors: Sequence[int], *, spawn: bool) -> Gang:
    """In rank 0, before anything is loaded: fork the other ranks. Returns in each of them.

    With ``spawn`` the other ranks load Python anew, as rank 0 did, and do not return from here.
    """
    meeting, parent = os.memfd_create("ranks"), os.getpid()
    token, filled = os.pipe()
    os.write(filled, b"1")
    os.close(filled)
    os.set_blocking(token, False)
    ours: list[Connection] = []
    pids: list[int] = []
    for rank in range(1, size):
        mine, theirs = Pipe()
        pid = os.fork()
        if not pid:
            _die_with(parent)
            for each in [*ours, mine]:
                each.close()
            if spawn:
                ends = [meeting, theirs.fileno(), token]
                execute(
                    "worker.be_rank", number, (rank, size, ends), list(descriptors), descriptors=[*ends, *descriptors]
                )
            return Gang(rank, size, meeting, [theirs], token)
        theirs.close()
        ours.append(mine)
        pids.append(pid)
    gang = Gang(0, size, meeting, ours, token)
    threading.Thread(target=_watch, args=(number, pids), daemon=True).start()
    return gang


def gang_of(rank: int, size: int, ends: Sequence[int]) -> Gang:
    """In a rank that was spawned. ``ends`` are where ranks meet, its end of the pipe to rank 0, and the token."""
    meeting, end, token = ends
    return Gang(rank, size, meeting, [Connection(end)], token)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when rank 0 ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it is dead already
        os._exit(1)


def _watch(number: int, pids: Sequence[int]) -> None:
    """In a thread of rank 0: when a rank ends, end with it."""
    poll = select.poll()
    for pid in pids:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.poll()
    for rank, pid in enumerate(pids, start=1):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            continue
        code = os.waitstatus_to_exitcode(status)
        if not code:
            return  # it was told to quit
        if code > 0:  # it has reported why
            sys.stdout.flush()
            os._exit(code)
        name = signal.Signals(-code).name
        print(f"worker {number}: rank {rank} was killed by {name}, and the worker with it", file=sys.stderr, flush=True)
        os.killpg(0, signal.SIGKILL)
