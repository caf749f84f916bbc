"""Tests repeat: Hypothesis tries the same examples every time, and keeps none. Those on Ray come first.

Ctrl-C reaches the tests and what they start even where a shell lets its background jobs ignore it, and no process that
they start is left behind.
"""

import _posixsubprocess
import gc
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from paceline.comparison.pool import usable_cores

OF_THIS_RUN = "PACELINE_TEST_RUN"  # in the environment of every process that the tests start
ON_RAY = re.compile(r"(?<![^\W_])ray(?![^\W_])")
LONG = re.compile(
    r"test_(advise|closed_forms|conditions|examples|init|rate_check|readme|reproduce|runtime|saturation|threads).*\.py"
)
MOST_ON_RAY = "tests/fleets/ray/test_ray.py::"  # as long as all others
APART = (  # long, and their tests share nothing
    "tests/test_examples.py::", "tests/engine/test_train.py::", "tests/reproductions/test_reproduce_quick.py::",
)  # fmt: skip

settings.register_profile(
    "paceline",
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paceline")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault(OF_THIS_RUN, str(os.getpid()))
os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15, a worker beside busy programs takes minutes to start


class RayTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Tests on a Ray cluster begin, in two processes, all others go wherever there is time: clusters want cores.

    The tests of a file stay together, so that what they share, and what they import, is made in one process.

    A test whose process ends has failed, once, and the others are still run. As xdist 3.8 does it, the next process
    is given the same test again, and units of which nothing is left to do, for which it waits for ever.
    """

    def _split_scope(self, nodeid: str) -> str:
        if not ON_RAY.search(nodeid):
            return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]
        return "ray" if nodeid.startswith(MOST_ON_RAY) else "ray, the others"

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work.pop(node)
        pending = [test for unit in units.values() for test, done in unit.items() if not done]
        if not pending:
            return None
        for scope, unit in units.items():
            if rest := {test: False for test, done in unit.items() if not done and test != pending[0]}:
                self.workqueue[scope] = rest
        for other in self.assigned_work:
            self._reschedule(other)
        return str(pending[0])

    def _reschedule(self, node: WorkerController) -> None:
        """A process begins a test only when it knows the next one, or that there is none."""
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


def left_behind() -> list[str]:
    """The processes that the tests started and that do not end by themselves."""
    deadline = time.monotonic() + float(os.environ.get("PACELINE_TEST_PATIENCE", "60"))
    while (found := _of_this_run()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def _of_this_run() -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                os.getpid() not in (process.pid, process.ppid())  # what it started ends with this process
                and process.environ().get(OF_THIS_RUN) == os.environ[OF_THIS_RUN]
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:  # gone in the meantime, or somebody else's
            continue
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> RayTogether:
    config.option.loadscopereorder = False  # else the files with most tests come first
    return RayTogether(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: those that test workers, clusters and browsers wait half of the time."""
    return usable_cores() + (not config.getoption("--quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest at a time comes first, so that no process is left with it at the end."""
    items.sort(key=lambda item: (not ON_RAY.search(item.nodeid), not item.nodeid.startswith(APART)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules stay: the million objects that they are made of are not searched for garbage again and again.

    What a test module defines is sent to workers as it is, like that of a script: a worker that had to import the
    module, with pytest, Hypothesis and Ray, would take seconds to start.
    """
    gc.freeze()
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out every test that starts a process, and long files")
    parser.addoption("--long", action="store_true", help="with --quick: no file is too long")


def pytest_configure(config: pytest.Config) -> None:
    """With ``--quick``, a test ends where it would start a process: no mark can be forgotten. Less is tried, too."""
    if config.getoption("--quick"):
        settings.register_profile("quick", settings.get_profile("paceline"), max_examples=4)
        settings.load_profile("quick")
        for module, name in (
            (os, "fork"),
            (os, "posix_spawn"),
            (subprocess, "_fork_exec"),
            (_posixsubprocess, "fork_exec"),
        ):
            setattr(module, name, _unless_in_a_test(getattr(module, name)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Reproductions, examples and statistics of long simulations are not quick."""
    quick = config.getoption("--quick") and not config.getoption("--long")
    return True if quick and LONG.match(collection_path.name) else None


def _unless_in_a_test(start: Callable[..., Any]) -> Callable[..., Any]:
    def started(*arguments: Any, **options: Any) -> Any:
        if "PYTEST_CURRENT_TEST" in os.environ:
            pytest.skip("starts a process")
        return start(*arguments, **options)

    return started


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ[OF_THIS_RUN] == str(os.getpid()) and (left := left_behind()):
        print("\nprocesses left behind by the tests:", *left, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
