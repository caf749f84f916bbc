"""Ray nodes in two network namespaces, with a link between them that delays every packet: workers of advice.py.

The training process enters the namespace of the server, so that everything it sends to the other node passes the link.
Needs root, and the tunnel devices that tests/fleets/ray/test_ray_network.py needs too.
"""

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paceline as pl
from paceline.delays import Delay

TESTS = Path(__file__).parents[1] / "tests"
PORT = 6379
BOTH = (  # ends well when both nodes have joined
    "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); sys.exit(ray.cluster_resources().get('CPU', 0) < 4)"
)


@contextmanager
def linked(milliseconds: int, delays: Mapping[int, Delay]) -> Iterator[Any]:
    """Four workers, two of them on a node behind a link with this delay each way."""
    sys.path[:0] = [str(TESTS), str(TESTS / "fleets" / "ray")]
    import test_ray_network as network

    link = network.Link()
    os.environ["RAY_AUTH_TOKEN"] = network.TOKEN
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    with tempfile.TemporaryDirectory(prefix="pl", ignore_cleanup_errors=True) as session:
        try:
            if not link.made():
                raise SystemExit("this machine does not let us make network namespaces")
            link.carry(milliseconds)
            address = f"{network.OURS}:{PORT}"
            head = ("--head", "--node-ip-address", network.OURS, "--port", str(PORT), "--num-cpus", "2")
            settings = ("--include-dashboard=false", "--temp-dir", session, "--block", *network.SMALL)
            system = ("--system-config", json.dumps(network.SOON))
            link.start(link.here, str(network.RAY), "start", *head, *settings, *system, **network.LOCKED)
            network.until(lambda: network.done("ip", "netns", "exec", link.here, *network.probe(address)))
            there = ("--address", address, "--node-ip-address", network.THEIRS, "--num-cpus", "2", "--block")
            link.start(link.there, str(network.RAY), "start", *there, *network.SMALL, **network.LOCKED)
            both = (sys.executable, "-c", BOTH, address)
            network.until(lambda: network.done("ip", "netns", "exec", link.here, *both))
            _enter(os.open(f"/run/netns/{link.here}", os.O_RDONLY))
            yield pl.RayFleet(len(delays), address=address, slow=delays)
        finally:
            _enter(home)
            link.close()


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")
    os.close(namespace)
