"""macOS and Windows: everything but worker processes works where what only Linux has is hidden.

In a process of its own, and in all that it starts, Paceline is not given the modules and functions that Windows lacks:
importing or calling one fails there as it would on Windows. The last lines show that the hiding works.
"""

import os
import subprocess
import sys
from pathlib import Path

HIDE = """
import builtins, multiprocessing.context, os, signal, types

MODULES = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"}
LACKING = {
    os: "memfd_create pidfd_open sched_getaffinity sched_setaffinity eventfd O_NOFOLLOW O_NONBLOCK O_CLOEXEC fork "
        "forkpty setsid killpg getuid geteuid sysconf mkfifo pipe2 waitid",
    signal: "SIGKILL SIGSTOP SIGCONT SIGUSR1 SIGUSR2 SIGHUP SIGCHLD pidfd_send_signal pthread_sigmask siginterrupt",
}
POORER = {}
for module, names in LACKING.items():
    POORER[module.__name__] = types.ModuleType(module.__name__)
    vars(POORER[module.__name__]).update({k: v for k, v in vars(module).items() if k not in names.split()})
multiprocessing.context.DefaultContext.get_all_start_methods = lambda self: ["spawn"]
usual = builtins.__import__


def without(name, globals=None, *others, **named):
    if (globals or {}).get("__name__", "").startswith("paceline"):
        if name.partition(".")[0] in MODULES:
            raise ImportError(f"{name} is not there: hidden")
        if name in POORER:
            return POORER[name]
    return usual(name, globals, *others, **named)


builtins.__import__ = without
"""

USE = """
import importlib, pkgutil, sys
from pathlib import Path

import torch

import paceline
from paceline import theory
from paceline.cli.main import main
from paceline.delays import LogNormal
from paceline.reports.page import describe, page
from paceline.storage.reading import read_run

LINUX = ("paceline.fleets.processes", "paceline.fleets.ray", "paceline.testing")


def task():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    y = (x.sum(1) > 0).long()
    return paceline.Task(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, (x, y), (x, y))


if __name__ == "__main__":
    for name in paceline.__all__:
        getattr(paceline, name)
    for found in pkgutil.walk_packages(paceline.__path__, "paceline."):
        if not found.name.startswith(LINUX) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    fleet = paceline.SimulatedFleet([LogNormal(1.0, 0.2)] * 3 + [LogNormal(3.0, 0.2)])
    same = dict(fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=8)
    stop, rule = paceline.Stop(updates=20), "asgd"
    first = paceline.train(task(), strategy=rule, stop=stop, directory="run", progress=False, **same)
    again = paceline.replay("run", task(), strategy=rule, **same)
    print("replay", again.same, len(first.history) > 0)
    page([describe("run", read_run(Path("run")))])
    found = paceline.compare(task(), strategies=["ssgd", rule], seeds=[0], jobs=2, stop=stop, progress=False, **same)
    found.plot("curves.png")
    found.report("comparison.html")
    print("compare", len(found.entries))
    sampler = paceline.FinePruning(samples=8, window=4, start=2, block=2, count=1, fraction=0.5)
    print("pruning", len(list(sampler)))
    print("theory", theory.critical_step(10) > 0, paceline.predict("ssgd", fleet) is not None)
    with paceline.record("recording", worker=0, workers=1) as recorder:
        with recorder.step(samples=8):
            pass
    print("commands", main(["report", "run", "--out", "page.html"]), main(["predict", "run"]))
    for make in (paceline.ProcessFleet, paceline.RayFleet):
        sys.platform, real = "darwin", sys.platform
        try:
            make(2)
        except paceline.ConfigError as error:
            print(error)
        finally:
            sys.platform = real
    try:
        importlib.import_module("paceline.fleets.processes.fork_loop")
    except ImportError as error:
        print(error)
"""
EXPECTED = """replay True True
compare 2
pruning 8
theory True True
commands 0 0
worker processes need Linux, and this is darwin: use a SimulatedFleet
worker processes need Linux, and this is darwin: use a SimulatedFleet
resource is not there: hidden
"""


def test_all_but_worker_processes_works_without_what_only_linux_has(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    told = [line for line in done.stdout.splitlines(keepends=True) if line in EXPECTED.splitlines(keepends=True)]
    assert (done.returncode, "".join(told)) == (0, EXPECTED), done.stderr
    assert "Who was waited for" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "comparison.html").exists()
    assert (tmp_path / "curves.png").exists()
