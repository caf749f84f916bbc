"""Random numbers of torch, numpy and Python that models and data sets draw: whose they are, and what they depend on."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import paceline as pl
from paceline.core.messages import Ticket
from paceline.learning.generators import Generators, own_generators, seed_generators, work_seed
from paceline.learning.learner import WorkNumbers
from support.digits import weights
from support.shaken import Shaken

EXACT = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, evaluation="exact")
FUSED = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2)
PROCESSES = pl.ProcessFleet(2, threads=1, slow={0: 2.0})


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.randn()), random.gauss(0.0, 1.0)


def task(model: nn.Module | None = None) -> pl.Task:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        dropping = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    return pl.Task(dropping if model is None else model, cross_entropy, Shaken(), evaluate=lambda model: {"loss": 0.0})


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).double()


def trained(
    fleet: Any, *, strategy: pl.strategy.Strategy = pl.Synchronous(), updates: int = 30,
    model: nn.Module | None = None, **options: Any,
) -> Tensor:  # fmt: skip
    run = pl.train(
        task(model), strategy=strategy, fleet=fleet, batch_size=8,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.2), stop=pl.Stop(updates=updates), progress=False,
        every=pl.Every(updates=1000), **options,
    )  # fmt: skip
    return weights(run.model)


def test_dropout_and_random_data_are_the_same_on_processes_in_the_simulator_and_in_a_replay(tmp_path: Path) -> None:
    """Over 30 updates, with workers of unequal speed, whose order of arrival nobody knows."""
    ways = [trained(PROCESSES), trained(PROCESSES, directory=tmp_path / "run")]
    assert torch.equal(ways[0], ways[1])
    torch.testing.assert_close(ways[0], trained(EXACT), rtol=0.0, atol=1e-12)
    found = pl.replay(
        tmp_path / "run", task(), strategy=pl.Synchronous(), fleet=PROCESSES,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.2), batch_size=8,
    )  # fmt: skip
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


@pytest.mark.parametrize(
    "strategy",
    [
        pl.ModelAveraging(2),
        pl.ModelAveraging(2, recalibrate=3),
        pl.EnsembleCompression(4, compression_steps=2),
        pl.EnsembleCompression(4, compression_steps=2, weights="regression"),
    ],
    ids=["averages", "recalibrated", "compressed", "by regression"],
)
def test_random_data_are_the_same_where_workers_hand_in_models(strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    """What workers draw, and what the server draws to label their samples or to compute statistics of a norm."""
    model = normed()
    options: dict[str, Any] = {"strategy": strategy, "updates": 4, "model": model}
    ways = [trained(PROCESSES, **options), trained(PROCESSES, directory=tmp_path / "run", **options)]
    assert torch.equal(ways[0], ways[1])
    torch.testing.assert_close(ways[0], trained(EXACT, **options), rtol=0.0, atol=1e-12)
    found = pl.replay(
        tmp_path / "run", task(model), strategy=strategy, fleet=PROCESSES,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.2), batch_size=8,
    )  # fmt: skip
    assert (found.departure, found.differences, found.compared) == (None, {}, True)
    trained(PROCESSES, directory=tmp_path / "cut", **{**options, "updates": 2})
    assert torch.equal(trained(PROCESSES, directory=tmp_path / "cut", resume=True, **options), ways[0])


def test_a_run_on_processes_that_is_resumed_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    """What its workers were at is given out again, and does not count twice."""
    trained(PROCESSES, updates=5, directory=tmp_path)
    resumed = trained(PROCESSES, updates=12, directory=tmp_path, resume=True)
    torch.testing.assert_close(resumed, trained(EXACT, updates=12), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(2)], ids=["gradients", "models"])
def test_every_worker_every_ticket_and_every_seed_draws_other_numbers(strategy: pl.strategy.Strategy) -> None:
    class Noted(nn.Module):
        """Notes what it is given: three numbers that were drawn."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                seen.append(tuple(inputs.flatten().tolist()))
            return self.layer(inputs)  # type: ignore[no-any-return]

    class Draws(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return torch.tensor(drawn(), dtype=torch.float32), torch.tensor(index % 2)

    seen: list[tuple[float, ...]] = []
    numbers: list[list[tuple[float, ...]]] = []
    for seed in (0, 0, 1):
        seen.clear()
        pl.train(
            pl.Task(Noted(), cross_entropy, Draws()), strategy=strategy, fleet=EXACT, stop=pl.Stop(updates=3),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=1, progress=False, every=pl.Every(updates=1000),
            seed=seed,
        )  # fmt: skip
        numbers.append(list(seen))
    assert numbers[0] == numbers[1]
    apart = [*numbers[0], *numbers[2]]
    assert len(apart) >= 12
    for place in range(3):  # torch's, numpy's, Python's
        assert len({each[place] for each in apart}) == len(apart)


def test_a_joined_pass_sees_the_data_that_each_worker_draws_by_itself() -> None:
    """The model draws nothing, so that all of the randomness is in the data."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Linear(6, 2).double()
    found = [
        weights(
            pl.train(
                pl.Task(model, cross_entropy, Shaken()), strategy=pl.Synchronous(), fleet=fleet, batch_size=8,
                optimizer=lambda p: torch.optim.SGD(p, lr=0.2), stop=pl.Stop(updates=6), progress=False,
                every=pl.Every(updates=1000),
            ).model
        )
        for fleet in (FUSED, EXACT)
    ]  # fmt: skip
    torch.testing.assert_close(found[0], found[1], rtol=0.0, atol=1e-12)


@pytest.fixture
def _other_kind_of_generator() -> Iterator[None]:
    before, state = get_bit_generator(), np.random.get_state(legacy=False)
    set_bit_generator(np.random.PCG64(5))
    yield
    set_bit_generator(before)
    np.random.set_state(state)


def test_the_users_own_random_numbers_go_on_as_if_nothing_had_been_trained() -> None:
    """Even in the middle of a pair of normal numbers, of which numpy and Python keep the second."""
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    expected = [drawn(), drawn()]
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    found = [drawn()]
    trained(EXACT, updates=2)
    trained(FUSED, updates=2)
    trained(EXACT, strategy=pl.ModelAveraging(2), updates=2)
    found.append(drawn())
    assert found == expected


@pytest.mark.usefixtures("_other_kind_of_generator")
def test_a_numpy_generator_of_another_kind_comes_back_too() -> None:
    expected = np.random.PCG64(5)
    trained(EXACT, updates=1)
    assert get_bit_generator().state == expected.state


def test_generators_continue_from_a_checkpoint_where_they_stood() -> None:
    with own_generators(3):
        seed_generators(11)
        drawn()  # so that half a pair of normal numbers is kept
        generators = Generators(torch.device("cpu"))
        state = generators.state()
        expected = drawn()
        seed_generators(12)
        assert drawn() != expected
        generators.restore(state)
        assert drawn() == expected
        generators.restore({"cpu": state["cpu"], "device": None})  # as it was when only torch's were kept


def test_seeds_of_tickets_do_not_meet() -> None:
    seeds = {work_seed(seed, worker, number) for seed in range(5) for worker in range(20) for number in range(50)}
    assert len(seeds) == 5 * 20 * 50
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert work_seed(1, 11, 1) != work_seed(11, 1, 1) != work_seed(1, 1, 11)


def test_a_ticket_that_is_dropped_gives_its_number_to_the_next_and_no_two_tickets_share_one() -> None:
    numbers = WorkNumbers()
    first, second, other, third, fourth = (Ticket(serial, int(serial == 2), 0) for serial in range(5))
    assert [numbers.give(first), numbers.give(second), numbers.give(other)] == [0, 1, 0]
    numbers.take_back(second)
    assert numbers.give(third) == 1
    numbers.take_back(first)  # the worker has a later ticket: its number stays taken
    restored = WorkNumbers()
    restored.restore(numbers.state())
    for each in (numbers, restored):
        each.take_back(third)
        assert each.give(fourth) == 1
    with pytest.raises(ValueError, match="without a number"):
        restored.restore({"next": [], "last": numbers.state()["last"]})
