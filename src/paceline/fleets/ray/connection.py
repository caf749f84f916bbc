"""The one file that knows Ray: connecting, placing, calling. What goes wrong is told in one line.

Nothing here knows what is trained. The rest of Paceline sees a ``Connection`` and its ``Handle`` objects.
"""

import logging
import math
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import AuthenticationError, GetTimeoutError, RayActorError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from paceline.core.errors import ConfigError
from paceline.fleets.ray.capacity import check_labels, check_room, listed, shown

REACHED_WITHIN = 5.0  # seconds until a cluster must have answered
PLACED_WITHIN = 10.0  # seconds that others may take to free what is missing
LOOK_FOR_ROOM = 1.0  # seconds between looks
TRUSTED = "PACELINE_TRUSTED_ADDRESSES"  # in the environment: those that may be sent the token, with commas in between
OF_THIS_MACHINE = ("auto", "local")  # instead of an address
LOCAL_STORE = 200 * 2**20  # bytes: workers of this machine share memory of their own
OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # resources that Ray has arguments for
ASIDE = "aside"  # calls that are answered while another one runs
ALIVE = "alive"  # one call that never returns

Note = Callable[[Callable[[], None]], None]  # has something done in a thread in which one may wait
Then = Callable[[Any], None]  # called there with the answers, or with ``Gone``


@dataclass(frozen=True)
class Gone:
    """Instead of answers: the actor is gone, and whether it had done anything is not known."""

    why: str


class Connection:
    """To one cluster, for one run."""

    def __init__(self, address: str | None, wanted: Mapping[str, float], note: Note, *, trusted: bool) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(address, wanted, trusted=trusted)
        elif address not in (None, "auto", ray.get_runtime_context().gcs_address):
            present = ray.get_runtime_context().gcs_address
            raise ConfigError(f"this process is connected to the Ray cluster at {present} already, not to {address}")
        self._note = note
        self._group: PlacementGroup | None = None
        self._looked, self._room = -math.inf, True

    def place(
        self, each: Mapping[str, float], workers: int, *, spread: bool, labels: Sequence[Mapping[str, str]] = ()
    ) -> None:
        """Have resources set aside for all workers; say what is missing if there is no room for them."""
        self._each = dict(each)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        check_room(each, workers, nodes)
        check_labels(each, labels, nodes)
        self._group = placement_group(
            [dict(each) or {"CPU": 0.001}] * workers, strategy="SPREAD" if spread else "PACK",
            **({"bundle_label_selector": [dict(label) for label in labels]} if labels else {}),
        )  # fmt: skip
        try:
            ray.get(self._group.ready(), timeout=PLACED_WITHIN)
        except GetTimeoutError:
            raise ConfigError(
                f"{workers} workers of {shown(each)} found no room within {PLACED_WITHIN:g} s: "
                f"{shown(ray.available_resources())} is free now, of {shown(ray.cluster_resources())}"
                + (f"; wanted labels: {', '.join(listed(labels))}" if labels else "")
            ) from None

    def has_room(self) -> bool:
        """Are all places there? Not while one was on a node that is gone, and no other node has room for it."""
        now = time.monotonic()
        if now - self._looked > LOOK_FOR_ROOM:
            self._looked = now
            self._room = placement_group_table(self._group)["state"] == "CREATED"
        return self._room

    def start(self, kind: type, place: int) -> "Handle":
        """An actor of a class, in one of the places that were set aside. It may have to wait until there is one."""
        named = {OPTIONS[name]: amount for name, amount in self._each.items() if name in OPTIONS}
        rest = {name: amount for name, amount in self._each.items() if name not in OPTIONS}
        remote = ray.remote(concurrency_groups={ASIDE: 1, ALIVE: 1})(kind).options(
            **{"num_cpus": 0, **named}, resources=rest, max_restarts=0, max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place),
        )  # fmt: skip
        return Handle(remote.remote(), self._note)

    def put(self, value: Any) -> Any:
        """Into the object store: each node gets it once, when somebody there needs it."""
        return ray.put(value)

    def close(self) -> None:
        if self._group is not None:
            remove_placement_group(self._group)
        if self._ours:
            ray.shutdown()


