"""Every rule for gradients in a run with a model: on all kinds of workers, from a checkpoint, and from its trace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Reported, Step, mean
from paceline.delays import Constant, Delay, ShiftedExponential
from paceline.testing.retraced import WrittenDown, retrace
from support.digits import digits, linear, weights
from support.quadratic import Consecutive, quadratic
from support.resumable import Case, replayed, sgd
from support.tiny import TINY

RULES = {
    "bounded staleness": pl.BoundedStaleness(slack=1),
    "buffered": pl.Buffered(size=3),
    "staleness-aware": pl.StalenessAware(size=2),
    "delay-adaptive": pl.DelayAdaptive(),
    "ringmaster": pl.Ringmaster(threshold=2),
    "rennala": pl.Rennala(batch=12),
    "malenia": pl.Malenia(batch=9),
    "rescaled": pl.Rescaled(),
    "newest of each": pl.NewestOfEach(),
    "anytime": pl.Anytime(seconds=0.06, blocks=4),
    "quorum and grace": pl.QuorumGrace(quorum=2, grace=0.01),
    "adaptive quorum": pl.AdaptiveQuorum(quorum=1, patience=1, burn_in=0),
    "replicated": pl.Replicated([[0], [1], [2]]),
    "in groups": pl.Grouped([[0, 1], [2]], inside=pl.Ringmaster(threshold=1)),
}
CASES = {name: Case(rule, pl.SimulatedFleet(ShiftedExponential(0.05, 0.02), workers=3)) for name, rule in RULES.items()}
CASES["replicated"] = replace(
    CASES["replicated"],
    strategy=pl.Replicated([[0, 1], [2, 3]]),
    fleet=pl.SimulatedFleet(ShiftedExponential(0.05, 0.02), workers=4),
)
CASES["compensated"] = replace(CASES["ringmaster"], strategy=pl.Asynchronous(), compensate_delay=0.5)


@pytest.mark.parametrize("name", CASES)
def test_a_simulated_run_is_resumed_and_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    case, one, two = CASES[name], tmp_path / "one", tmp_path / "two"
    straight = case.run(one, pl.Stop(updates=9))
    for updates in (1, 2, 5, 9):
        resumed = case.run(two, pl.Stop(updates=updates), resume=True)
    assert torch.equal(weights(resumed.model), weights(straight.model))
    for file in ("trace.jsonl", "metrics.jsonl", "checkpoint.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    found = replayed(case, one)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_processes_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    workers = CASES[name].fleet.workers
    case = replace(CASES[name], fleet=pl.ProcessFleet(workers=workers, threads=1, slow={0: Constant(0.01)}))
    run = case.run(tmp_path, pl.Stop(updates=12))
    assert (run.history[-1].updates, run.problem) == (12, None)
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


@pytest.mark.parametrize("name", ["buffered", "staleness-aware", "rescaled", "newest of each", "malenia", "anytime"])
def test_the_model_is_the_one_that_the_weights_of_the_trace_lead_to(name: str) -> None:
    """Each gradient computed from first principles, at the version and on the samples that the trace tells."""
    (x, y), _ = digits()
    sampling = WrittenDown()
    task = pl.Task(linear(), torch.nn.functional.cross_entropy, (x[:120], y[:120]))
    run = pl.train(
        task, strategy=CASES[name].strategy, fleet=CASES[name].fleet, optimizer=sgd(0.1), batch_size=8,
        sampling=sampling, stop=pl.Stop(updates=15), progress=False,
    )  # fmt: skip
    expected = retrace(run.trace, sampling.draws, task, lr=0.1, updates=15)
    assert torch.allclose(weights(run.model), weights(expected), atol=1e-6)


def test_replicas_are_synchronous_bit_for_bit_while_one_of_each_group_lives(tmp_path: Path) -> None:
    delays: list[Delay] = [Constant(1.0), Constant(2.0), Constant(1.5), ShiftedExponential(0.5, 1.0)]
    changes: list[pl.Left | pl.Joined] = [
        pl.Left(at=5.2, worker=0),
        pl.Left(at=9.1, worker=3),
        pl.Joined(at=12.0, worker=0),
    ]
    replicas = Case(pl.Replicated([[0, 1], [2, 3]]), pl.SimulatedFleet(delays, changes=changes))
    alone = Case(pl.Synchronous(), pl.SimulatedFleet(Constant(1.0), workers=2))
    one = replicas.run(tmp_path / "one", pl.Stop(updates=20))
    other = alone.run(tmp_path / "other", pl.Stop(updates=20))
    assert torch.equal(weights(one.model), weights(other.model))
    assert [row.loss for row in one.history] == [row.loss for row in other.history]
    with pytest.raises(pl.ConfigError, match="which so have one size: give one batch_size, such as 8"):
        replace(replicas, batch_size=[4, 8, 4, 8]).run(tmp_path / "sizes", pl.Stop(updates=1))


def test_delay_compensation_by_hand(tmp_path: Path) -> None:
    """One parameter, F = (x - b)^2 / 2 on two workers: the second gradient was computed one update earlier."""
    task, lr, strength = quadratic([1.0, 3.0]), 0.1, 0.5
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(1.5)])
    order = [0, 1, 0, 0, 1, 0, 1]
    x, downloaded = [0.0], {0: 0.0, 1: 0.0}
    for worker in order:
        g = downloaded[worker] - (1.0, 3.0)[worker]
        x.append(x[-1] - lr * (g + strength * g * g * (x[-1] - downloaded[worker])))
        downloaded[worker] = x[-1]
    run = pl.train(
        task, strategy="asgd", fleet=fleet, optimizer=sgd(lr), stop=pl.Stop(updates=7), batch_size=1,
        every=pl.Every(updates=1), compensate_delay=strength, partition=Consecutive(), progress=False,
    )  # fmt: skip
    assert [ticket.worker for fact in run.trace if isinstance(fact, Step) for ticket in fact.weights][:7] == order
    assert [row.loss for row in run.history] == pytest.approx(x)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("ssgd", "Synchronous combines several"),
        ("buffered:size=2", "Buffered combines several"),
        ("newest-of-each", "NewestOfEach"),
        ("lgc:quorum=1", "LiveCompensation"),
        ("ma:every=2", "ModelAveraging lets workers hand in models"),
    ],
)
def test_delay_compensation_is_refused_where_it_is_not_defined(rule: str, why: str) -> None:
    with pytest.raises(pl.ConfigError, match=rf"one gradient each, and {why}"):
        pl.train(
            quadratic([1.0, 3.0]), strategy=rule, fleet=pl.SimulatedFleet(Constant(1.0), workers=2),
            optimizer=sgd(), stop=pl.Stop(updates=1), batch_size=4, compensate_delay=0.04,
        )  # fmt: skip
    with pytest.raises(pl.ConfigError, match="compensate_delay=-1 is not possible: at least 0"):
        pl.train(
            quadratic([1.0, 3.0]), strategy="asgd", fleet=pl.SimulatedFleet(Constant(1.0), workers=2),
            optimizer=sgd(), stop=pl.Stop(updates=1), batch_size=1, compensate_delay=-1,
        )  # fmt: skip


@dataclass(frozen=True)
class Told(pl.Synchronous):
    """Asks for every number that learning can tell."""

    reports: ClassVar[tuple[str, ...]] = ("loss", "norm", "inner", "spread")


@pytest.mark.parametrize("real", [False, True])
def test_numbers_of_learning_are_what_they_are_called(real: bool) -> None:
    """Worker i has F_i = (x - b_i)^2 / 2, so all of them can be told with pen and paper."""
    fleet = pl.ProcessFleet(workers=2, threads=1) if real else pl.SimulatedFleet(Constant(1.0), workers=2)
    task = quadratic([1.0, 3.0])
    run = pl.train(task, strategy=Told(), fleet=fleet, optimizer=sgd(0.5), stop=pl.Stop(updates=3), batch_size=1)
    told = [fact.numbers for fact in run.trace if isinstance(fact, Reported)]
    x, last = 0.0, None
    for numbers in told:
        gradients = [x - 1.0, x - 3.0]
        g = sum(gradients) / 2
        expected = {"loss": sum(each**2 / 2 for each in gradients) / 2, "norm": abs(g), "spread": 1.0}
        assert numbers == pytest.approx(expected | ({} if last is None else {"inner": g * last}))
        x, last = x - 0.5 * g, g
    assert len(told) == 2  # that of the last update comes when the run goes on


def test_a_rule_that_asks_for_nothing_costs_nothing(tmp_path: Path) -> None:
    Case().run(tmp_path, pl.Stop(updates=3))
    assert "reported" not in (tmp_path / "trace.jsonl").read_text()


def test_the_quorum_rises_as_learning_comes_to_a_standstill() -> None:
    task = quadratic([0.0, 4.0, 0.0, 4.0])
    fleet = pl.SimulatedFleet(ShiftedExponential(0.5, 1.0), workers=4)
    rule = pl.AdaptiveQuorum(quorum=1, patience=2, burn_in=3)
    run = pl.train(task, strategy=rule, fleet=fleet, optimizer=sgd(0.4), stop=pl.Stop(updates=60), batch_size=1)
    used = [len(fact.weights) for fact in run.trace if isinstance(fact, Step)]
    assert used == sorted(used)
    assert (used[0], used[-1]) == (1, 4)


def test_numbers_that_models_do_not_tell_are_refused() -> None:
    @dataclass(frozen=True)
    class Norm(pl.ModelAveraging):
        reports: ClassVar[tuple[str, ...]] = ("norm",)

    with pytest.raises(pl.ConfigError, match=r"Norm goes by the norm of each update, which is not told where workers"):
        pl.train(
            quadratic([1.0, 3.0]), strategy=Norm(every=2), fleet=pl.SimulatedFleet(Constant(1.0), workers=2),
            optimizer=sgd(), stop=pl.Stop(updates=1), batch_size=1,
        )  # fmt: skip


@dataclass(frozen=True)
class Hoarding(pl.Synchronous):
    """Holds more than any machine has room for, or so it says."""

    def held(self, workers: int) -> int:
        return 10**15

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return [Assign(worker) for worker in ledger.idle] or ([Step(mean(ledger.fresh))] if ledger.fresh else [])


def test_a_rule_that_needs_more_memory_than_there_is_says_how_much() -> None:
    with pytest.raises(pl.ConfigError, match=r"may hold 1,000,000,000,000,000 contributions .* has [\d,]+ GB"):
        pl.train(
            quadratic([1.0, 3.0]), strategy=Hoarding(), fleet=pl.ProcessFleet(workers=2), optimizer=sgd(),
            stop=pl.Stop(updates=1), batch_size=1,
        )  # fmt: skip


def test_rules_are_compared_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.replace("seeds = [0, 1]", "seeds = [0]").replace("lr = [0.1, 0.5]", "lr = [0.1]"))
    monkeypatch.chdir(tmp_path)
    chosen = ["--strategy", "buffered:size=8", "--strategy", "ringmaster:threshold=16"]
    assert main(["compare", str(file), *chosen, "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    assert "softsync:size=8" in output
    assert "ringmaster" in output
    assert main(["compare", str(file), "--strategy", "buffered:size=0", "--jobs", "1"]) == 2
    assert "Buffered cannot have size=0: at least 1 (nearest size=1)" in capsys.readouterr().err
