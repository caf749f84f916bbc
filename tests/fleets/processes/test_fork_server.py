"""The process that starts workers may be killed or stopped like any other: the run goes on, and nothing is left."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.core.messages import Event, Joined, Left
from paceline.fleets.processes import fork_server
from paceline.fleets.processes.fork_server import FORK_SERVER, PIDFD_SIGNAL_PROCESS_GROUP, ForkedProcess
from paceline.fleets.processes.group import ProcessWorkers
from paceline.learning.workload import workload_of
from support import faults
from support.digits import digits_task, linear
from support.processes import wait_until_gone

TESTS = Path(__file__).parents[2]


@contextmanager
def running(workers: int, task: pl.Task | None = None, **options: Any) -> Iterator[ProcessWorkers]:
    group, _ = pl.ProcessFleet(workers, **options).launch(workload_of(task or digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        yield group


def heard(group: ProcessWorkers, until: set[int]) -> list[Event]:
    """What happens until these workers have joined."""
    events: list[Event] = []
    while not until <= {event.worker for event in events if isinstance(event, Joined)}:
        events += group.wait()
    return events


def is_stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.001)


def test_a_worker_that_was_asked_for_and_never_started_counts_as_ended(caplog: pytest.LogCaptureFixture) -> None:
    with running(2) as group:
        stop(FORK_SERVER.pid)
        os.kill(group.pids[0], signal.SIGKILL)
        (left,) = group.wait()  # noticed without the fork server's help, and a replacement was asked for
        assert isinstance(left, Left)
        before = FORK_SERVER.pid
        os.kill(before, signal.SIGKILL)  # it has read nothing: the request dies with it, and so does the other worker
        assert [event.worker for event in heard(group, {0, 1}) if isinstance(event, Left)] == [1]
        assert FORK_SERVER.pid != before
    assert "worker 0 could not be started" in caplog.text
    assert "worker 1 ended with the fork server" in caplog.text


def test_one_that_is_stopped_is_ended_when_somebody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(2) as group:
        monkeypatch.setattr(fork_server, "START_WITHIN", 0.3)
        before = FORK_SERVER.pid
        stop(before)
        os.kill(group.pids[0], signal.SIGKILL)
        (left,) = group.wait()
        assert isinstance(left, Left)
        joined = group.wait()
        monkeypatch.setattr(fork_server, "START_WITHIN", 60.0)  # for the next one, whatever the machine is at
        heard(group, {0, 1} - {event.worker for event in joined if isinstance(event, Joined)})
        assert FORK_SERVER.pid != before
    assert "was not ready after" in caplog.text


def test_a_run_ends_while_it_is_stopped() -> None:
    with running(2) as group:
        pids = [*group.pids.values()]
        stop(FORK_SERVER.pid)
    try:
        wait_until_gone(pids)
    finally:
        os.kill(FORK_SERVER.pid, signal.SIGCONT)


def test_nobody_waits_for_one_that_reads_no_requests() -> None:
    """A few fill its socket here. What does not fit is sent when it goes on."""
    with running(9) as group:
        server = FORK_SERVER._process
        assert server is not None
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)  # the least that there is
        stop(FORK_SERVER.pid)
        began = time.monotonic()
        for pid in group.pids.values():
            os.kill(pid, signal.SIGKILL)
        left: set[int] = set()
        while len(left) < 9:
            left |= {event.worker for event in group.wait() if isinstance(event, Left)}
        waited = time.monotonic() - began
        asked = [worker.process for worker in group.supervisor]
        waiting = [each for each in asked if isinstance(each, ForkedProcess) and each._request.waits]
        os.kill(FORK_SERVER.pid, signal.SIGCONT)
        assert 0 < len(waiting) < 9
        assert waited < 30  # nine times a second that the fork server has to tell how a worker ended, if it is busy
        heard(group, set(range(9)))
        assert FORK_SERVER.pid == server.pid


def test_whoever_waits_for_others_to_be_forked_has_more_time() -> None:
    with running(1) as group:
        server = FORK_SERVER._process
        assert server is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            request = fork_server._Request(1)  # it is not sent, and so never answered
            waiting = ForkedProcess(ours, server, request)
            before = waiting.start_timeout
            os.kill(group.pids[0], signal.SIGKILL)
            heard(group, {0})
            after = waiting.start_timeout
        assert before == fork_server.START_WITHIN
        assert after is not None
        assert after > before


@pytest.mark.parametrize("stopped", [False, True])
def test_an_older_kernel_kills_what_a_worker_started_by_its_number_while_that_is_its_own(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server has done so when it tells the end, and then another process may have that number."""
    usual, killed = signal.pidfd_send_signal, list[int]()

    def of_an_older_kernel(pidfd: int, number: int, siginfo: None, flags: int) -> None:
        if flags == PIDFD_SIGNAL_PROCESS_GROUP:
            raise OSError(errno.EINVAL, "Invalid argument")
        usual(pidfd, number, siginfo, flags)

    monkeypatch.setattr(signal, "pidfd_send_signal", of_an_older_kernel)
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append(pid))
    with running(1) as group:
        if stopped:
            stop(FORK_SERVER.pid)
        pid = group.pids[0]
        os.kill(pid, signal.SIGKILL)
        group.wait()
        if stopped:
            os.kill(FORK_SERVER.pid, signal.SIGCONT)
        assert killed == ([pid] if stopped else [])
        heard(group, {0})


