"""The tests with processes, Ray and a browser, again and again beside two busy loops: none may depend on speed.

    make busy TIMES=10, or in tests/:
    python -m support.busy [TIMES] [PATHS...] [-n N] [--names FILE] [--beside COMMAND] [--save]

Which tests these are is found out: all that ``pytest --quick --long`` skips because they start a process. That takes
minutes; ``--names`` keeps them in a file, or reads them from there. Prints a line for each time, with what failed, and
ends with 1 if anything did. ``--save`` adds each time to tests/support/busy.json as soon as it is over, with the
commit, so that ten times can be done in several sittings. ``--beside`` makes the two loops useful: each is this
command, such as a long reproduction, which has to keep a core busy all the time.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
SAVED = Path(__file__).with_suffix(".json")
LOOPS = 2
SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # none is left of one that was killed


@contextmanager
def busy_loops(command: Sequence[str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Two processes of a command, which end with this one."""
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    loops = [subprocess.Popen(command, env=settings, stdout=quiet, stderr=quiet) for _ in range(LOOPS)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.terminate()
            loop.wait()


def tested(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=TESTS.parent, env=settings, stdout=subprocess.PIPE, text=True, check=False)


def with_processes(paths: Sequence[str]) -> list[str]:
    """The names of the tests below these paths that start a process: without one they are skipped, or fail."""
    said = tested(["--quick", "--long", "-v", "-n", "auto", *(str(TESTS / path) for path in paths)]).stdout
    found = re.findall(r"^\[gw\d+\] \[ *\d+%\] (?:SKIPPED|FAILED) (.*\S)", said, re.M)
    if not found:
        sys.exit(f"no test starts a process:\n{said}")
    return sorted(found)


def known_names(file: Path | None) -> list[str]:
    return file.read_text().splitlines() if file and file.exists() else []


def once(names: Path, processes: int) -> dict[str, Any]:
    """Run the tests that a file names: the exit code, what failed, the last line, and how long it took."""
    began = time.monotonic()
    result = tested(["-q", "-n", str(processes), f"@{names}"])
    if result.returncode:
        print(result.stdout, file=sys.stderr, flush=True)
    return {
        "code": result.returncode,
        "failed": re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", result.stdout, re.M),
        "said": result.stdout.splitlines()[-1],
        "seconds": round(time.monotonic() - began),
    }


def commit() -> str:
    """Of the tests as they are, with a plus if something has been changed since."""
    command = ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=TESTS, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def save(round_: dict[str, Any]) -> None:
    rounds = json.loads(SAVED.read_text())["rounds"] if SAVED.exists() else []
    about = {"cores": os.cpu_count(), "loops": LOOPS, "python": platform.python_version()}
    SAVED.write_text(json.dumps(about | {"rounds": [*rounds, round_]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=int, nargs="?", default=10)
    parser.add_argument("paths", nargs="*", default=["."], help="below tests/")
    parser.add_argument("-n", "--processes", type=int, default=4, help="of pytest; most of the tests wait")
    parser.add_argument("--names", metavar="FILE", type=Path, help="of tests that start a process; made if missing")
    parser.add_argument("--beside", metavar="COMMAND", default="", help="what keeps the cores busy; else empty loops")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    made_at, failed = commit(), False
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        found = known_names(asked.names) or with_processes(asked.paths)
        if asked.names:
            asked.names.write_text("\n".join(found))
        names.write("\n".join(found))
        names.flush()
        print(len(found), "tests start a process", flush=True)
        with busy_loops(shlex.split(asked.beside) or [sys.executable, "-c", SPIN]) as loops:
            for number in range(1, asked.times + 1):
                done = once(Path(names.name), asked.processes)
                if any(loop.poll() is not None for loop in loops):
                    sys.exit(f"the cores were not busy all the time, since this ended: {loops[0].args!r}")
                failed |= bool(done["code"])
                print(f"{number} of {asked.times}: {done['said']}", *done["failed"], sep="\n  ", flush=True)
                if asked.save:
                    about = {"commit": made_at, "tests": len(found), "processes": asked.processes}
                    save({**about, "beside": asked.beside or "empty loops", **done})
    sys.exit(failed)


if __name__ == "__main__":
    main()
