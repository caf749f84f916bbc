"""What is handed in counts once, whatever becomes of a call: the server's side of an agent, without Ray."""

import fcntl
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.fleets.processes.channel import FAILED, READY
from paceline.fleets.ray import connection, machine
from paceline.fleets.ray.connection import ActorGone
from paceline.fleets.ray.forecast import LATEST, UNFORESEEN
from paceline.fleets.ray.messages import (
    AgentInfo,
    Ended,
    Expected,
    Failed,
    Ready,
    Result,
    SignOfLife,
    Sum,
    versions,
)
from paceline.fleets.ray.process import EXPECTED_FOR
from paceline.fleets.ray.wire import CHUNK, MAX_INLINE
from paceline.fleets.real import open_files_for
from paceline.learning.arena.arena import ParameterArena, Report
from paceline.learning.gradients.distributed import MachineLost, MemoryMachine
from paceline.learning.gradients.held import Parts
from support.agents import Remote

REPORT = Report(4, 0.0, 0.0, 4.0)


@pytest.fixture
def remote() -> Iterator[Remote]:
    made = Remote(10)
    yield made
    made.close()


def test_nothing_is_sent_before_the_agent_is_ready(remote: Remote) -> None:
    remote.assign(5)
    remote.client.flush()
    assert remote.calls.sent == []
    remote.open()
    (started,) = [arguments for method, arguments in remote.calls.sent if method == "control"]
    assert started == (3, [("start", 7, 1), ("start", 9, 2)])
    assert remote.delivered() == [["order"]]


def test_orders_of_a_machine_travel_together_behind_the_weights_that_they_need(remote: Remote) -> None:
    remote.open()
    model = ParameterArena(remote.layout, torch.zeros(remote.layout.stride, dtype=torch.uint8))[0]
    remote.machine.deliver(0, 1, model)
    for worker in (7, 9):
        remote.assign(worker, worker)
    remote.machine.copy(0, 5)
    remote.client.flush()
    remote.client.flush()
    assert remote.delivered() == [["weights", "order", "order", "copy"]]


def test_what_a_worker_hands_in_is_told_of_once(remote: Remote) -> None:
    remote.open().assign(5)
    remote.tell(Ready(7, 55), Result(7, 5, 2, REPORT, 0.1))
    remote.tell(Result(7, 5, 2, REPORT, 0.1))
    assert remote.told() == [(7, READY, 0), (7, 2, 5)]
    assert remote.processes[7].pid == 55
    assert remote.workers[7].channel.reported == REPORT


def test_what_was_halted_is_not_handed_in_nor_taken_for_the_next_ticket(remote: Remote) -> None:
    remote.open().assign(5)
    remote.client.flush()
    remote.workers[7].channel.halt(5)
    remote.assign(6)
    remote.client.flush()
    assert remote.calls.sent[-1] == ("control", (3, [("halt", 7, 5)]))
    remote.tell(Result(7, 5, 2, REPORT, 0.1))
    assert remote.told() == []
    remote.tell(Result(7, 6, 2, REPORT, 0.1))
    assert remote.told() == [(7, 2, 6)]


def test_an_order_that_is_halted_before_it_is_sent_is_never_sent(remote: Remote) -> None:
    remote.open().assign(5)
    remote.workers[7].channel.halt(5)
    remote.client.flush()
    assert remote.delivered() == []
    assert [method for method, _ in remote.calls.sent] == ["control"]  # the start of processes


def test_a_recall_does_not_wait_for_weights(remote: Remote) -> None:
    remote.open().assign(5)
    remote.workers[7].channel.recall(5)
    remote.client.flush()
    assert remote.calls.sent[-1] == ("control", (3, [("recall", 7, 5)]))
    assert remote.delivered() == [["order"]]


def test_a_lost_agent_takes_its_workers_and_what_it_held_with_it(remote: Remote) -> None:
    remote.open().assign(5)
    remote.calls.answer("exchange", ActorGone("ended with its node"))
    assert remote.machine.incarnation == 1
    assert all(process.wait(0.0) for process in remote.processes.values())
    assert remote.processes[7].reap() == "ended with its node on 10.0.0.2"
    with pytest.raises(MachineLost):
        remote.machine.ask(((0, 1.0),), [4])
    first = remote.calls
    remote.processes[7] = remote.client.start(remote.workers[7])
    assert remote.calls is not first  # another agent
    first.answer("exchange", [Result(7, 5, 2, REPORT, 0.1)])  # after all
    assert remote.told() == []


