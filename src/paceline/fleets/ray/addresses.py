"""Which Ray cluster is connected to, and which one ``"auto"`` is.

What a cluster answers is unpickled in this process, so whoever is connected to can run code here. Only addresses that
the user names are connected to. ``"auto"`` stands for the cluster that the user's own processes of this machine belong
to: which one that is, no other user of the machine has a say in. (Ray itself would believe any process that calls
itself a raylet, and a file in a directory that all users may write to.)
"""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.fleets.ray.fleet import AddressTrust

REACHED_WITHIN = 5.0  # seconds until a cluster must have answered
TRUSTED = "PACELINE_TRUSTED_ADDRESSES"  # environment variable: addresses that are trusted, by commas
AUTO = "auto"  # instead of an address
NAMED = "RAY_ADDRESS"  # environment variable: what "auto" means, for Ray's own programs too
RAYLET, ITS_CLUSTER = "raylet", "--gcs-address="  # the process that each machine of a cluster has; its argument


def allowed(address: str, trusted: "AddressTrust") -> "tuple[str, AddressTrust]":
    """The address to connect to, and how far it is trusted. ``ConfigError`` if it is not at all."""
    trusted = address in os.environ.get(TRUSTED, "").replace(",", " ").split() or trusted
    if not trusted:
        raise ConfigError(
            f"the Ray cluster at {address} is not connected to: only the directory of a run names that address, and "
            f"whoever answers there can run code here: if you trust it, give --address {address}, or set "
            f"{TRUSTED}={address}"
        )
    return (own_cluster(), True) if address == AUTO else (address, trusted)


def own_cluster() -> str:
    """The address of the cluster that the environment names, or that this user's processes of this machine belong to.

    ``ConfigError`` if there are none, or several.
    """
    if (named := os.environ.get(NAMED, AUTO)) not in ("", AUTO):
        return named
    found = sorted(own_clusters())
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} Ray clusters of yours run on this machine: name one, {' or '.join(found)}")
    raise ConfigError(
        "no Ray cluster of yours runs on this machine: start one with ray start --head, or name the address of another "
        "user's (--address 10.0.0.1:6379)"
    )


def own_clusters() -> set[str]:
    """The addresses of the clusters that raylets of this user, on this machine, belong to.

    Anyone may give a process these arguments, also one that gets other rights on its way, such as ``sudo``: so it must
    be this user's in every respect, and then be a raylet by its program.
    """
    found: set[str] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it is another user's, or has ended
                if _users(process) == {os.geteuid()} and (process / "exe").readlink().name == RAYLET:
                    arguments = (process / "cmdline").read_text(errors="replace").split("\0")
                    found |= {each.removeprefix(ITS_CLUSTER) for each in arguments if each.startswith(ITS_CLUSTER)}
    return found


def _users(process: Path) -> set[int]:
    """The user of a process: real, effective, saved, and of the file system."""
    lines = (process / "status").read_text().splitlines()
    return {int(uid) for line in lines if line.startswith("Uid:") for uid in line.split()[1:]}


def check_reachable(address: str) -> None:
    """Raise ``ConfigError`` if nothing listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACHED_WITHIN).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({one_line(error)}): start one with ray start --head, or leave the "
            "address out for one on this machine"
        ) from None


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
