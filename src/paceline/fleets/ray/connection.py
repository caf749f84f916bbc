"""The connection to a Ray cluster: the only module that imports Ray.

It connects, reserves resources, starts actors and calls them. Nothing here knows what is trained. What goes wrong is a
``ConfigError`` of one line.
"""

import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import AuthenticationError, GetTimeoutError, RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from paceline.core.errors import ConfigError
from paceline.fleets.ray.addresses import TRUSTED, allowed, check_reachable, one_line
from paceline.fleets.ray.callbacks import CallbackThread

if TYPE_CHECKING:
    from paceline.fleets.ray.fleet import AddressTrust

CHECK_INTERVAL = 1.0  # seconds between two looks at the reservation of a machine whose node is gone
LOOK_INTERVAL = 0.02  # and while it is made
NODE_ID = "ray.io/node-id"  # the label that Ray itself gives to each node
LOCAL_STORE = 200 * 2**20  # bytes of the object store: workers of this machine use shared memory instead
OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # resources that Ray has arguments for
# Ray's concurrency groups of an actor: calls of one group run beside those of another.
CONTROL = "control"  # starts, halts, recalls
EXCHANGE = "exchange"  # orders and the weights that they need, back comes what there is to tell
SUMS = "sums"  # what is asked of a machine's memory
GROUPS = {CONTROL: 1, EXCHANGE: 8, SUMS: 1}  # and how many calls of each run at once

Then = Callable[[Any], None]  # called on the callback thread with the list of results, or with ``ActorGone``


@dataclass(frozen=True)
class ActorGone:
    """Instead of results: the actor is gone, and whether it had done anything is not known.

    stuck  it answered with an error, or not at all, so that its process may still run
    """

    reason: str
    stuck: bool = False