def test_an_agent_that_does_not_answer_a_sum_is_lost(remote: Remote) -> None:
    remote.open()
    remote.calls.answers = [ActorGone("did not answer for 120 s")]
    with pytest.raises(MachineLost):
        remote.machine.ask(((0, 0.5), (1, 0.5)), [4, 5])()
    assert remote.machine.incarnation == 1


def silent(within: float) -> None:
    """No answer yet."""
    time.sleep(min(within, 0.001))


def test_nor_is_one_waited_for_that_does_not_say_that_it_lives_when_the_run_is_to_end(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ENDS_WITHIN", 0.05)
    monkeypatch.setattr("paceline.fleets.ray.client.kill_on", lambda *which: None)
    common, asked = remote.client.common, list[str]()
    ends = iter([False, False])
    monkeypatch.setattr(remote.client, "common", replace(common, is_over=lambda: next(ends, True)))
    remote.open()

    def ask(method: str, *_: object, **__: object) -> object:
        asked.append(method)
        return silent

    monkeypatch.setattr(remote.calls, "ask", ask)
    answers = [remote.machine.read(4), remote.machine.read(5)]
    with pytest.raises(MachineLost):
        answers[0]()
    assert asked == ["read", "read", "ping"]
    with pytest.raises(MachineLost):
        answers[1]()  # it is not asked again whether it lives
    assert asked == ["read", "read", "ping"]
    assert remote.processes.pop(7).reap() == "did not answer for 0.05 s when the run was to end on 10.0.0.2"


def test_one_that_lives_may_take_its_time_even_then(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ENDS_WITHIN", 0.05)
    monkeypatch.setattr(remote.client, "common", replace(remote.client.common, is_over=lambda: True))
    remote.open()
    began = time.monotonic()

    def ask(method: str, *arguments: Any, **options: Any) -> machine.Look:
        if method == "ping":
            return lambda within: [None]
        return lambda within: [[True]] if time.monotonic() > began + 0.2 else silent(within)

    monkeypatch.setattr(remote.calls, "ask", ask)
    assert remote.machine.finite([4]) == [True]
    assert remote.machine.incarnation == 0


def test_the_end_of_a_process_that_was_replaced_is_not_that_of_its_successor(remote: Remote) -> None:
    remote.open()
    remote.tell(Ended(7, 1, "was killed by SIGKILL"))
    assert remote.processes[7].reap() == "was killed by SIGKILL on 10.0.0.2"
    remote.processes[7] = remote.client.start(remote.workers[7])
    remote.tell(Ended(7, 1, "was killed by SIGKILL"))
    assert not remote.processes[7].has_ended()


def test_what_a_worker_raises_is_told(remote: Remote) -> None:
    remote.open().assign(5)
    remote.tell(Failed(7, 5, "ZeroDivisionError"))
    assert remote.told() == [(7, FAILED, 5)]
    assert remote.workers[7].channel.error == "ZeroDivisionError"


def test_signs_of_life_are_passed_on(remote: Remote) -> None:
    remote.open().assign(5)
    remote.tell(SignOfLife(7, 3, 6))
    assert (remote.workers[7].channel.last_heartbeat, remote.workers[7].channel.last_received) == (3, 6)


def test_an_agent_of_another_version_is_refused_in_one_line(remote: Remote) -> None:
    remote.calls.answer("describe", AgentInfo(1, "node", "10.0.0.2", {**versions(), "torch": "1.0"}))
    assert remote.told() == [(7, FAILED, 0), (9, FAILED, 0)]
    error = remote.workers[7].channel.error
    assert error.startswith("10.0.0.2 has Python ")
    assert error.endswith(": install the same")


def test_a_machine_without_room_is_refused(remote: Remote) -> None:
    remote.calls.answer("describe", AgentInfo(1, "node", "10.0.0.2", versions()))
    remote.calls.answer("open", "10.0.0.2 has 1.00 GiB free, and 2 workers need 3.00 GiB")
    assert "need 3.00 GiB" in remote.workers[9].channel.error
    assert all(process.has_ended() for process in remote.processes.values())


@pytest.mark.parametrize("reason", ["ended (IndexError: 7)", "did not answer for 120 s"])
def test_an_agent_that_is_given_up_is_killed_so_that_another_one_finds_room(
    reason: str, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[str, int]] = []
    monkeypatch.setattr("paceline.fleets.ray.client.kill_on", lambda node, pid, started: killed.append((node, pid)))
    remote.open().tell()
    remote.calls.answer("exchange", ActorGone(reason, stuck=True))
    assert remote.calls.sent[-1] == ("kill", ())
    assert killed == [("node", 1234)]
    assert all(process.has_ended() for process in remote.processes.values())


def test_a_silent_agent_is_killed_itself(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is killed first; one that does not say within seconds that it is alive is stopped or stuck."""
    killed: list[tuple[str, int]] = []
    monkeypatch.setattr("paceline.fleets.ray.client.kill_on", lambda node, pid, started: killed.append((node, pid)))
    monkeypatch.setattr("paceline.fleets.ray.client.PING_WITHIN", 0.05)
    remote.open()
    remote.processes[7].kill()
    assert remote.processes[9].wait(time.monotonic() + 60)
    assert remote.processes.pop(9).reap() == "did not answer for 0.05 s on 10.0.0.2"
    assert killed == [("node", 1234)]
    assert remote.calls.sent[-2:] == [("control", (3, [("kill", 7, 0)])), ("kill", ())]


def test_an_agent_whose_workers_are_killed_together_stays_if_it_answers(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.fleets.ray.client.PING_WITHIN", 3600.0)
    remote.open()
    remote.processes[7].kill()
    remote.processes[9].kill()
    assert [method for _, method, _ in remote.calls.made].count("ping") == 1
    remote.calls.answer("ping", None)
    assert ("kill", ()) not in remote.calls.sent
    remote.processes[7].kill()  # it is asked again
    assert [method for _, method, _ in remote.calls.made].count("ping") == 2
    remote.calls.answer("ping", None)


def test_a_process_that_has_its_number_by_now_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        started = connection.start_time(other.pid)
        connection._kill(other.pid, started - 1)
        time.sleep(0.05)
        assert other.poll() is None
        connection._kill(other.pid, started)
        assert other.wait() == -signal.SIGKILL
    connection._kill(other.pid, started)  # it is gone


def test_an_end_is_waited_for_also_where_many_files_are_open(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    first = os.eventfd(0)
    with open_files_for(1, 1200, 0):
        above = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 1100)
    os.close(first)
    monkeypatch.setattr(os, "eventfd", lambda value: above)
    process = remote.processes[7] = remote.client.start(remote.workers[7])
    assert process.sentinel >= 1100
    assert not process.wait(time.monotonic() + 0.01)
    process.ended("ended")
    assert process.wait(0.0)


def test_only_a_worker_whose_own_machine_has_no_node_is_soon_not_expected_any_more(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may take longer to start, as when their data are far away."""
    nodes = {0: "", 1: "of the other machine"}
    monkeypatch.setattr(
        connection, "placement_group_table", lambda each: {"bundles_to_node_id": {0: nodes[each]}, "state": "PENDING"}
    )
    monkeypatch.setattr(connection, "CHECK_INTERVAL", -1.0)
    reserved = connection.Connection.__new__(connection.Connection)
    reserved._capacity, reserved._groups = {}, [0, 1]
    monkeypatch.setattr(remote.client.common.session, "connection", reserved)
    waiting = remote.client.start(remote.workers[7])
    assert (waiting.expected_for, waiting.start_timeout) == (EXPECTED_FOR, math.inf)
    remote.client.bundle = 1
    starting = remote.client.start(remote.workers[7])
    assert starting.expected_for == math.inf
    assert starting.start_timeout < math.inf
    remote.client.bundle = 0
    assert waiting.expected_for == EXPECTED_FOR
    nodes[0] = "of another machine"
    assert waiting.expected_for == math.inf


def test_an_agent_that_was_to_start_on_a_node_that_is_gone_starts_elsewhere(remote: Remote) -> None:
    """Ray would let it wait for ever. One that has told where it is ends with its node, and says so."""
    machine: Any = remote.client.common.session.connection
    machine.has_capacity, machine.is_gone = lambda number: False, lambda number: len(remote.actors) == 1
    assert remote.processes[7].expected_for == EXPECTED_FOR
    first, second = remote.actors
    assert first.sent == [("kill", ())]
    first.answer("describe", ActorGone("ended"))  # which is no news any more
    assert not remote.processes[7].has_ended()
    assert remote.processes[9].start_timeout == math.inf
    assert remote.actors == [first, second]
    remote.open()
    machine.is_gone = lambda number: True
    assert remote.processes[7].expected_for == math.inf
    assert remote.actors == [first, second]


def test_while_workers_quit_a_call_waits_for_the_news_of_their_ends(remote: Remote) -> None:
    """Also when results come meanwhile: the training loop, which would send the next call, is over."""
    remote.assign(5)
    remote.open()
    for worker in remote.workers.values():
        worker.channel.quit()
    remote.client.flush()
    before = len(remote.calls.made)
    remote.tell(Result(7, 5, 2, REPORT, 0.1))
    assert [method for _, method, _ in remote.calls.made[before:]] == ["exchange"]


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
@pytest.mark.parametrize("numbers", [10, 3 * CHUNK // 4, MAX_INLINE], ids=["one chunk", "several", "through the store"])
def test_weights_and_sums_arrive_as_they_were_sent(numbers: int, wire: torch.dtype | None) -> None:
    remote = Remote(numbers, wire).open()
    torch.manual_seed(0)
    model = ParameterArena(remote.layout, torch.zeros(remote.layout.stride, dtype=torch.uint8))[0]
    model.vectors[0].normal_()
    for slot, version in ((0, 0), (1, 0), (0, 1)):
        remote.machine.deliver(slot, version, model)
    remote.client.flush()
    made = [arguments for _, method, arguments in remote.calls.made if method == "exchange"]
    (_, _, commands, _, _, *chunks) = next(arguments for arguments in made if arguments[2])
    size = numbers * (4 if wire is None else 2)
    assert (len(remote.stored), remote.client.sent) == (2 if size > MAX_INLINE else 0, 3 * size)
    for command, slot, stored, begin, end in commands:
        assert command == "weights"
        found = ParameterArena(remote.layout, torch.zeros(remote.layout.stride, dtype=torch.uint8))[0]
        pieces = [remote.stored[each - 1] for each in stored] or chunks[begin:end]
        remote.client.wire.unpack_weights(pieces, found)
        expected = model.vectors[0] if wire is None else model.vectors[0].to(wire).float()
        assert torch.equal(found.vectors[0], expected), slot
    message = remote.client.wire.packed(model.vectors)
    remote.calls.answers = [[[], *np.array_split(message, 3)]]
    (vector,), ends = remote.machine.ask(((0, 0.5),), [])()
    assert torch.equal(vector.float(), model.vectors[0] if wire is None else model.vectors[0].to(wire).float())
    assert (ends, remote.client.received) == ([], size)
    remote.close()


# Sums that come without being asked for.


def end_of_row(remote: Remote) -> Any:
    return np.zeros(remote.layout.losses.end - remote.layout.weights_end, dtype=np.uint8)


def expected(remote: Remote) -> list[Expected]:
    """What the last call has told the agent to expect."""
    return [command[1] for command in remote.last_commands() if command[0] == "expect"]


def round_of(remote: Remote, orders: dict[int, int], parts: Parts, *, sums: bool = True) -> list[float]:
    """One update: tickets by worker are handed in, one after the other, and a sum of them is asked for."""
    for place, (worker, serial) in enumerate(orders.items()):
        remote.assign(serial, worker, slot=4 + place)
    remote.client.flush()
    wanted, end = expected(remote), end_of_row(remote)
    value = float(max(orders.values()))
    row = np.full(10, value, dtype=np.float32).view(np.uint8)
    results = [Result(worker, serial, 2, REPORT, 0.1) for worker, serial in orders.items()]
    for each in wanted if sums else ():
        last = max(serial for _, serial in each.tickets)
        number = next(i for i, result in enumerate(results) if result.serial == last)
        results[number] = results[number]._replace(sum=Sum(each, [end] * len(each.ends), row))
    remote.tell(*results)
    remote.calls.answers = [[[end] * len(orders), row]]
    (vector,), ends = remote.machine.ask(parts, [4 + place for place in range(len(orders))])()
    assert len(ends) == len(orders)
    return vector.tolist()


@pytest.mark.parametrize("workers", [(7,), (7, 9)], ids=["single gradients", "all of a machine"])
def test_a_sum_that_was_asked_for_twice_comes_by_itself(remote: Remote, workers: tuple[int, ...]) -> None:
    remote.open()
    parts = tuple((row, 1.0 / len(workers)) for row in range(len(workers)))
    for number in range(5):
        orders = {worker: 10 * number + place for place, worker in enumerate(workers)}
        assert round_of(remote, orders, parts) == [float(max(orders.values()))] * 10
    assert [method for method, _ in remote.calls.asked] == ["sum", "sum"]


def test_a_sum_with_other_weights_than_expected_is_asked_for(remote: Remote) -> None:
    remote.open()
    for number in range(3):
        round_of(remote, {7: 10 * number, 9: 10 * number + 1}, ((0, 0.5), (1, 0.5)))
    assert len(remote.calls.asked) == 2
    round_of(remote, {7: 40, 9: 41}, ((0, 0.25), (1, 0.75)))
    assert len(remote.calls.asked) == 3
    round_of(remote, {7: 50, 9: 51}, ((0, 0.25), (1, 0.75)))
    assert expected(remote) == []  # the last one was wrong


def test_a_sum_with_a_ticket_that_was_halted_is_not_used(remote: Remote) -> None:
    """Its slot may have been written to by the next one while it was added up."""
    remote.open()
    for number in range(2):
        round_of(remote, {7: 10 * number, 9: 10 * number + 1}, ((0, 0.5), (1, 0.5)))
    for place, worker in enumerate((7, 9)):
        remote.assign(30 + place, worker, slot=4 + place)
    remote.client.flush()
    (wanted,) = expected(remote)
    remote.workers[7].channel.halt(30)
    remote.assign(32, 7, slot=4)
    row = np.zeros(40, dtype=np.uint8)
    remote.tell(Result(9, 31, 2, REPORT, 0.1, Sum(wanted, [end_of_row(remote)] * 2, row)))
    remote.tell(Result(7, 32, 2, REPORT, 0.1))
    remote.calls.answers = [[[end_of_row(remote)] * 2, row]]
    remote.machine.ask(((0, 0.5), (1, 0.5)), [4, 5])()
    assert len(remote.calls.asked) == 3


def unforeseen(remote: Remote) -> None:
    """Sums with other weights than ever before."""
    remote.open()
    for number in range(UNFORESEEN):
        assert not remote.client.forecast.sends_rows
        round_of(remote, {7: 10 * number, 9: 10 * number + 1}, ((0, 0.5 + number), (1, 0.5)))
    assert len(remote.calls.asked) == UNFORESEEN


def handed_in(remote: Remote, gradients: dict[int, torch.Tensor], serial: int) -> None:
    """Tickets in the slots from 4 on, and their gradients along with the news."""
    end = end_of_row(remote)
    for slot, worker in zip(gradients, (7, 9), strict=False):
        remote.assign(serial + slot, worker, slot=slot)
    remote.client.flush()
    *_, commands = (arguments[2] for _, method, arguments in remote.calls.made if method == "exchange" and arguments[2])
    along = {each[1].tickets[0][0]: each[1] for each in commands if each[0] == "expect"}
    assert along.keys() == gradients.keys()
    for slot, worker in zip(gradients, (7, 9), strict=False):
        row = gradients[slot].numpy().view(np.uint8)
        remote.tell(Result(worker, serial + slot, 2, REPORT, 0.1, Sum(along[slot], [end], row)))


def test_gradients_come_along_where_sums_cannot_be_foreseen(remote: Remote) -> None:
    """They are added up as their machine would, to the bit, and may be used again."""
    unforeseen(remote)
    torch.manual_seed(0)
    there = MemoryMachine((7, 9), ParameterArena(remote.layout, torch.zeros(20 * remote.layout.stride).to(torch.uint8)))
    for number in range(3):
        gradients = {slot: torch.randn(10) for slot in (4, 5)}
        handed_in(remote, gradients, 100 * (number + 1))
        for slot, gradient in gradients.items():
            there.arena[slot].vectors[0].copy_(gradient)
        for parts in (((0, 1 / 3), (1, 2 / 7)), ((1, 0.1 * number),), ((0, 1.0),)):
            (ours,), ends = remote.machine.ask(parts, [row + 4 for row, _ in parts])()
            ((theirs,), _) = there.ask(parts, [])()
            assert torch.equal(ours, theirs)
            assert len(ends) == len(parts)
    assert len(remote.calls.asked) == UNFORESEEN


def test_a_gradient_that_did_not_come_along_is_asked_for(remote: Remote) -> None:
    """Its ticket was given out before, or its machine was lost since."""
    unforeseen(remote)
    handed_in(remote, {4: torch.ones(10), 5: torch.ones(10)}, 100)
    remote.assign(200, 9, slot=5)
    remote.tell(Result(9, 200, 2, REPORT, 0.1))
    remote.calls.answers = [[[end_of_row(remote)] * 2, np.zeros(40, dtype=np.uint8)]]
    remote.machine.ask(((0, 0.5), (1, 0.25)), [4, 5])()
    assert len(remote.calls.asked) == UNFORESEEN + 1
    remote.calls.answer("exchange", ActorGone("ended"))
    with pytest.raises(MachineLost):
        remote.machine.ask(((0, 0.5),), [4])


@pytest.mark.parametrize(("numbers", "wire"), [(50_000, None), (10, torch.bfloat16)], ids=["large", "rounded"])
def test_large_gradients_and_rounded_ones_are_always_added_up_there(numbers: int, wire: torch.dtype | None) -> None:
    forecast = Remote(numbers, wire).client.forecast
    for _ in range(LATEST):
        assert forecast.take(((0, 0.5),), [4]) is None
    assert not forecast.sends_rows


def test_a_row_that_was_never_used_is_not_taken_for_that_of_the_next_ticket(remote: Remote) -> None:
    """The first ticket was dropped, and the second one has its slot."""
    remote.open()
    for number in range(2):
        round_of(remote, {7: number}, ((0, 1.0),))
    end = end_of_row(remote)
    first, second = (np.full(10, value, dtype=np.float32).view(np.uint8) for value in (1.0, 2.0))
    remote.assign(5)
    remote.client.flush()
    (wanted,) = expected(remote)
    remote.tell(Result(7, 5, 2, REPORT, 0.1, Sum(wanted, [end], first)))
    remote.assign(6)
    remote.tell(Result(7, 6, 2, REPORT, 0.1))
    remote.calls.answers = [[[end], second]]
    (vector,), _ = remote.machine.ask(((0, 1.0),), [4])()
    assert set(vector.tolist()) == {2.0}


def test_one_call_an_update_waits_at_the_agent(remote: Remote) -> None:
    """It brings orders there and news back; an empty one is made only where no other waits."""
    remote.open()
    before = len(remote.calls.made)
    for number in range(4):
        round_of(remote, {7: 10 * number, 9: 10 * number + 1}, ((0, 0.5), (1, 0.5)))
    calls = [arguments for _, method, arguments in remote.calls.made[before:] if method == "exchange"]
    assert [arguments[1] for arguments in calls] == [1, 2, 3, 4]  # they are numbered
    remote.tell()  # of no use to the training loop
    assert remote.last_commands() == []


def test_a_call_with_weights_in_the_store_returns_at_once_and_another_waits() -> None:
    """Ray keeps what a call names until the call returns: the store would fill up with versions of the model."""
    remote = Remote(MAX_INLINE).open()
    model = ParameterArena(remote.layout, torch.zeros(remote.layout.stride, dtype=torch.uint8))[0]
    before = len(remote.calls.made)
    for version in range(3):
        remote.machine.deliver(0, version, model)
        remote.client.flush()
    made = [(then, arguments) for then, method, arguments in remote.calls.made if method == "exchange"]
    assert [bool(arguments[3]) for _, arguments in made] == [True, False, False, False]  # waits for news
    for then, _ in made[1:]:
        then([[]])
    assert len(remote.calls.made) == before + 3  # the first still waits
    made[0][0]([[]])
    assert len(remote.calls.made) == before + 4
    remote.close()
