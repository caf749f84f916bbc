"""Data are looked at before anything is run: are those files there that were published?"""

import re
from pathlib import Path

import pytest
from test_fetch import ARCHIVE, PACKED, UNPACKED

from paceline.core.errors import ConfigError
from reproductions.datasets import check
from reproductions.datasets.check import check_data


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small set, of which any file is read."""
    monkeypatch.setattr(check, "PUBLISHED", {"packed": PACKED})
    monkeypatch.setattr(check, "READERS", {"packed": lambda folder: None})


def lay(place: Path) -> Path:
    place.mkdir(exist_ok=True)
    for name, content in UNPACKED.items():
        (place / name).write_bytes(content)
    return place


def other(content: bytes) -> bytes:
    """As many bytes, four of which are others."""
    return content[:100] + bytes(255 - value for value in content[100:104]) + content[104:]


@pytest.mark.parametrize("inside", ["packed", "."])
def test_a_file_of_the_published_size_must_be_the_published_one(tmp_path: Path, inside: str) -> None:
    place = lay(tmp_path / inside)
    check_data(["packed"], tmp_path)
    (place / "two.bin").write_bytes(other(UNPACKED["two.bin"]))
    told = re.escape(f"{place / 'two.bin'} is damaged, its SHA-256 is not the published one; to get it whole: ")
    with pytest.raises(ConfigError, match=f"^{told}python -m reproductions fetch packed --to {tmp_path}$"):
        check_data(["packed"], tmp_path)


def test_files_of_other_sizes_are_other_data(tmp_path: Path) -> None:
    (lay(tmp_path / "packed") / "two.bin").write_bytes(b"made up")
    check_data(["packed"], tmp_path)


def test_only_what_is_read_is_looked_at(tmp_path: Path) -> None:
    """The set's own folder comes first; and the archive is read if one of its files is not there."""
    place = lay(tmp_path / "packed")
    (tmp_path / "one.bin").write_bytes(other(UNPACKED["one.bin"]))
    (place / "packed.tar.gz").write_bytes(other(ARCHIVE))
    check_data(["packed"], tmp_path)
    (place / "one.bin").unlink()
    with pytest.raises(ConfigError, match=r"packed\.tar\.gz is damaged"):
        check_data(["packed"], tmp_path)
    (place / "packed.tar.gz").write_bytes(ARCHIVE)
    check_data(["packed"], tmp_path)
