"""How a process of a pool begins: with one thread of torch, and with the end of its parent as its own."""

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import _forkserver, ensure_running


def pool_context(modules: list[str]) -> BaseContext:
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


def end_fork_server() -> None:
    """Kill it: what it was asked to fork while it imported modules would find its parent gone, and say so at length."""
    pid = getattr(_forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def begin_process() -> None:
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