def test_more_processes_than_a_machine_can_have_are_not_started() -> None:
    for fleet in (pl.ProcessFleet(1025), pl.ProcessFleet(513, ranks_per_worker=2), pl.ProcessFleet(10**6)):
        with pytest.raises(pl.ConfigError, match=r"^1.* processes on one machine are too many: at most 1,024"):
            fleet.launch(workload_of(digits_task(), [], 32), seed=0)
    with pytest.raises(pl.ConfigError, match="threads="):
        pl.ProcessFleet(1, threads=10**30)


class Telling(nn.Module):
    """Writes down of each process what it had loaded when it began."""

    def __init__(self, model: nn.Module, directory: Path) -> None:
        super().__init__()
        self.model, self.directory, self.told = model, directory, False

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not self.told:
            (self.directory / str(os.getpid())).write_text(str("torch._dynamo" in sys.modules))
            self.told = True
        outputs: Tensor = self.model(inputs)
        return outputs


def test_a_run_goes_on_when_it_is_killed_and_the_next_one_loads_what_it_had_loaded(tmp_path: Path) -> None:
    for name in ("marks", "told"):
        (tmp_path / name).mkdir()
    model = faults.Struck(Telling(linear(), tmp_path / "told"), faults.kill_the_fork_server, tmp_path / "marks")
    run = pl.train(
        replace(digits_task(model), evaluate=lambda model: {"loss": 0.0}), strategy=pl.ModelAveraging(every=2),
        fleet=pl.ProcessFleet(2), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(updates=8), progress=False,
    )  # fmt: skip
    assert (run.ended, run.history[-1].updates) == ("updates", 8)
    told = [path.read_text() for path in (tmp_path / "told").iterdir() if path.name != str(os.getpid())]
    assert len(told) >= 3  # two, and those that came after them
    assert set(told) == {"True"}


class SlowToUnpack(nn.Module):
    def __init__(self, model: nn.Module, slow: Path, going_on: Path) -> None:
        super().__init__()
        self.model, self.slow, self.going_on = model, slow, going_on

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        while self.slow.exists() and not self.going_on.exists():
            time.sleep(0.01)


def test_a_replacement_may_take_as_long_to_start_as_a_first_worker(tmp_path: Path) -> None:
    slow, going_on = tmp_path / "slow", tmp_path / "going on"
    task = digits_task(SlowToUnpack(linear(), slow, going_on))
    deadline = pl.SilenceTimeout(factor=2.0, at_least=0.1, at_first=120.0)
    with running(1, task, deadline=deadline) as group:
        (worker,) = group.supervisor.workers
        worker.history.add(0.001)  # a mini-batch took no time at all
        slow.touch()
        os.kill(group.pids[0], signal.SIGKILL)
        assert [type(event) for event in group.wait()] == [Left]
        began = group.waited
        while group.waited < began + 0.6:  # six times what is learnt
            group._wait_once()
        going_on.touch()
        assert [type(event) for event in group.wait()] == [Joined]
        assert worker.failures == 1


# What outlives nobody


def test_all_die_with_the_server_even_if_they_are_stopped(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-m", "support.endless_processes", str(pids)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "trained\n"
    while not (pids.exists() and len(pids.read_text().split()) == 3):  # one worker may train while another starts them
        assert parent.poll() is None
        time.sleep(0.01)
    (fork_server,) = psutil.Process(parent.pid).children()
    workers = [each.pid for each in fork_server.children()]
    family = [fork_server.pid, *workers, *map(int, pids.read_text().split())]
    stop(workers[0])
    stop(fork_server.pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(family)


def test_what_user_code_starts_in_a_worker_goes_with_the_run(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    model = faults.Struck(linear(), partial(faults.start_helpers, pids), tmp_path, at=0)
    pl.train(
        replace(digits_task(model), evaluate=lambda model: {"loss": 0.0}), strategy=pl.Synchronous(),
        fleet=pl.ProcessFleet(2), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(updates=2), progress=False,
    )  # fmt: skip
    wait_until_gone([int(pid) for pid in pids.read_text().split()])


def test_workers_have_sessions_of_their_own() -> None:
    with running(1) as group:
        worker = group.pids[0]
        assert os.getsid(worker) == worker  # what it starts can be told from what others have
        assert os.getsid(FORK_SERVER.pid) == FORK_SERVER.pid  # a signal to the whole group is for the server