class Handle:
    """An actor."""

    def __init__(self, handle: Any, note: Note) -> None:
        self._handle = handle
        self._note = note
        self._methods: dict[tuple[str, int, str], Any] = {}

    def ask(self, then: Then, method: str, *arguments: Any, answers: int = 1, group: str = "") -> None:
        """Call a method; it is answered at most once. It may return several answers, each of which is sent by itself.

        Whatever it raises by itself is a ``Gone`` too: actors are to return what they have to say.
        """
        call = self._methods.get((method, answers, group))
        if call is None:
            chosen = {"num_returns": answers, **({"concurrency_group": group} if group else {})}
            call = self._methods[method, answers, group] = getattr(self._handle, method).options(**chosen)
        made = call.remote(*arguments)
        first, *rest = made if answers > 1 else [made]
        first.future().add_done_callback(lambda future: self._note(lambda: then(_answers(future, rest))))

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method aside of what it is at; nobody waits for an answer."""
        getattr(self._handle, method).options(concurrency_group=ASIDE).remote(*arguments)

    def kill(self) -> None:
        ray.kill(self._handle)


def kill_on(node: str, pid: int) -> None:
    """Kill a process of a node, even one that is stopped: Ray only asks it to end."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def this_node() -> tuple[str, str]:
    """In an actor: the node that it is on, by Ray's number and by its address."""
    address: str = ray.util.get_node_ip_address()
    return ray.get_runtime_context().get_node_id(), address


def _answers(future: "Future[Any]", rest: Sequence[Any]) -> Any:
    try:
        return [future.result(), *(ray.get(rest) if rest else ())]
    except RayActorError as error:
        line = _line(error)
        if "creation task" in line:  # such as a module that its node does not have
            return Gone(f"could not start ({line[-200:]})")
        return Gone("ended with its node" if "node" in line.partition("died because")[2] else "ended")
    except Exception as error:
        return Gone(f"ended ({type(error).__name__}: {_line(error)[-200:]})")


# Connecting: what can be wrong with a cluster.


def _connect(address: str | None, wanted: Mapping[str, float], *, trusted: bool) -> None:
    try:
        with warnings.catch_warnings(), _termination_as_it_was():
            warnings.simplefilter("ignore", FutureWarning)  # of variables for accelerators, which nobody here sets
            if address is None:
                cores = max(len(os.sched_getaffinity(0)), math.ceil(wanted.get("CPU", 0)))
                rest = {name: amount for name, amount in wanted.items() if name not in OPTIONS}
                ray.init(
                    "local", num_cpus=cores, resources=rest, object_store_memory=LOCAL_STORE,
                    include_dashboard=False, logging_level=logging.ERROR,
                )  # fmt: skip
            else:
                _check_reachable(address)
                _present_token(address, trusted=trusted or _is_trusted(address))
                ray.init(address, namespace=f"paceline-{os.getpid()}-{time.time_ns()}", logging_level=logging.ERROR)
    except ConfigError:
        raise
    except Exception as error:  # whatever it is: Ray raises even plain ones
        ray.shutdown()
        line = _line(error)
        if isinstance(error, AuthenticationError) or "InvalidAuthToken" in str(error.__cause__):
            raise ConfigError(
                f"the Ray cluster at {address} wants another token than this machine has: see ray get-auth-token there"
            ) from None
        if "ersion mismatch" in line:
            raise ConfigError(f"this process does not fit the Ray cluster at {address}: {line}") from None
        raise ConfigError(f"no Ray cluster at {address or 'this machine'} could be used: {line[:300]}") from None


def _is_trusted(address: str) -> bool:
    """Whether it may be sent this machine's token, whoever names it."""
    return address in OF_THIS_MACHINE or address in os.environ.get(TRUSTED, "").replace(",", " ").split()


def _present_token(address: str, *, trusted: bool) -> None:
    """Bring this machine's token to a cluster that wants one: Ray does so by itself only where it finds the cluster."""
    untrusted = ConfigError(
        f"the Ray cluster at {address} would be sent this machine's token, and only a file names that address: if you "
        f"trust it, give --address {address}, or set {TRUSTED}={address}"
    )
    if not trusted and os.environ.get("RAY_AUTH_MODE", "").lower() == "token":  # then Ray sends it to everybody
        raise untrusted
    if ":" not in address or "RAY_AUTH_MODE" in os.environ:
        return
    with suppress(ImportError):  # names that are Ray's own affair: where they are gone, the token is left to Ray
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        try:
            GcsClient(address=address)
        except AuthenticationError:
            if not trusted:
                raise untrusted from None
            logging.getLogger("ray").setLevel(logging.ERROR)  # it would say that there is a token
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
            GcsClient(address=address)


@contextmanager
def _termination_as_it_was() -> Iterator[None]:
    """Ray takes SIGTERM for itself and aborts; a run that is asked to end has something to save."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():  # nobody else may
            signal.signal(signal.SIGTERM, before)


def _check_reachable(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # "auto"
    try:
        socket.create_connection((host, int(port)), timeout=REACHED_WITHIN).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({_line(error)}): start one with ray start --head, or leave the "
            "address out for one on this machine"
        ) from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
