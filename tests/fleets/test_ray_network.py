"""Nodes with a network between them: each in a namespace of its own, with one link that is slow, or cut."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.ray_cluster import SOON

TESTS = Path(__file__).parent.parent
OURS, THEIRS = "10.77.0.1", "10.77.0.2"
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
        return all(
            done(*command.split())
            for command in (
                f"ip netns add {self.here}",
                f"ip netns add {self.there}",
                f"ip link add plink netns {self.here} type veth peer name plink netns {self.there}",
                f"ip -n {self.here} addr add {OURS}/24 dev plink",
                f"ip -n {self.there} addr add {THEIRS}/24 dev plink",
                *(f"ip -n {name} link set {link} up" for name in (self.here, self.there) for link in ("lo", "plink")),
            )
        )

    def cut(self) -> None:
        assert done("ip", "-n", self.here, "link", "set", "plink", "down")

    def mend(self) -> None:
        assert done("ip", "-n", self.here, "link", "set", "plink", "up")

    def delay(self, milliseconds: int) -> bool:
        queue = f"tc -n {self.here} qdisc add dev plink root netem delay {milliseconds}ms"
        return done(*queue.split())

    def start(self, namespace: str, *command: str) -> "subprocess.Popen[str]":
        inside = ["ip", "netns", "exec", namespace, *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = subprocess.Popen(
            inside, cwd=TESTS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(started)
        return started

    def node(self, address: str) -> "subprocess.Popen[str]":
        """A Ray node for one worker, elsewhere."""
        where = ("--address", address, "--node-ip-address", THEIRS)
        return self.start(self.there, str(RAY), "start", *where, "--num-cpus", "1", "--block", *SMALL)

    def close(self) -> None:
        for process in reversed(self._started):
            end_family(process)
        for name in (self.here, self.there):
            done("ip", "netns", "del", name)


SMALL = ("--object-store-memory", "100000000", "--disable-usage-stats")


def end_family(process: "subprocess.Popen[str]") -> None:
    family = []
    with suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=10)


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    try:
        if sys.platform != "linux" or not made.made():
            pytest.skip("this machine does not let us make network namespaces")
        yield made
    finally:
        made.close()


def test_a_node_whose_link_is_cut_is_missed_and_comes_back(link: Link, tmp_path: Path) -> None:
    """One worker shares the server's memory, the other one is behind the link."""
    delayed = link.delay(20)  # where the kernel can
    address = f"{OURS}:6379"
    head = ("--head", "--node-ip-address", OURS, "--port", "6379", "--num-cpus", "1", "--include-dashboard=false")
    settings = ("--system-config", json.dumps(SOON), "--temp-dir", str(tmp_path / "ray"))
    link.start(link.here, str(RAY), "start", *head, *settings, "--block", *SMALL)
    until(lambda: done("ip", "netns", "exec", link.here, *probe(address)))
    elsewhere = link.node(address)
    server = link.start(link.here, sys.executable, "-m", "support.networked", address, str(tmp_path))
    assert server.stdout is not None
    assert server.stdout.readline() == "trained\n"
    link.cut()
    until(lambda: "left" in trace(tmp_path))
    end_family(elsewhere)
    link.mend()
    link.node(address)
    until(lambda: trace(tmp_path).count('"joined"') == 3)
    (tmp_path / "enough").touch()
    told, errors = server.communicate()
    (line,) = [line for line in told.splitlines() if line.startswith("[[")]
    *first, left, back = json.loads(line)
    assert first == [["Joined", 0], ["Joined", 1]]
    assert (left[0], back) == ("Left", ["Joined", left[1]])
    assert f"worker {left[1]} " in errors
    assert delayed in (True, False)
    assert server.returncode == 0


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
