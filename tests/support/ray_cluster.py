"""A cluster of several Ray nodes on this machine, each with a raylet and an object store of its own."""

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil

os.environ.setdefault("RAY_raylet_start_wait_time_s", "200")  # a busy machine; Ray reads it when it is loaded

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

from paceline.fleets.ray.fleet import PersistentRayFleet

STORE = 120 * 2**20  # bytes; Ray wants 75 MiB at least
SOON = {  # a node that is gone is noticed within seconds, instead of a quarter of a minute
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
HERE = {"here": 1.0}  # the resources of a worker on the head, which is the server's own node
RAYS_OWN = ("raylet", "gcs_server")
MARKS = ("PACELINE_TEST_RUN", "PYTEST_XDIST_WORKER")  # in the environment of all that a test process starts


class Nodes:
    """The cluster, as tests use it."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.address: str = cluster.address

    def add(self, cpus: int, **options: Any) -> Any:
        return _patiently(lambda: self.cluster.add_node(num_cpus=cpus, object_store_memory=STORE, **options))

    def kill(self, node: Any) -> None:
        """The raylet of a node, without a word: its workers end with it."""
        node.kill_raylet(check_alive=False)

    def drain(self, node: Any, seconds: float) -> None:
        """As ``ray drain-node`` does, which tells that a node will be taken away, and takes nothing away."""
        at = int((time.time() + seconds) * 1000)
        assert GcsClient(address=self.address).drain_node(node.node_id, DRAIN_NODE_REASON_PREEMPTION, "spot", at)[0]

    def actors(self, kind: str = "Agent") -> list[psutil.Process]:
        """The processes of all actors of a class on all nodes."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self.cluster.list_all_nodes()}
        running = [each for each in psutil.process_iter(["name", "ppid"]) if each.info["ppid"] in raylets]
        return [each for each in running if each.info["name"].startswith(f"ray::{kind}")]

    def remove(self, node: Any) -> None:
        """The rest of a node."""
        self.cluster.remove_node(node, allow_graceful=False)


@contextmanager
def nodes(cpus: Sequence[int], head: int = 0) -> Iterator[Nodes]:
    """One node for each number of CPUs, and a head for those who ask for ``HERE``. Nothing is left of it afterwards."""
    before = mine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own: of files that it leaves open, of settings to come
        first = {
            "num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "_system_config": SOON,
            "resources": {"here": float(head)} if head else {},
        }  # fmt: skip
        cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=first, shutdown_at_exit=True))
        found = Nodes(cluster)
        try:
            for each in cpus:
                found.add(each)
            yield found
        finally:
            cluster.shutdown()
    until = time.monotonic() + 60
    while left := mine() - before:
        assert time.monotonic() < until, f"still running: {[psutil.Process(pid).cmdline()[:3] for pid in left]}"
        for pid in left:
            _end_if_starting(pid)
        time.sleep(0.1)


def like(fleet: PersistentRayFleet, **settings: Any) -> PersistentRayFleet:
    """The same agents with other settings of a run."""
    return replace(fleet, fleet=replace(fleet.fleet, **settings))


def _patiently(start: Callable[[], Any]) -> Any:
    """Once more if the machine is too busy: Ray gives a node half a minute to start, and no choice.

    A node also takes SIGTERM for itself, and would end the tests that come later in this process.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        return start()
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        return start()
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_if_starting(pid: int) -> None:
    """A process of Ray that was starting when its raylet was killed gives up by itself, but only after a minute."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if any(each.endswith("default_worker.py") for each in process.cmdline()):  # it has no other name yet
            process.kill()


def mine() -> set[int]:
    """Processes of Ray that descend from this one, or whose parent is gone. Those of other test processes are not."""
    own, found = os.getpid(), set()
    for process in psutil.process_iter(["name", "ppid", "cmdline"]):
        name, line = (
            process.info["name"] or "",
            " ".join(each for each in process.info["cmdline"] or () if " " not in each),
        )
        if process.info["ppid"] in (own, 1) and (name in RAYS_OWN or "/ray/" in line or name.startswith("ray::")):
            with suppress(psutil.Error):
                there = process.environ()
                if all(there.get(mark) == os.environ.get(mark) for mark in MARKS):
                    found.add(process.pid)
    return found
