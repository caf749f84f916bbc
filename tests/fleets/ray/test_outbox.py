"""What an agent tells, and what it tells together, without Ray."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import numpy as np
import pytest

from paceline.fleets.ray.messages import Expected, Message, Ready, Result
from paceline.fleets.ray.outbox import Outbox
from paceline.fleets.ray.wire import CHUNK
from paceline.learning.arena.arena import Report

REPORT = Report(4, 0.0, 0.0, 4.0)
BOTH = Expected(((0, 0.5), (1, 0.5)), (4, 5), ((4, 10), (5, 11)))


def result(worker: int, serial: int) -> Result:
    return Result(worker, serial, 2, REPORT, 0.1)


def taken(outbox: Outbox, *, waiting: int = 1, rows: int = 0) -> list[Message]:
    return outbox.take(waiting=waiting, rows=rows)


def test_a_call_waits_for_something_to_tell() -> None:
    outbox = Outbox(40)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(taken, outbox)
        outbox.tell([Ready(1, 2)])
        assert call.result() == [Ready(1, 2)]


def test_a_call_too_many_does_not_wait() -> None:
    outbox = Outbox(40)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(taken, outbox) for _ in range(2)]
        done, rest = wait(calls, return_when=FIRST_COMPLETED)
        assert [call.result() for call in done] == [[]]
        outbox.tell([Ready(1, 2)])
        assert [call.result() for call in rest] == [[Ready(1, 2)]]


def test_a_sum_comes_with_the_result_that_completes_it() -> None:
    outbox = Outbox(40)
    outbox.expect(BOTH)
    first, last = outbox.completed(result(1, 11), 5), outbox.completed(result(0, 10), 4)
    assert first.sum is None
    assert last.sum is not None
    assert last.sum.expected == BOTH


def test_what_was_halted_completes_no_sum_and_its_successor_neither() -> None:
    outbox = Outbox(40)
    outbox.expect(BOTH)
    assert outbox.completed(result(1, 11), 5).sum is None
    assert outbox.completed(result(0, 12), 4).sum is None
    outbox.expect(Expected(((0, 1.0),), (4,), ((4, 13),)))  # of a slot in the sum that will not come any more
    assert outbox.completed(result(0, 10), 4).sum is None


def test_news_of_a_sum_wait_for_the_rest_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.fleets.ray.outbox.LINGER", 3600.0)
    outbox = Outbox(40)
    outbox.expect(BOTH)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(taken, outbox)
        outbox.tell([outbox.completed(result(1, 11), 5)])
        assert not call.done()
        outbox.tell([outbox.completed(result(0, 10), 4)])
        assert [message.worker for message in call.result()] == [1, 0]


def test_but_not_for_ever() -> None:
    outbox = Outbox(40)
    outbox.expect(BOTH)
    outbox.tell([outbox.completed(result(1, 11), 5)])
    assert [message.worker for message in taken(outbox)] == [1]


def handed_in(size: int) -> Outbox:
    """Three sums of single gradients."""
    outbox = Outbox(size)
    for slot in (4, 5, 6):
        outbox.expect(Expected(((slot - 4, 1.0),), (slot,), ((slot, slot + 10),)))
    outbox.tell([outbox.completed(result(slot, slot + 10), slot) for slot in (4, 5, 6)])
    return outbox


def numbers(take: Callable[[], list[Message]]) -> list[int]:
    return [len(take()) for _ in range(3)]


def test_small_sums_go_together_and_large_ones_by_themselves() -> None:
    assert len(taken(handed_in(40))) == 3
    large = handed_in(CHUNK + 1)
    assert numbers(lambda: taken(large)) == [1, 1, 1]
    in_chunks = handed_in(CHUNK + 1)
    assert [len(taken(in_chunks, rows=2)), len(taken(in_chunks, rows=2))] == [2, 1]


def test_models_go_one_by_one_if_they_are_large() -> None:
    outbox = Outbox(40)
    row = np.zeros(CHUNK + 1, dtype=np.uint8)
    outbox.tell([result(worker, worker)._replace(row=row) for worker in range(3)])
    assert numbers(lambda: taken(outbox)) == [1, 1, 1]


def test_a_closed_outbox_lets_everybody_go() -> None:
    outbox = Outbox(40)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(taken, outbox, waiting=2) for _ in range(2)]
        outbox.close()
        assert [call.result() for call in calls] == [[], []]
