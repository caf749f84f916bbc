"""A pool of processes for independent runs, one thread of torch each. They end when the pool or their parent does."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import _forkserver, ensure_running
from multiprocessing.process import BaseProcess

PATIENCE = 5.0  # seconds from asking a process to end to killing it


@contextmanager
def process_pool(processes: int, modules: Sequence[str]) -> Iterator[ProcessPoolExecutor]:
    """Processes that have imported ``modules``. They end with this block, however it ends."""
    context = _context(list(modules))
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, initializer=_begin_process)
    try:
        yield pool
    except BaseException:
        _end_fork_server()
        workers = set(multiprocessing.active_children()) - before
        for process in workers:
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in workers:
            _end(process)
        raise
    pool.shutdown()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch in this process, as in those of a pool: runs give the same bits in either."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(process: BaseProcess) -> None:
    process.join(timeout=PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()


def _context(modules: list[str]) -> BaseContext:
    """Processes are forked from one that has imported ``modules``, once for all.

    Ctrl-C goes to all processes of a terminal, and would find that one in the midst of an import: it and its children
    ignore it, for their parent ends them.
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(modules)
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                ensure_running()
            finally:
                signal.signal(signal.SIGINT, before)
    return context


def _end_fork_server() -> None:
    """Kill it: what it was asked to fork while it imported modules would find its parent gone, and say so at length."""
    pid = getattr(_forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _begin_process() -> None:
    import torch

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a background job of a shell ignores Ctrl-C, with all of it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """However the parent ends, even killed: work must not outlive it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
