"""Ray nodes in two network namespaces, with a link between them that delays every packet: workers of advice.py.

What trains is started in the namespace of the server, so that everything it sends to the other node passes the link.
Needs root, and the tunnel devices that tests/fleets/ray/test_ray_network.py needs too.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.fleets.ray.addresses import TRUSTED

TESTS = Path(__file__).parents[1] / "tests"
PORT = 6379
ADDRESS = "PACELINE_ADVICE_ADDRESS"  # in the environment of what runs on the server's side
BOTH = (  # ends well when both nodes have joined
    "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); sys.exit(ray.cluster_resources().get('CPU', 0) < 4)"
)


@contextmanager
def linked(milliseconds: int) -> Iterator[Sequence[str]]:
    """How a command begins that runs on the server's side of a link with this delay each way.

    Two workers have place on the server's node, and two on the one behind the link.
    """
    sys.path[:0] = [str(TESTS), str(TESTS / "fleets" / "ray")]
    import test_ray_network as network

    link = network.Link()
    address = f"{network.OURS}:{PORT}"
    with tempfile.TemporaryDirectory(prefix="pl", ignore_cleanup_errors=True) as session:
        try:
            if not link.made():
                raise SystemExit("this machine does not let us make network namespaces")
            link.carry(milliseconds)
            head = ("--head", "--node-ip-address", network.OURS, "--port", str(PORT), "--num-cpus", "2")
            settings = ("--include-dashboard=false", "--temp-dir", session, "--block", *network.SMALL)
            system = ("--system-config", json.dumps(network.SOON))
            link.start(link.here, str(network.RAY), "start", *head, *settings, *system, **network.LOCKED)
            network.until(lambda: network.done("ip", "netns", "exec", link.here, *network.probe(address)))
            there = ("--address", address, "--node-ip-address", network.THEIRS, "--num-cpus", "2", "--block")
            link.start(link.there, str(network.RAY), "start", *there, *network.SMALL, **network.LOCKED)
            known = {**network.LOCKED, "RAY_AUTH_TOKEN": network.TOKEN, TRUSTED: address, ADDRESS: address}
            begin = ["ip", "netns", "exec", link.here, "env", *(f"{name}={value}" for name, value in known.items())]
            network.until(lambda: network.done(*begin, sys.executable, "-c", BOTH, address))
            yield begin
        finally:
            link.close()
