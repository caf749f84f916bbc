"""Nobody whom the user has not named is connected to, nor sent this machine's Ray token."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import AuthenticationError

import paceline as pl
from paceline.cli.common import config_of, on_fleet
from paceline.cli.main import main
from paceline.config.experiment import place_of
from paceline.config.file import parse_config, read_config
from paceline.config.fleets import fleet_table, of_the_user, read_fleet
from paceline.fleets.ray import addresses, connection

ADDRESS = "203.0.113.7:6379"
FILE = f"""
strategy = "ssgd"
[task]
data = "digits"
model = "linear"
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 2
[fleet]
kind = "ray"
workers = 2
address = "{ADDRESS}"
"""


class Stranger:
    """A cluster that asks for a token, and what it gets to see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.saw: list[str] = []
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        monkeypatch.delenv(addresses.TRUSTED, raising=False)
        monkeypatch.setattr(connection, "check_reachable", lambda address: self.saw.append("a knock"))
        monkeypatch.setattr(ray, "init", self.contact)
        monkeypatch.setattr("ray._raylet.GcsClient", self.contact)
        monkeypatch.setattr(
            "ray._private.authentication.authentication_token_setup.maybe_enable_token_auth_if_token_available",
            lambda **options: monkeypatch.setenv("RAY_AUTH_MODE", "token"),
        )

    def contact(self, *arguments: Any, **options: Any) -> None:
        token = os.environ.get("RAY_AUTH_MODE") == "token"
        self.saw.append("token" if token else "nothing")
        if not token:
            raise AuthenticationError("InvalidAuthToken")


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Stranger:
    return Stranger(monkeypatch)


def test_an_address_from_a_file_gets_no_token(stranger: Stranger) -> None:
    with pytest.raises(pl.ConfigError, match=r"only a file names that address: if you trust it, give --address 203"):
        connection.connect(ADDRESS, {}, trusted="without token")
    assert stranger.saw == ["a knock", "nothing"]