class Connection:
    """A connection to one cluster."""

    def __init__(
        self, address: str | None, wanted: Mapping[str, float], callbacks: CallbackThread, *, trusted: "AddressTrust"
    ) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            connect(address, wanted, trusted=trusted)
        elif address not in (None, "auto", ray.get_runtime_context().gcs_address):
            present = ray.get_runtime_context().gcs_address
            raise ConfigError(f"this process is connected to the Ray cluster at {present} already, not to {address}")
        self._callbacks = callbacks
        self._groups: list[PlacementGroup] = []  # of each reserved machine
        self._bundles: list[Mapping[str, float]] = []  # its resources
        self._labels: list[Mapping[str, str]] = []  # what its node has to have, if anything was wanted
        self._capacity: dict[int, tuple[float, bool]] = {}  # has it a node, and when that was looked at
        self._store: Any = None  # Ray's control store, once it was asked

    def nodes(self) -> list[Mapping[str, Any]]:
        """The nodes that are alive, as Ray describes them."""
        return [node for node in ray.nodes() if node["Alive"]]

    def resources(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """What is free in the cluster now, and what it has."""
        return ray.available_resources(), ray.cluster_resources()

    def reserve(
        self, each: Mapping[str, float], workers: int, *, within: float, spread: bool,
        labels: Sequence[Mapping[str, str]] = (),
    ) -> Sequence[Sequence[int]]:  # fmt: skip
        """Reserve resources for all workers. Returns which of them share a machine; nothing if there was no room.

        Ray first places each worker by itself, which tells how many fit where. Then the workers of a node are reserved
        as one bundle, so that they stay together: also when their node is lost, and another one takes them.

        Each machine has a group of its own, tied to its node. A group with other machines would be placed again by Ray
        when it loses a node, without a pause: Ray 2.60 keeps a core of the head busy until another node comes.
        """
        until = time.monotonic() + within
        first = _group([each] * workers, labels, spread=spread)
        try:
            if not _placed([first], until):
                return ()
            nodes = placement_group_table(first)["bundles_to_node_id"]
        finally:
            remove_placement_group(first)
        together: dict[str, list[int]] = {}
        for worker in range(workers):
            together.setdefault(nodes[worker], []).append(worker)
        machines = [*together.values()]
        self._bundles = [{name: amount * len(some) for name, amount in each.items()} for some in machines]
        self._labels = [{k: v for worker in some for k, v in labels[worker].items()} for some in machines if labels]
        self._groups = [_group([self._bundles[i]], [{NODE_ID: node}]) for i, node in enumerate(together)]
        if _placed(self._groups, time.monotonic() + within):
            return machines
        self._release()
        return ()

    def _node(self, machine: int) -> str:
        """The id of a reserved machine's node; none while its node is gone and no other one can take it."""
        found: str = placement_group_table(self._groups[machine])["bundles_to_node_id"].get(0, "")
        return found

    def _release(self) -> None:
        for group in self._groups:
            remove_placement_group(group)
        self._groups = []

    def machine_here(self) -> int:
        """The number of the reserved machine that is this process's own node; -1 if it is none of them."""
        here = self.node_here()
        return next((number for number in range(len(self._groups)) if self._node(number) == here), -1)

    def node_here(self) -> str:
        """The id of this process's own node."""
        here: str = ray.get_runtime_context().get_node_id()
        return here

    def draining(self, within: float) -> dict[str, float]:
        """The nodes that are drained, by id, and when each will be gone: in seconds of ``time.monotonic``, or ``inf``.

        Ray has no public function for it; this is what its own libraries use. It may take so many seconds.
        """
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        if self._store is None:
            self._store = GcsClient(address=ray.get_runtime_context().gcs_address)
        ahead = time.monotonic() - time.time()
        found: Mapping[str, int] = self._store.get_draining_nodes(timeout=within)
        return {node: ahead + milliseconds / 1000 if milliseconds else math.inf for node, milliseconds in found.items()}

    def has_capacity(self, machine: int) -> bool:
        """Whether a reserved machine has a node. It has none while its node is gone and no other one can take it."""
        now = time.monotonic()
        looked_at, has_one = self._capacity.get(machine, (-math.inf, False))
        if now - looked_at > CHECK_INTERVAL:
            has_one = bool(self._node(machine))
            self._capacity[machine] = now, has_one
        return has_one

    def is_gone(self, machine: int) -> bool:
        """Whether the node that a machine was reserved on is gone: what was to start there never will."""
        return bool(placement_group_table(self._groups[machine])["state"] == "RESCHEDULING")

    def start(self, kind: type, bundle: int) -> "ActorHandle":
        """Start an actor of a class that takes all of one bundle. It may have to wait until the bundle is free.

        A machine whose node is gone is reserved anew, wherever there is room.
        """
        resources = self._bundles[bundle]
        if self.is_gone(bundle):
            remove_placement_group(self._groups[bundle])
            self._groups[bundle] = _group([resources], self._labels[bundle : bundle + 1])
        named = {OPTIONS[name]: amount for name, amount in resources.items() if name in OPTIONS}
        rest = {name: amount for name, amount in resources.items() if name not in OPTIONS}
        place = PlacementGroupSchedulingStrategy(self._groups[bundle], placement_group_bundle_index=0)
        remote = ray.remote(concurrency_groups=GROUPS)(kind).options(
            **{"num_cpus": 0, **named}, resources=rest, max_restarts=0, max_task_retries=0, scheduling_strategy=place,
        )  # fmt: skip
        return ActorHandle(remote.remote(), self._callbacks)

    def start_on(self, kind: type, machines: Sequence[int]) -> "list[ActorHandle]":
        """Start actors of a class that need no resources, one on the node of each of these machines."""
        return [
            ActorHandle(
                ray.remote(kind).options(
                    num_cpus=0, max_restarts=0, max_task_retries=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(self._node(machine), soft=True),
                ).remote(),
                self._callbacks,
            )
            for machine in machines
        ]  # fmt: skip

    def put(self, value: Any) -> Any:
        """Put a value into the object store: each node fetches it once, when an actor there needs it."""
        return ray.put(value)

    def close(self) -> None:
        self._release()
        if self._ours:
            ray.shutdown()


def _group(
    bundles: Sequence[Mapping[str, float]], labels: Sequence[Mapping[str, str]], *, spread: bool = False
) -> PlacementGroup:
    return placement_group(
        [dict(each) or {"CPU": 0.001} for each in bundles], strategy="SPREAD" if spread else "PACK",
        **({"bundle_label_selector": [dict(label) for label in labels]} if labels else {}),
    )  # fmt: skip


def _placed(groups: Sequence[PlacementGroup], until: float) -> bool:
    """Wait until all of them are placed. ``ready()`` of Ray would start a process on each node for it."""
    while any(placement_group_table(group)["state"] != "CREATED" for group in groups):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_INTERVAL)
    return True


class ActorHandle:
    """An actor, to be called."""

    def __init__(self, handle: Any, callbacks: CallbackThread) -> None:
        self._handle = handle
        self._callbacks = callbacks
        self._methods: dict[tuple[str, int, str], Any] = {}

    def call(self, then: Then, method: str, *arguments: Any, results: int = 1, group: str = "") -> None:
        """Call a method at most once. It may return several results, each of which Ray sends by itself.

        An exception of the method counts as ``ActorGone`` too: actors return what they have to say.
        """
        made = self._method(method, results, group).remote(*arguments)
        first, *rest = made if results > 1 else [made]
        first.future().add_done_callback(lambda future: self._callbacks.schedule(lambda: then(_results(future, rest))))

    def send(self, method: str, *arguments: Any, group: str) -> None:
        """Call a method; the result is ignored."""
        self._method(method, 1, group).remote(*arguments)

    def ask(self, method: str, *arguments: Any, results: int, group: str) -> Callable[[float], Any]:
        """Call a method. Returns a function that waits so many seconds for the results, as ``look`` does."""
        made = self._method(method, results, group).remote(*arguments)
        references = made if results > 1 else [made]
        return lambda within: self.look(references, within)

    def look(self, references: Sequence[Any], within: float) -> Any:
        """The values of references, or ``ActorGone``; nothing if they are not there within so many seconds."""
        try:
            return ray.get(list(references), timeout=within)
        except GetTimeoutError:
            return None
        except Exception as error:
            return _gone(error)

    def results(self, references: Sequence[Any], within: float) -> Any:
        """The values of references, or ``ActorGone``. Waits so many seconds."""
        found = self.look(references, within)
        return ActorGone(f"did not answer for {within:g} s", stuck=True) if found is None else found

    def ask_references(self, method: str, *arguments: Any, results: int, group: str) -> list[Any]:
        """Call a method. Returns references to its results, which other actors may be handed."""
        made = self._method(method, results, group).remote(*arguments)
        return list(made) if results > 1 else [made]

    def _method(self, method: str, results: int, group: str) -> Any:
        bound = self._methods.get((method, results, group))
        if bound is None:
            chosen = {"num_returns": results, **({"concurrency_group": group} if group else {})}
            bound = self._methods[method, results, group] = getattr(self._handle, method).options(**chosen)
        return bound

    def kill(self) -> None:
        ray.kill(self._handle)


