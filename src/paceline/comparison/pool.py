"""A pool of processes for independent runs, each with one thread of torch; it ends with the process that started it."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import cloudpickle

from paceline.engine.signals import Interrupts

P = ParamSpec("P")
T = TypeVar("T")
EXPERIMENT = "paceline.config.experiment"  # imports torch, and all that a run of a TOML file needs
OPTIMIZERS = "torch._dynamo"  # what torch imports with its first optimizer: as much again as torch itself


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside this block: results have the same bits however many runs share the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Pool(ProcessPoolExecutor):
    """Ctrl-C waits until a process has been started, which is when a job is handed in, and takes no time.

    One that was started by half is in no list of processes to be ended, and would end in a traceback of its own.
    """

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        with Interrupts(termination=True) as interrupts:
            future = super().submit(function, *arguments, **options)
        if interrupts.requested is not None:
            signal.raise_signal(interrupts.requested)
        return future


@contextmanager
def process_pool(
    processes: int, modules: Sequence[str] = (EXPERIMENT, OPTIMIZERS), shared: bytes | None = None
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that have imported ``modules``. Work that is under way is killed if the block raises.

    ``shared`` is a pickled value that each process gets once: see ``shared_value``.
    """
    context = _fork_context(["torch", *modules])
    before = set(multiprocessing.active_children())
    pool = _Pool(processes, context, initializer=_start_worker, initargs=(shared,))
    try:
        _wait_for_fork_server(context)
        yield pool
    except BaseException:
        _kill_fork_server()
        workers = set(multiprocessing.active_children()) - before
        for process in workers:
            process.terminate()
        for process in workers:
            process.join(timeout=5.0)
            if process.is_alive():
                process.kill()
                process.join()
        # Its thread ends here: at its own end, Python would write to a pipe that the thread may be about to close.
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def call_in_pool(processes: int, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function that needs torch in another process, or in this one if ``processes`` is 1."""
    if processes == 1:
        with one_thread():
            return function(*arguments, **options)
    with process_pool(1) as pool:
        return pool.submit(function, *arguments, **options).result()


def _fork_context(modules: list[str]) -> BaseContext:
    """Processes are forked from a fork server that imports ``modules`` once.

    A terminal sends Ctrl-C to all of its processes. The fork server and its children ignore it, because it could arrive
    in the middle of an import; the parent process ends them.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(modules)
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                forkserver.ensure_running()
            finally:
                signal.signal(signal.SIGINT, before)
    return context


def _wait_for_fork_server(context: BaseContext) -> None:
    """Wait until the fork server has imported its modules, which takes seconds: this may be interrupted."""
    if context.get_start_method() == "forkserver":
        first = context.Process(target=_nothing)  # type: ignore[attr-defined]
        first.start()
        first.join()


def _nothing() -> None: ...


def _kill_fork_server() -> None:
    """Kill the fork server: a process that it forks later would print a traceback, because the parent is gone."""
    server = getattr(forkserver.ensure_running, "__self__", None)
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


_shared: dict[str, Any] = {}


def shared_value(kind: type[T]) -> T:
    """In a process of a pool: the value that all of its jobs share. It is unpickled when it is first asked for."""
    if "value" not in _shared:
        _shared["value"] = cloudpickle.loads(_shared.pop("pickled"))
    value = _shared["value"]
    assert isinstance(value, kind)
    return value


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the user's script, which need not be made for that.

    What is defined in the script is pickled by value.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _start_worker(shared: bytes | None) -> None:
    import torch

    if shared is not None:
        _shared["pickled"] = shared

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # background jobs of a shell ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent process has ended, even if it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
