"""How many threads a simulated run computes with: by size, the same in every run, and none of it left behind."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.config.file import parse_config, write_config
from paceline.learning.threads import ENOUGH, Threads, typical_operation
from support.digits import weights


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Tests run with one, in which there is nothing to choose."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


NOTED: set[tuple[int, int]] = set()


class Noting(nn.Module):
    """Notes how many threads its passes have, and how many Python has beside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            NOTED.add((torch.get_num_threads(), threading.active_count()))
        return self.layer(inputs)  # type: ignore[no-any-return]


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


def train(width: int, *, strategy: pl.strategy.Strategy = pl.Synchronous(), workers: int = 2, **options: Any) -> pl.Run:
    NOTED.clear()
    x = torch.linspace(-1.0, 1.0, 64 * width).view(64, width)
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, **options)
    return pl.train(
        pl.Task(Noting(width), square, (x, x), evaluate=lambda model: {"loss": 0.0}), strategy=strategy, fleet=fleet,
        batch_size=16, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), stop=pl.Stop(updates=3), progress=False,
    )  # fmt: skip


def noted(run: pl.Run) -> set[int]:
    return {threads for threads, _ in NOTED}


ENOUGH_ALONE = 1 + int((ENOUGH / 16 / 2) ** 0.5)  # so wide that the product of one mini-batch is enough


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(1)], ids=["gradients", "models"])
def test_small_passes_have_one_thread_and_large_ones_all(strategy: pl.strategy.Strategy, evaluation: str) -> None:
    assert noted(train(8, strategy=strategy, evaluation=evaluation)) == {1}
    assert noted(train(ENOUGH_ALONE, strategy=strategy, evaluation=evaluation)) == {2}
    assert torch.get_num_threads() == 2


def test_a_pass_is_as_large_as_the_samples_in_it() -> None:
    """Three workers together have enough to do for two threads, each by itself has not."""
    width = int((ENOUGH / 16 / 2 / 2) ** 0.5)
    assert noted(train(width, workers=3)) == {2}
    assert noted(train(width, workers=3, strategy=pl.Asynchronous())) == {1}
    assert noted(train(width, workers=3, evaluation="exact")) == {1}


def test_a_number_that_was_asked_for_is_used_and_the_old_one_restored() -> None:
    torch.set_num_threads(1)
    assert noted(train(8, threads=2)) == {2}
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    assert noted(train(ENOUGH_ALONE, threads=1)) == {1}
    assert torch.get_num_threads() == 2


def test_a_second_team_of_threads_sleeps_beside_a_run_and_leaves_with_it() -> None:
    before = threading.active_count()
    train(8)
    assert {count for _, count in NOTED} == {before + 1}
    assert threading.active_count() == before
    train(8, threads=1)
    assert {count for _, count in NOTED} == {before}


def test_the_number_is_restored_after_a_failure_too() -> None:
    def failing(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ArithmeticError("no loss")

    with pytest.raises(pl.ConfigError, match="ArithmeticError"):
        pl.train(
            pl.Task(nn.Linear(2, 2), failing, (torch.ones(8, 2), torch.ones(8, 2)), evaluate=lambda model: {}),
            strategy=pl.Synchronous(), fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, threads=3),
            batch_size=2, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), stop=pl.Stop(updates=1), progress=False,
        )  # fmt: skip
    assert torch.get_num_threads() == 2


def test_sizes_are_settled_until_the_number_changes() -> None:
    """Small and large passes in turn: each change of the number makes the sizes before it doubtful again."""
    threads, model = Threads(None), nn.Linear(8, 8)
    enough = -(-int(ENOUGH) // (2 * 8 * 8))  # samples for which two threads are right
    for size, number, settled in (
        (2, 1, {2}), (3, 1, {2, 3}), (enough, 2, {enough}), (enough + 1, 2, {enough, enough + 1}), (2, 1, {2}),
    ):  # fmt: skip
        threads.choose(model, lambda model: model(torch.ones(2, 8)), size)
        assert (torch.get_num_threads(), threads.settled) == (number, settled)


def test_the_typical_operation_weighs_each_by_its_work_and_leaves_the_model_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 5))
    before = torch.get_rng_state()
    work = typical_operation(
        model, lambda model: model(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    )
    convolution, product = 2 * 2 * 4 * 6 * 6 * 9, 2 * 2 * 144 * 5
    assert work == pytest.approx((convolution**2 + product**2) / (convolution + product))
    assert torch.equal(torch.get_rng_state(), before)
    assert int(model.get_buffer("1.num_batches_tracked")) == 0
    assert typical_operation(nn.ReLU(), lambda model: model(torch.ones(3))) == 0.0
    assert (
        typical_operation(model, lambda model: model(torch.ones(3))) == 0.0
    )  # an error is the business of the pass itself


def test_what_was_counted_is_in_checkpoints() -> None:
    threads = Threads(None)
    threads.choose(nn.Linear(4, 4), lambda model: model(torch.ones(2, 4)), 2)
    taken_up = Threads(None)
    taken_up.restore(threads.state())
    assert taken_up.state() == {"work": 32.0}
    taken_up.choose(nn.Linear(4, 4), lambda model: pytest.fail("asked for once in a run"), 2)
    with pytest.raises(ValueError, match="finite"):
        taken_up.restore({"work": "much"})


def test_runs_are_known_by_their_threads_only_if_they_were_asked_for() -> None:
    """So that those which were begun before they could be can be resumed."""
    assert "threads" not in repr(pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2))
    assert repr(pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, threads=2)).endswith(", threads=2)")
    with pytest.raises(pl.ConfigError, match=r"threads=0 is not possible: 1 to 1,024"):
        pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, threads=0)


def test_threads_are_written_to_a_file_and_read_back() -> None:
    text = (Path(__file__).parents[2] / "examples/compare.toml").read_text()
    assert "threads" not in write_config(parse_config(text))
    config = parse_config(text.replace("[fleet]", "[fleet]\nthreads = 2", 1))
    assert isinstance(config.fleet, pl.SimulatedFleet)
    assert config.fleet.threads == 2
    assert parse_config(write_config(config)) == config


def test_a_choice_by_size_repeats_its_bits() -> None:
    one, two = (weights(train(ENOUGH_ALONE).model) for _ in range(2))
    assert torch.equal(one, two)
