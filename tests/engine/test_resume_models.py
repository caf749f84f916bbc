"""Runs in which workers hand in models: resumed and replayed, they come to the same bits."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.core.messages import Arrived, Halt, Left, Start, Step
from paceline.storage import saved_models
from paceline.storage.checkpoint import read_checkpoint
from support.digits import rows, weights
from support.resumable import MODELS, PROCESSES, replayed
from support.until import UntilAll

UPDATES = 5


@pytest.fixture(autouse=True)
def architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not depend on how a run went, and takes longer to save than these take."""
    monkeypatch.setattr(saved_models, "_save_architecture", lambda *arguments: None)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", MODELS)
def test_a_run_resumed_after_any_update_has_the_bytes_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    """Weights, the best local model, what it all took, history, trace and metrics."""
    case = MODELS[name]
    straight = case.run(tmp_path / "straight", pl.Stop(updates=UPDATES))
    for updates in range(1, UPDATES + 1):
        resumed = case.run(tmp_path / "broken", pl.Stop(updates=updates), resume=True)
    assert rows(resumed) == rows(straight)
    assert resumed.costs == straight.costs
    assert files(tmp_path / "broken") == files(tmp_path / "straight")
    assert "local.safetensors" in files(tmp_path / "straight")


@pytest.mark.parametrize("name", ["averages in groups", "averages of the fastest", "ensembles of the fastest"])
def test_a_run_resumed_after_any_time_has_the_bytes_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    case = MODELS[name]
    case.run(tmp_path / "straight", pl.Stop(seconds=1.0))
    for seconds in (0.17, 0.4, 0.61, 1.0):
        case.run(tmp_path / "broken", pl.Stop(seconds=seconds), resume=True)
    assert files(tmp_path / "broken") == files(tmp_path / "straight")


def test_a_checkpoint_on_the_way_changes_nothing(tmp_path: Path) -> None:
    case = MODELS["ensembles"]
    case.run(tmp_path / "without", pl.Stop(updates=UPDATES))
    case.run(tmp_path / "with", pl.Stop(updates=UPDATES), checkpoint=pl.Every(updates=1))
    assert files(tmp_path / "with") == files(tmp_path / "without")


def test_another_optimizer_or_model_is_refused(tmp_path: Path) -> None:
    case = MODELS["ensembles"]
    case.run(tmp_path, pl.Stop(updates=2))
    other = replace(case, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9))
    with pytest.raises(pl.ConfigError, match=r"begun with optimizer: lr = 0\.1, not 0\.2"):
        other.run(tmp_path, pl.Stop(updates=3), resume=True)
    smaller = replace(case, model=lambda: torch.nn.Sequential(torch.nn.Linear(64, 10)))
    with pytest.raises(pl.ConfigError, match="the checkpoint is of another model"):
        smaller.run(tmp_path, pl.Stop(updates=3), resume=True)


@pytest.mark.parametrize("name", MODELS)
def test_a_simulated_run_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    MODELS[name].run(tmp_path, pl.Stop(updates=4))
    found = replayed(MODELS[name], tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


# Real processes


ON_PROCESSES = [
    "averages of the fastest", "averages, asynchronous", "ensembles of the fastest", "diloco, asynchronous",
    "buffer of models", "elastic models",
]  # fmt: skip


@pytest.mark.parametrize("name", ON_PROCESSES)
def test_a_run_on_processes_is_resumed_and_follows_from_its_trace_bit_for_bit(name: str, tmp_path: Path) -> None:
    """What was handed in before the break counts after it, and what was under way is dropped and put back."""
    case = replace(MODELS[name], fleet=PROCESSES.fleet)
    for updates in (4, 7, 10):
        run = case.run(tmp_path, pl.Stop(updates=updates), resume=True)
    assert run.history[-1].updates == 10
    facts = list(run.trace)
    assert sum(isinstance(fact, Left) for fact in facts) == 2 * 5
    given_out = Counter(fact.ticket for fact in facts if isinstance(fact, Start))
    dropped = {fact.ticket for fact in facts if isinstance(fact, Halt)}
    used = {ticket for fact in facts if isinstance(fact, Step) for ticket in fact.weights}
    assert set(given_out.values()) == {1}
    assert not used & dropped
    assert used | dropped <= given_out.keys()
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_a_model_that_was_handed_in_and_not_used_yet_is_in_the_checkpoint(tmp_path: Path) -> None:
    """The fast group steps many times while the slow one waits for its last worker, whose fellow has handed in."""
    seconds = dict.fromkeys(range(5), 0.02) | {4: 0.5}
    fleet = pl.ProcessFleet(workers=5, slow={n: pl.delays.Constant(each) for n, each in seconds.items()}, threads=1)
    case = replace(MODELS["averages in groups"], fleet=fleet)
    updates = 0
    while not (handed_in := _handed_in(tmp_path)):
        updates = 2 * updates + 5
        case.run(tmp_path, pl.Stop(updates=updates), resume=True)
    ticket = handed_in[0]  # the last worker of its group begins again
    run = case.run(tmp_path, pl.Stop(updates=10**6), resume=True, callbacks=[UntilAll(5, updates=1)])
    used = [each.serial for fact in run.trace if isinstance(fact, Step) for each in fact.weights]
    arrived = [fact.ticket.serial for fact in run.trace if isinstance(fact, Arrived)]
    assert arrived.count(ticket) == used.count(ticket) == 1
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences) == (None, {})


def _handed_in(directory: Path) -> list[int]:
    """The tickets of models that a run left unused."""
    if not (directory / "checkpoint.safetensors").exists():
        return []
    state = read_checkpoint(directory / "checkpoint.safetensors")["contributions"]
    pairs = zip(state["tickets"], state["rows"], strict=True)
    return [ticket[0] for ticket, (row, handed_in) in pairs if handed_in]


def test_processes_come_to_the_bits_of_a_simulation(tmp_path: Path) -> None:
    """Where all wait for all, nothing depends on who is faster."""
    for name in ("averages", "averaged momentum", "ensembles"):
        case = MODELS[name]
        simulated = case.run(tmp_path / f"{name}, simulated", pl.Stop(updates=4))
        real = replace(case, fleet=PROCESSES.fleet).run(tmp_path / f"{name}, real", pl.Stop(updates=4))
        assert torch.equal(weights(real.model), weights(simulated.model))
        assert simulated.local is not None
        assert real.local is not None
        assert torch.equal(weights(real.local), weights(simulated.local))
        for one, other in zip(rows(real), rows(simulated), strict=True):
            assert (one[0], *one[2:]) == (other[0], *other[2:])  # all but the seconds
