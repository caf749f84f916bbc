"""A pool of processes that is given up leaves nothing behind, no thread either."""

import threading
import time
from concurrent.futures import process
from typing import Any

import pytest

from paceline.comparison.pool import process_pool


class _GivenUp(Exception):
    pass


def _given_up() -> None:
    with process_pool(1, []) as pool:
        pool.submit(time.sleep, 100)
        raise _GivenUp


def test_the_thread_of_a_pool_ends_with_the_block_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end Python writes to the pipe of each such thread that is left, which may close it at the same moment."""
    manager: Any = vars(process)["_ExecutorManagerThread"]
    real = manager.join_executor_internals

    def slow(self: Any) -> None:
        time.sleep(0.5)
        real(self)

    monkeypatch.setattr(manager, "join_executor_internals", slow)
    with pytest.raises(_GivenUp):
        _given_up()
    assert not [thread for thread in threading.enumerate() if isinstance(thread, manager)]
