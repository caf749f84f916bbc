"""Two nodes, each in a network namespace of its own: the link between them is slow, and is cut."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import paceline as pl
from paceline.core.messages import Arrived
from support.link import DEVICE
from support.networked import ELSEWHERE
from support.processes import PATIENCE
from support.ray_cluster import SOON

TESTS = Path(__file__).parents[2]
OURS, THEIRS = "10.77.0.1", "10.77.0.2"
TOKEN = secrets.token_hex(16)
RAY = Path(sys.executable).with_name("ray")


def done(*command: str) -> bool:
    found = shutil.which(command[0]) is not None
    return found and subprocess.run(command, capture_output=True, check=False).returncode == 0


class Link:
    """Two namespaces: the server's, and that of another machine."""

    def __init__(self) -> None:
        self.here, self.there = f"pl{os.getpid()}a", f"pl{os.getpid()}b"
        self._started: list[subprocess.Popen[str]] = []

    def made(self) -> bool:
        sides = ((self.here, OURS, THEIRS), (self.there, THEIRS, OURS))
        return all(
            done(*command.split())
            for name, own, others in sides
            for command in (
                f"ip netns add {name}",
                f"ip -n {name} tuntap add dev {DEVICE} mode tun",
                f"ip -n {name} addr add {own} peer {others} dev {DEVICE}",
                f"ip -n {name} link set lo up",
                f"ip -n {name} link set {DEVICE} up",
            )
        )

    def carry(self, milliseconds: int) -> None:
        """Packets from one to the other, from now on, each so much later."""
        command = sys.executable, "-m", "support.link", self.here, self.there, str(milliseconds)
        self._carrier = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._started.append(self._carrier)
        assert self._carrier.stdout is not None
        assert self._carrier.stdout.readline() == "up\n"

    def carried(self) -> list[int]:
        """Bytes so far, in both directions."""
        self.tell("bytes")
        assert self._carrier.stdout is not None
        return [int(each) for each in self._carrier.stdout.readline().split()]

    def tell(self, command: str) -> None:
        """``cut``, ``mend``, or ``rate`` and megabits a second."""
        assert self._carrier.stdin is not None
        self._carrier.stdin.write(f"{command}\n")
        self._carrier.stdin.flush()

    def start(self, namespace: str, *command: str, **variables: str) -> "subprocess.Popen[str]":
        inside = ["ip", "netns", "exec", namespace, *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_TOKEN": TOKEN, **variables}
        started = subprocess.Popen(
            inside, cwd=TESTS, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._started.append(started)
        return started

    def node(self, address: str) -> "subprocess.Popen[str]":
        """A Ray node elsewhere: for one worker, or for two that ask for it."""
        where = ("--address", address, "--node-ip-address", THEIRS, "--resources", json.dumps({ELSEWHERE: 2}))
        return self.start(self.there, str(RAY), "start", *where, "--num-cpus", "1", "--block", *SMALL, **LOCKED)

    def close(self) -> None:
        for process in reversed(self._started):
            end_family(process)
        for name in (self.here, self.there):
            done("ip", "netns", "del", name)


SMALL = ("--object-store-memory", "100000000", "--disable-usage-stats")
LOCKED = {"RAY_AUTH_MODE": "token"}


def end_family(process: "subprocess.Popen[str]") -> None:
    family = []
    with suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=PATIENCE)


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    try:
        if sys.platform != "linux" or not made.made():
            pytest.skip("this machine does not let us make network namespaces")
        yield made
    finally:
        made.close()


@pytest.fixture
def session() -> Iterator[Path]:
    """Where Ray keeps its sockets: their names must not be longer than 107 characters."""
    with tempfile.TemporaryDirectory(prefix="pl", ignore_cleanup_errors=True) as made:
        yield Path(made)


def test_a_node_behind_a_narrow_link_that_is_cut_and_mended(link: Link, session: Path, tmp_path: Path) -> None:
    """First two workers are behind a link of 100 Mbit/s. Then one of two is, and the link is cut."""
    link.carry(milliseconds=10)
    address = f"{OURS}:6379"
    head = ("--head", "--node-ip-address", OURS, "--port", "6379", "--num-cpus", "1", "--include-dashboard=false")
    settings = ("--system-config", json.dumps(SOON), "--temp-dir", str(session))
    link.start(link.here, str(RAY), "start", *head, *settings, "--block", *SMALL, **LOCKED)
    until(lambda: done("ip", "netns", "exec", link.here, *probe(address)))
    elsewhere = link.node(address)
    check_narrow(link, address)
    command = sys.executable, "-m", "support.networked", address, str(tmp_path)
    stranger = link.start(link.here, *command, RAY_AUTH_TOKEN="of another cluster")
    server = link.start(link.here, *command)
    assert "wants another token than this machine has" in stranger.communicate()[1]
    assert server.stdout is not None
    assert server.stdout.readline() == "trained\n", server.communicate()[1]
    link.tell("cut")
    until(lambda: "left" in trace(tmp_path))
    end_family(elsewhere)
    link.tell("mend")
    link.node(address)
    until(lambda: trace(tmp_path).count('"joined"') == 3)
    (tmp_path / "enough").touch()
    told, errors = server.communicate()
    (line,) = [line for line in told.splitlines() if line.startswith("[[")]
    *first, left, back = json.loads(line)
    assert first == [["Joined", 0], ["Joined", 1]]
    assert (left[0], back) == ("Left", ["Joined", left[1]])
    assert f"worker {left[1]} " in errors
    assert server.returncode == 0


def check_narrow(link: Link, address: str) -> None:
    """An update takes as long, and as many bytes, as the simulator says: one sum and one set of weights for two."""
    updates, parameters = 9, 500_000
    link.tell("rate 100")
    server = link.start(link.here, sys.executable, "-m", "support.shaped", address, str(parameters), str(updates))
    assert server.stdin is not None
    assert server.stdout is not None
    points = []
    for _ in range(3):
        line = server.stdout.readline()
        assert line, server.communicate()[1]
        points.append((float(line), link.carried()))
        server.stdin.write("\n")
        server.stdin.flush()
    assert server.wait(60) == 0
    link.tell("rate inf")
    (began, before), _, (ended, after) = points
    made = updates * 2 // 3
    machines = pl.Machines(2, gigabits=0.1, latency=0.01, message_bytes=4 * parameters)
    simulated = pl.SimulatedFleet([pl.delays.Constant(0.05)] * 2, machines=machines)
    trace = pl.simulate(pl.Synchronous(), simulated, pl.Stop(updates=updates))
    predicted = max(fact.at for fact in trace if isinstance(fact, Arrived)) / updates
    assert predicted == pytest.approx(0.05 + 2 * 0.16 + 4 * 0.01, rel=0.1)
    assert 0.8 * predicted < (ended - began) / made < 3 * predicted  # Ray has to ask before it sends; a busy machine
    for one, other in zip(before, after, strict=True):  # packets have headers, and Ray talks besides
        assert 1.0 <= (other - one) / (made * 4 * parameters) < 1.25


def probe(address: str) -> list[str]:
    host, _, port = address.partition(":")
    return [sys.executable, "-c", f"import socket; socket.create_connection(({host!r}, {port}), timeout=1)"]


def trace(directory: Path) -> str:
    file = directory / "run" / "trace.jsonl"
    return (
        "".join(line for line in file.read_text().splitlines() if line[:3] in ('["j', '["l')) if file.exists() else ""
    )


def until(happened: Callable[[], bool], seconds: float = 150.0) -> None:
    limit = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.2)
