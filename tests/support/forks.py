"""Things done in processes of their own that have torch loaded already, which a new one takes seconds for.

They are forks of a process that has imported torch and done nothing else. Forks of the one that runs the tests would
inherit locks that its threads hold (Ray's, torch's), and hang now and then. For what changes the state of a process, or
needs several. Not for what is about starting: a fork has imported it all.
"""

import faulthandler
import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import torch.distributed

from paceline.comparison.pool import OPTIMIZERS

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["torch.distributed", "torch.utils.data", "paceline.engine.train", OPTIMIZERS])


class Said(NamedTuple):
    """How a fork ended, and what it wrote to standard output and standard error."""

    code: int | None
    out: str
    err: str


def forked(*acts: Callable[[], object], seconds: float = 250.0) -> list[Said]:
    """Do things side by side, each in a fork; when all have ended, what became of each.

    A fork that has not ended after so many seconds writes where it is to its standard error, and is killed.
    """
    with tempfile.TemporaryDirectory() as place:
        files = [(Path(place, f"{number}.out"), Path(place, f"{number}.err")) for number in range(len(acts))]
        settings = dict(os.environ)
        forks = [
            FORKING.Process(target=_be, args=(cloudpickle.dumps(act), settings, seconds, *file))
            for act, file in zip(acts, files, strict=True)
        ]
        try:
            for fork in forks:
                fork.start()
            for fork in forks:
                fork.join(seconds + 10)
        finally:
            for fork in forks:
                if fork.is_alive():
                    fork.kill()
                    fork.join()
        said = [[file.read_text() for file in each] for each in files]
        return [Said(fork.exitcode, *texts) for fork, texts in zip(forks, said, strict=True)]


def run_script(script: Path, *arguments: str) -> None:
    """A script as it is, with arguments of the command line: for a fork."""
    sys.argv[:] = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def ranks(count: int, act: Callable[[], object]) -> list[Said]:
    """The same in several forks, which find each other as those of ``torch.distributed.run`` do."""
    meeting = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    settings |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}

    def be(rank: int) -> None:
        os.environ.update(settings, RANK=str(rank), LOCAL_RANK=str(rank))
        act()

    return forked(*(partial(be, rank) for rank in range(count)))


def all_well(said: Sequence[Said]) -> None:
    assert [each.code for each in said] == [0] * len(said), "\n".join(each.err for each in said)


def _be(act: bytes, settings: dict[str, str], seconds: float, out: Path, err: Path) -> None:
    """As a new process has it: its own files; the environment is that of the test."""
    for number, place in enumerate((Path(os.devnull), out, err)):
        opened = os.open(place, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(os.dup(each), mode) for each, mode in enumerate("rww"))
    os.environ.clear()
    os.environ.update(settings)
    faulthandler.dump_traceback_later(seconds, file=sys.stderr)
    try:
        cloudpickle.loads(act)()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
