"""A fleet that needs more open files than there may be is refused in one line, and leaves none open."""

import errno
import gc
import os
import resource

import pytest

import paceline as pl
from paceline.learning.workload import workload_of
from support.digits import digits_task


def open_files() -> int:
    gc.collect()  # memory is unmapped, and its descriptor closed, with the last reference to it
    return len(os.listdir("/proc/self/fd"))


def launch(workers: int) -> None:
    group, _ = pl.ProcessFleet(workers).launch(workload_of(digits_task(), [], 32), seed=0)
    group.close()


def test_too_few_are_told_with_how_many_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (48, before + 72))
    expected = rf"^16 workers need (\d+) open files, and this process may have {before + 72}: raise the limit "
    with pytest.raises(pl.ConfigError, match=expected + r"\(ulimit -n \1\), or have at most \d+ workers$") as refused:
        launch(16)
    assert open_files() == before
    fewer = int(str(refused.value).split()[-2])
    assert 1 <= fewer < 16
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_to.append(limits))
    launch(fewer)  # what it says is possible is
    assert all(48 < soft <= hard == before + 72 for soft, hard in set_to)  # the soft limit was raised
    assert set_to


@pytest.mark.parametrize("name", ["eventfd", "memfd_create", "pipe", "dup"])
def test_when_they_run_out_on_the_way_none_is_left_open(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(1)  # whatever stays open for later
    before, usual, calls = open_files(), getattr(os, name), list[object]()

    def scarce(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > (2 if name in ("eventfd", "memfd_create") else 0):
            raise OSError(errno.EMFILE, "Too many open files")
        return usual(*arguments)

    monkeypatch.setattr(os, name, scarce)
    with pytest.raises(
        pl.ConfigError, match=r"^3 workers need more open files than there may be \(Too many open files"
    ):
        launch(3)
    monkeypatch.undo()
    assert open_files() == before
