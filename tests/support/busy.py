"""The tests with processes, Ray and a browser, again and again beside two busy loops: none may depend on speed.

    make busy TIMES=10, or in tests/: python -m support.busy [TIMES] [PATHS...]

Prints a line for each time, with what failed, and ends with 1 if anything did. ``--save`` writes the counts to
tests/support/busy.json. Ten times take two hours on two cores.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent.parent
SAVED = Path(__file__).with_suffix(".json")
PATHS = (
    "fleets", "contract/test_fleets.py", "pruning/test_pruned_processes.py", "papers/test_jobs.py",
    "learning/test_averaging.py", "reports/test_page_in_browser.py", "test_cli.py", "test_examples.py",
    "test_profile.py", "test_replay.py", "test_resume_killed.py", "test_resume_models.py", "test_resume_processes.py",
    "test_saved_models.py", "test_train.py",
)  # fmt: skip
LOOPS = 2


def spin() -> None:
    while True:
        pass


def once(paths: list[str]) -> tuple[int, list[str], str]:
    """The code, the tests that failed, and the last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", *(str(TESTS / path) for path in paths)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    result = subprocess.run(command, cwd=TESTS.parent, env=settings, stdout=subprocess.PIPE, text=True, check=False)
    return (
        result.returncode,
        re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.M),
        result.stdout.splitlines()[-1],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=int, nargs="?", default=10)
    parser.add_argument("paths", nargs="*", default=PATHS, help="below tests/")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    loops = [multiprocessing.Process(target=spin, daemon=True) for _ in range(LOOPS)]
    for loop in loops:
        loop.start()
    rounds = []
    for number in range(1, asked.times + 1):
        began = time.monotonic()
        code, failed, last = once(list(asked.paths))
        rounds.append({"code": code, "failed": failed, "said": last, "seconds": round(time.monotonic() - began)})
        print(f"{number} of {asked.times}: {last}", *failed, sep="\n  ", flush=True)
    for loop in loops:
        loop.kill()
    if asked.save:
        about = {
            "cores": os.cpu_count(),
            "loops": LOOPS,
            "python": platform.python_version(),
            "paths": list(asked.paths),
        }
        SAVED.write_text(json.dumps(about | {"rounds": rounds}, indent=1) + "\n")
    sys.exit(any(each["code"] for each in rounds))


if __name__ == "__main__":
    main()
