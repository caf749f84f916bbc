"""A run on processes is resumed with nothing repeated but what its workers were at."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import paceline as pl
from paceline.core.messages import Halt, Joined, Left, Start, Step
from paceline.storage.checkpoint import read_checkpoint
from support.resumable import PROCESSES, PRUNING, STRATEGIES, Case, replayed

TESTS = Path(__file__).parents[1]
UPDATES = 24


def case(name: str) -> Case:
    return replace(PROCESSES, strategy=STRATEGIES[name])


@pytest.mark.parametrize(
    "case",
    [*map(case, ["synchronous", "asynchronous", "compensation", "grouped compensation"]),
     replace(case("compensation"), sampling=pl.ReassignShards(PRUNING))],
    ids=lambda each: f"{type(each.strategy).__name__}, {each.sampling}"[:60],
)  # fmt: skip
def test_a_run_that_was_resumed_follows_from_its_trace_bit_for_bit(case: Case, tmp_path: Path) -> None:
    """What was handed in before the break counts after it, and what was under way is dropped and put back."""
    for updates in (9, 16, UPDATES):
        run = case.run(tmp_path, pl.Stop(updates=updates), resume=True)
    assert run.history[-1].updates == UPDATES
    facts = list(run.trace)
    assert sum(isinstance(fact, Left) for fact in facts) == 2 * 5
    assert sum(isinstance(fact, Joined) for fact in facts) == 3 * 5
    times = [fact.at for fact in facts if isinstance(fact, Left | Joined)]
    assert times == sorted(times)
    given_out = {fact.ticket for fact in facts if isinstance(fact, Start)}
    dropped = {fact.ticket for fact in facts if isinstance(fact, Halt)}
    used = {ticket for fact in facts if isinstance(fact, Step) for ticket in fact.weights}
    assert not used & dropped
    assert used | dropped <= given_out
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_what_was_handed_in_is_in_the_checkpoint(tmp_path: Path) -> None:
    """LGC-SGD keeps the gradients of its fastest for one round: they outlive the workers that computed them."""
    case("compensation").run(tmp_path, pl.Stop(updates=9))
    state = read_checkpoint(tmp_path / "checkpoint.safetensors")
    ledger = state["loop"]["coordinator"]["ledger"]
    held = [*ledger["_fresh"], *ledger["_late"], *ledger["_kept"]]
    assert len(ledger["_kept"]) == 3
    assert len(state["contributions"]["rows"]) >= len(held)


def test_a_run_whose_server_was_killed_is_resumed(tmp_path: Path) -> None:
    """SIGKILL in the middle of everything; then it comes to its end, and follows from its trace."""
    code = "from pathlib import Path; from support.resumable import endless_processes; endless_processes(Path({!r}))"
    server = subprocess.Popen([sys.executable, "-c", code.format(str(tmp_path / "run"))], cwd=TESTS)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    while not checkpoint.exists():
        assert server.poll() is None, "it ended by itself"
        time.sleep(0.01)
    server.kill()
    assert server.wait() == -signal.SIGKILL
    made = read_checkpoint(checkpoint)["loop"]["version"]
    run = PROCESSES.run(tmp_path / "run", pl.Stop(updates=made + 10), resume=True)
    assert run.history[-1].updates == made + 10
    found = replayed(PROCESSES, tmp_path / "run")
    assert (found.departure, found.differences, found.compared) == (None, {}, True)