def test_nor_where_ray_would_send_it_to_anybody(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(pl.ConfigError, match="would be sent this machine's token"):
        connection.connect(ADDRESS, {}, trusted="without token")
    assert stranger.saw == ["a knock"]


def test_an_address_that_the_user_names_gets_it(stranger: Stranger) -> None:
    connection.connect(ADDRESS, {}, trusted=True)
    assert stranger.saw == ["a knock", "nothing", "token", "token"]


@pytest.mark.parametrize("trusted", [ADDRESS, f"10.0.0.1:6379,{ADDRESS}", f"10.0.0.1:6379, {ADDRESS}"])
def test_so_does_one_that_the_environment_names(
    trusted: str, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(addresses.TRUSTED, trusted)
    connection.connect(ADDRESS, {}, trusted=False)
    assert stranger.saw[-1] == "token"


def test_no_part_of_an_address_is_trusted(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(addresses.TRUSTED, f"{ADDRESS}0 {ADDRESS[:-1]} x{ADDRESS}")
    with pytest.raises(pl.ConfigError, match="only a file names"):
        connection.connect(ADDRESS, {}, trusted="without token")
    stranger.saw.clear()
    with pytest.raises(pl.ConfigError, match="is not connected to"):
        connection.connect(ADDRESS, {}, trusted=False)
    assert stranger.saw == []


@pytest.mark.parametrize("address", [ADDRESS, "auto"])
@pytest.mark.parametrize("mode", ["", "token"])
def test_an_address_from_the_directory_of_a_run_is_not_connected_to(
    mode: str, address: str, stranger: Stranger, tmp_path: Path, *, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(FILE.replace(ADDRESS, address))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert main(["train", "--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"error: the Ray cluster at {address} is not connected to: only the directory of a run names that address, and "
        f"whoever answers there can run code here: if you trust it, give --address {address}, or set "
        f"PACELINE_TRUSTED_ADDRESSES={address}\n"
    )
    assert stranger.saw == []
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_one_that_the_user_names_again_is(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reached(address: str) -> None:
        raise pl.ConfigError(f"reached {address}")

    monkeypatch.setattr(connection, "check_reachable", reached)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(FILE)
    (tmp_path / "own.toml").write_text(FILE)
    resume, fresh = ["train", "--resume", str(tmp_path / "run")], ["train", str(tmp_path / "own.toml")]
    new = ["--directory", str(tmp_path / "new")]
    for arguments in ([*resume, "--address", ADDRESS], [*fresh, *new], [*fresh, *resume[1:]]):
        assert main(arguments) == 2
        assert capsys.readouterr().err == f"error: reached {ADDRESS}\n"
    monkeypatch.setenv(addresses.TRUSTED, ADDRESS)
    assert main(resume) == 2
    assert capsys.readouterr().err == f"error: reached {ADDRESS}\n"


def test_a_run_on_such_a_cluster_says_that_it_has_to_be_named_again() -> None:
    config = parse_config(FILE)
    place = place_of(config, config.strategies[0], 0, None, Path("run"))
    assert place.how_to_resume().startswith(f"paceline train --resume run --address {ADDRESS} continues")
    own = parse_config(FILE.replace(ADDRESS, "auto"))
    assert " --address auto " in place_of(own, own.strategies[0], 0, None, Path("run")).how_to_resume()
    local = parse_config(FILE.replace(ADDRESS, "local"))  # Ray's word for a cluster that is started for a run
    assert local.fleet == pl.RayFleet(2)
    assert " --address" not in place_of(local, local.strategies[0], 0, None, Path("run")).how_to_resume()


def test_files_are_told_from_users() -> None:
    table = {"kind": "ray", "workers": 2, "address": ADDRESS}
    fleet = read_fleet(dict(table))
    assert isinstance(fleet, pl.RayFleet)
    assert not fleet.trust_address
    assert pl.RayFleet(2, address=ADDRESS).trust_address
    assert pl.RayFleet(2, address=ADDRESS) == fleet  # it is no part of what is trained
    assert "trust_address" not in fleet_table(pl.RayFleet(2, address=ADDRESS))
    assert of_the_user(fleet).trust_address == "without token"  # type: ignore[union-attr]
    assert of_the_user(pl.RayFleet(2, address=ADDRESS)).trust_address is True  # type: ignore[union-attr]
    with pytest.raises(pl.ConfigError, match="trust_address"):
        read_fleet({**table, "trust_address": True})
    with pytest.raises(pl.ConfigError, match="trust_address='yes' is unknown"):
        pl.RayFleet(2, trust_address="yes")  # type: ignore[arg-type]


def test_the_command_line_is_the_user(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(FILE)
    config = read_config(tmp_path / "file.toml")
    for named, trusted in ((None, False), (ADDRESS, True), ("10.0.0.1:1", True)):
        fleet = on_fleet(config, None, named).fleet
        assert isinstance(fleet, pl.RayFleet)
        assert fleet.trust_address is trusted
    for of_the_run, trust in ((True, False), (False, "without token")):
        fleet = config_of(tmp_path / "file.toml", of_the_run=of_the_run).fleet
        assert isinstance(fleet, pl.RayFleet)
        assert fleet.trust_address == trust


# Which cluster "auto" is.


@contextmanager
def raylet(address: str, program: str = "/bin/sh", **user: Any) -> Iterator[None]:
    """A process that looks like a raylet: its first argument says so, and the name of its program if that is a copy."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # for another user
        shutil.copy("/bin/sh", Path(directory) / "raylet")
        command = ["raylet", "-c", "echo; read line", f"--gcs-address={address}"]
        process = subprocess.Popen(
            command, executable=program.format(directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **user
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield
            process.communicate(b"\n")


def test_a_raylet_of_this_user_is() -> None:
    with raylet("192.0.2.1:6379", "{}/raylet"):
        assert "192.0.2.1:6379" in addresses.own_clusters()


def test_what_only_calls_itself_a_raylet_is_not() -> None:
    with raylet("192.0.2.2:6379"):
        assert "192.0.2.2:6379" not in addresses.own_clusters()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_nor_is_that_of_another_user() -> None:
    with raylet("192.0.2.3:6379", "{}/raylet", user=65534, group=65534, extra_groups=[]):
        assert "192.0.2.3:6379" not in addresses.own_clusters()


def test_ray_is_never_asked_to_find_one(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = set()
    joined: list[str] = []
    monkeypatch.setattr(addresses, "own_clusters", lambda: found)
    monkeypatch.setattr(ray, "init", lambda address, **options: joined.append(address))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(pl.ConfigError, match=r"^no Ray cluster of yours runs on this machine: start one"):
        connection.connect("auto", {}, trusted=True)
    found.add(ADDRESS)
    for trusted in (True, "without token"):  # it is the user's own
        connection.connect("auto", {}, trusted=trusted)
    found.add("10.0.0.1:1")
    with pytest.raises(pl.ConfigError, match=rf"^2 Ray clusters of yours .*: name one, 10.0.0.1:1 or {ADDRESS}$"):
        connection.connect("auto", {}, trusted=True)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")  # as in a job of Ray
    connection.connect("auto", {}, trusted=True)
    monkeypatch.setenv(addresses.TRUSTED, "auto")
    connection.connect("auto", {}, trusted=False)
    assert joined == [ADDRESS, ADDRESS, "10.0.0.1:1", "10.0.0.1:1"]
    assert stranger.saw[:3] == ["a knock", "nothing", "token"]