def kill_on(node: str, pid: int, started: int) -> None:
    """Kill a process of a node, even one that is stopped: Ray itself only asks it to end.

    started  its ``start_time``: another process may have its number by now
    """
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(pid, started)


def start_time(pid: int) -> int:
    """When a process of this machine was started, in ticks of its clock."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _kill(pid: int, started: int) -> None:
    with suppress(OSError):  # it has ended
        descriptor = os.pidfd_open(pid)
        try:
            if start_time(pid) == started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def fetched(reference: Any) -> Any:
    """In an actor: the value of a reference."""
    return ray.get(reference)


def this_node() -> tuple[str, str]:
    """In an actor: the id and the address of its node."""
    address: str = ray.util.get_node_ip_address()
    return ray.get_runtime_context().get_node_id(), address


def _results(future: "Future[Any]", rest: Sequence[Any]) -> Any:
    try:
        return [future.result(), *(ray.get(rest) if rest else ())]
    except Exception as error:
        return _gone(error)


def _gone(error: Exception) -> ActorGone:
    line = one_line(error)
    if not isinstance(error, RayActorError):
        return ActorGone(f"ended ({type(error).__name__}: {line[-200:]})", stuck=True)
    if "creation task" in line:  # such as a module that its node does not have
        return ActorGone(f"could not start ({line[-200:]})")
    return ActorGone("ended with its node" if "node" in line.partition("died because")[2] else "ended")


# Connecting.


def connect(address: str | None, wanted: Mapping[str, float], *, trusted: "AddressTrust") -> None:
    """Connect this process to a cluster, or start one on this machine that has the ``wanted`` resources.

    Only a ``trusted`` address, or one that the environment names, is connected to; and only such an address is sent
    this machine's token, not if ``trusted`` says without. The user's own cluster, ``"auto"``, gets it.
    """
    if address is not None:
        address, trusted = allowed(address, trusted)
    try:
        with warnings.catch_warnings(), _sigterm_kept():
            warnings.simplefilter("ignore", FutureWarning)  # about accelerator variables, which are not set here
            if address is None:
                cores = max(len(os.sched_getaffinity(0)), math.ceil(wanted.get("CPU", 0)))
                rest = {name: amount for name, amount in wanted.items() if name not in OPTIONS}
                ray.init(
                    "local", num_cpus=cores, resources=rest, object_store_memory=LOCAL_STORE,
                    include_dashboard=False, logging_level=logging.ERROR,
                )  # fmt: skip
            else:
                check_reachable(address)
                _send_token(address, trusted=trusted is True)
                ray.init(address, namespace=f"paceline-{os.getpid()}-{time.time_ns()}", logging_level=logging.ERROR)
    except ConfigError:
        raise
    except Exception as error:  # Ray raises even plain exceptions
        ray.shutdown()
        line = one_line(error)
        if isinstance(error, AuthenticationError) or "InvalidAuthToken" in str(error.__cause__):
            raise ConfigError(
                f"the Ray cluster at {address} wants another token than this machine has: see ray get-auth-token there"
            ) from None
        if "ersion mismatch" in line:
            raise ConfigError(f"this process does not fit the Ray cluster at {address}: {line}") from None
        raise ConfigError(f"no Ray cluster at {address or 'this machine'} could be used: {line[:300]}") from None


def _send_token(address: str, *, trusted: bool) -> None:
    """Send this machine's token to a cluster that asks for one: Ray does so only for clusters that it finds itself."""
    untrusted = ConfigError(
        f"the Ray cluster at {address} would be sent this machine's token, and only a file names that address: if you "
        f"trust it, give --address {address}, or set {TRUSTED}={address}"
    )
    if not trusted and os.environ.get("RAY_AUTH_MODE", "").lower() == "token":  # then Ray sends it to any address
        raise untrusted
    if "RAY_AUTH_MODE" in os.environ:
        return
    with suppress(ImportError):  # private names of Ray: where they are gone, Ray decides about the token
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        try:
            GcsClient(address=address)
        except AuthenticationError:
            if not trusted:
                raise untrusted from None
            logging.getLogger("ray").setLevel(logging.ERROR)  # it would log that there is a token
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
            GcsClient(address=address)


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray's own would abort, and a run has to write a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():  # Python allows it there only
            signal.signal(signal.SIGTERM, before)
