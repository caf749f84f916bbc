"""This machine's Ray token is sent to nobody whom the user has not named."""

import os
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import AuthenticationError

import paceline as pl
from paceline.cli.common import on_fleet
from paceline.config.file import read_config
from paceline.config.fleets import fleet_table, read_fleet
from paceline.fleets.ray import connection

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
        monkeypatch.delenv(connection.TRUSTED, raising=False)
        monkeypatch.setattr(connection, "check_reachable", lambda address: None)
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
        connection.connect(ADDRESS, {}, trusted=False)
    assert stranger.saw == ["nothing"]


def test_nor_where_ray_would_send_it_to_anybody(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(pl.ConfigError, match="would be sent this machine's token"):
        connection.connect(ADDRESS, {}, trusted=False)
    assert stranger.saw == []


def test_an_address_that_the_user_names_gets_it(stranger: Stranger) -> None:
    connection.connect(ADDRESS, {}, trusted=True)
    assert stranger.saw == ["nothing", "token", "token"]


@pytest.mark.parametrize("trusted", [ADDRESS, f"10.0.0.1:6379,{ADDRESS}", f"10.0.0.1:6379, {ADDRESS}"])
def test_so_does_one_that_the_environment_names(
    trusted: str, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(connection.TRUSTED, trusted)
    connection.connect(ADDRESS, {}, trusted=False)
    assert stranger.saw[-1] == "token"


def test_no_part_of_an_address_is_trusted(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connection.TRUSTED, f"{ADDRESS}0 {ADDRESS[:-1]} x{ADDRESS}")
    with pytest.raises(pl.ConfigError, match="only a file names"):
        connection.connect(ADDRESS, {}, trusted=False)


def test_files_are_told_from_users() -> None:
    table = {"kind": "ray", "workers": 2, "address": ADDRESS}
    fleet = read_fleet(dict(table))
    assert isinstance(fleet, pl.RayFleet)
    assert not fleet.trust_address
    assert pl.RayFleet(2, address=ADDRESS).trust_address
    assert pl.RayFleet(2, address=ADDRESS) == fleet  # it is no part of what is trained
    assert "trust_address" not in fleet_table(pl.RayFleet(2, address=ADDRESS))
    with pytest.raises(pl.ConfigError, match="trust_address"):
        read_fleet({**table, "trust_address": True})


def test_the_command_line_is_the_user(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(FILE)
    config = read_config(tmp_path / "file.toml")
    for named, trusted in ((None, False), (ADDRESS, True), ("10.0.0.1:1", True)):
        fleet = on_fleet(config, None, named).fleet
        assert isinstance(fleet, pl.RayFleet)
        assert fleet.trust_address == trusted
