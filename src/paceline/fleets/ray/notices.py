"""Notices before a loss: that a machine will be taken away, and by when.

Ray tells which of its nodes are drained: the server asks it, in a thread of its own. A cloud tells a spot machine by
the metadata service that answers on that machine: its agent asks, in a thread, where ``RayFleet(notices=...)`` names
the cloud. Both become the event ``Leaving`` for each worker of the machine.

Formats are those of the clouds' documentation: EC2's "Spot Instance interruption notices", Compute Engine's "Detect
preemption of Spot VMs", Azure's "Scheduled Events for Linux VMs".
"""

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from paceline.core.errors import ConfigError
from paceline.core.fields import nearest, shown
from paceline.fleets.processes.channel import LEAVING, RECORD, STAYING, UNKNOWN

RAY = "ray"
GRACE = 60.0  # seconds after which a machine that was to be gone counts as one that stays
RAY_INTERVAL = 1.0  # seconds between two questions to Ray,
CLOUD_INTERVAL = 2.0  # and to a cloud: EC2 asks for 5 at most, Azure recommends 1
ANSWERED_WITHIN = 2.0  # seconds that either may take
SAME = 1.0  # seconds by which a time that was computed twice may differ
FAILURES = 3  # in a row, after which it is told that a cloud cannot be asked
METADATA = "PACELINE_METADATA_ADDRESS"  # environment variable of a machine: another metadata service, as in tests
METADATA_ADDRESS = "http://169.254.169.254"  # of all three clouds
PREEMPTED_WITHIN = 30.0  # seconds that Compute Engine gives; it names no time

log = logging.getLogger("paceline")

# The server's side.


class MachineNotices:
    """What was announced of one machine by each source: when it will be gone, in seconds of ``time.monotonic``."""

    def __init__(self, host: str) -> None:
        self.told: float | None = None  # what its workers were told
        self._host = host
        self._by: dict[str, float] = {}

    def hear(self, source: str, by: float | None) -> None:
        """A source tells when the machine will be gone, ``inf`` if it does not know; or that it stays."""
        if by is None:
            self._by.pop(source, None)
        else:
            self._by[source] = by

    def changed(self, now: float) -> bool:
        """Whether its workers have to be told something else than before: then it is in ``told``."""
        known = ((by, source) for source, by in self._by.items() if now <= by + GRACE)
        soonest, source = min(known, default=(None, ""))
        if _same(soonest, self.told):
            return False
        self.told = soonest
        if soonest is None:
            log.warning("%s was to be gone, and is still here", self._host)
        else:
            when = "soon" if soonest == math.inf else f"in {max(0.0, soonest - now):.0f} s"
            log.warning("%s will be gone %s (%s): its workers get no more work", self._host, when, source)
        return True

    def news_for(self, workers: Iterable[int]) -> bytes:
        """For the pipe: what the training loop has to know of the machine's end, if that is something else now."""
        return b"".join(map(self._record, workers)) if self.changed(time.monotonic()) else b""

    def known_to(self, worker: int) -> bytes:
        """For the pipe: what was told before a worker was there."""
        return b"" if self.told is None else self._record(worker)

    def _record(self, worker: int) -> bytes:
        by = self.told
        return RECORD.pack(worker, *((STAYING, 0) if by is None else (LEAVING, int(min(by * 1000, UNKNOWN)))))

    def warn(self, cloud: str, problem: str) -> None:
        log.warning("%s gives no notices of %s, as it could not be asked there (%s)", cloud, self._host, problem)


class NoticedMachine(Protocol):
    """A machine that has an agent."""

    def look_for_notice(self, draining: Mapping[str, float], /) -> None:
        """Is it one of these nodes? And is it still here, although it was to be gone?"""
        ...


class DrainWatch:
    """Asks Ray in a thread which nodes are drained, and passes it on to the machines.

    draining  asks: the time of each node by which it will be gone, in seconds of ``time.monotonic``
    own_node  the server's: if it goes, so does the run, and its workers may as well work on
    """

    def __init__(
        self, draining: Callable[[], Mapping[str, float]], machines: Sequence[NoticedMachine], own_node: str
    ) -> None:
        self._draining = draining
        self._machines = machines
        self._own_node = own_node
        self._warned: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                draining = dict(self._draining())
            except Exception as error:  # also of another Ray, which tells it in another way
                self._warn("Ray could not be asked which nodes are drained (%s: %s)", type(error).__name__, error)
            else:
                if draining.pop(self._own_node, None) is not None:
                    self._warn("the server's own node is drained, and the run will end with it: resume it elsewhere")
                for machine in self._machines:
                    machine.look_for_notice(draining)
            self._closed.wait(RAY_INTERVAL)

    def _warn(self, text: str, *details: object) -> None:
        """Once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text, *details)


def _same(one: float | None, other: float | None) -> bool:
    """Whether two times are the same, but for how they were computed."""
    return one == other or (one is not None and other is not None and abs(one - other) < SAME)


# The machine's side.


class MetadataService:
    """The metadata service of a machine. Proxies are left aside: it answers nobody but its own machine."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._opener = build_opener(ProxyHandler({}))

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str:
        """The answer. ``HTTPError`` if there is none, with its code."""
        request = Request(self._address + path, headers=dict(headers), method=method)
        with self._opener.open(request, timeout=ANSWERED_WITHIN) as response:
            return str(response.read().decode())


