"""How a process of a pool begins: with one thread of torch, and with the end of its parent as its own."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


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