class Aws:
    """EC2 announces that it takes a spot instance back two minutes before: to stop, hibernate or terminate it."""

    LIFETIME = 21_600  # seconds of a token

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._token = ""

    def taken_at(self) -> float | None:
        """The time (``time.time``) at which the machine will be gone, if it will be."""
        if not self._token:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.LIFETIME)}
            self._token = self._service.ask("/latest/api/token", lifetime, "PUT")
        try:
            headers = {"X-aws-ec2-metadata-token": self._token}
            answer = self._service.ask("/latest/meta-data/spot/instance-action", headers)
        except HTTPError as error:
            if error.code == 404:
                return None
            self._token = ""  # 401: it has expired
            raise
        return _moment(datetime.fromisoformat(json.loads(answer)["time"]))


class Gcp:
    """Compute Engine tells that a spot VM is being preempted, and gives it thirty seconds."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._seen_at: float | None = None

    def taken_at(self) -> float | None:
        answer = self._service.ask("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
        if answer.strip() != "TRUE":
            self._seen_at = None
            return None
        self._seen_at = self._seen_at or time.time()
        return self._seen_at + PREEMPTED_WITHIN


class Azure:
    """Azure lists what is to happen to the machines of a scale set: the eviction of a spot VM, half a minute before.

    An event that is about other machines, or that a machine survives, is none.
    """

    HEADERS: Mapping[str, str] = {"Metadata": "true"}
    ENDING = ("Preempt", "Terminate")

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._name = ""

    def taken_at(self) -> float | None:
        if not self._name:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._name = self._service.ask(path, self.HEADERS).strip()
        answer = self._service.ask("/metadata/scheduledevents?api-version=2020-07-01", self.HEADERS)
        own = [
            event
            for event in json.loads(answer)["Events"]
            if event["EventType"] in self.ENDING and self._name in event["Resources"]
        ]
        # the time is blank once it has begun
        return min((_moment(_read_date(event["NotBefore"])) for event in own), default=None)


def _read_date(text: str) -> datetime:
    return parsedate_to_datetime(text) if text else datetime.now(UTC)


def _moment(when: datetime) -> float:
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


CLOUDS: Mapping[str, Callable[[MetadataService], Any]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}
SOURCES = (RAY, *CLOUDS)
Tell = Callable[[str, float | None, str], None]  # the cloud, seconds until the machine is gone, what went wrong


class CloudWatch:
    """Asks the clouds of this machine in a thread, and tells what changes."""

    def __init__(self, clouds: Sequence[str], tell: Tell) -> None:
        service = MetadataService(os.environ.get(METADATA, METADATA_ADDRESS))
        self._clouds = {name: CLOUDS[name](service) for name in clouds}
        self._tell = tell
        self._told: dict[str, float | None] = dict.fromkeys(clouds)
        self._failures = dict.fromkeys(clouds, 0)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-cloud", daemon=True)

    def start(self) -> None:
        if self._clouds:
            self._thread.start()

    def close(self) -> None:
        """It may still wait for an answer, which is ignored."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            for name in self._clouds:
                self.ask(name)
            self._closed.wait(CLOUD_INTERVAL)

    def ask(self, name: str) -> None:
        try:
            at = self._clouds[name].taken_at()
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:  # none here, or another format
            self._failures[name] += 1
            if self._failures[name] == FAILURES and not self._closed.is_set():
                self._tell(name, None, f"{type(error).__name__}: {error}")
            return
        self._failures[name] = 0
        if self._closed.is_set() or _same(at, self._told[name]):
            return
        self._told[name] = at
        self._tell(name, None if at is None else max(0.0, at - time.time()), "")


def check_notices(given: object) -> None:
    """Raise ``ConfigError`` unless these are sources of notices."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f'notices={shown(given)} are none: give a list such as ("ray", "aws")')
    for each in given:
        if each not in SOURCES:
            raise ConfigError(f"notices: {each!r} gives none: {nearest(each, SOURCES)}")
