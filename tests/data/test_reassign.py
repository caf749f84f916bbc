"""Shards of workers that left: waited for, or taken over by the others, and given back."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.data.batches import ObservesMembership
from paceline.data.partition import Indices
from support.digits import Noted, digits_task

SHARDS = [np.arange(worker * 100, worker * 100 + 100) for worker in range(4)]


def opened(shards: Sequence[Indices] = SHARDS) -> ObservesMembership:
    batches = pl.ReassignShards().open(shards, 10, seed=0)
    assert isinstance(batches, ObservesMembership)
    return batches


def homes(batches: ObservesMembership, worker: int, draws: int) -> list[int]:
    return [int(batches.draw(worker)[0]) // 100 for _ in range(draws)]


def test_while_everybody_is_here_it_is_as_without() -> None:
    plain, handed = pl.Shuffled().open(SHARDS, 10, seed=0), opened()
    for worker in (0, 1, 2, 3, 3, 0):
        assert plain.draw(worker).tolist() == handed.draw(worker).tolist()


def test_a_leaver_s_shard_is_taken_over_and_given_back() -> None:
    batches = opened()
    batches.left(2)
    assert homes(batches, 0, 4) == [0, 2, 0, 2]
    assert homes(batches, 1, 2) == [1, 1]
    batches.left(0)  # with two shards in hand
    assert sorted({*homes(batches, 1, 4)}) == [0, 1]
    assert sorted({*homes(batches, 3, 4)}) == [2, 3]
    batches.joined(2)
    assert homes(batches, 2, 2) == [2, 2]
    assert homes(batches, 3, 2) == [3, 3]


def test_what_is_put_back_goes_home() -> None:
    batches = opened()
    batches.left(2)
    _, drawn = batches.draw(0), batches.draw(0)
    assert {*drawn // 100} == {2}
    batches.put_back(0, drawn)
    batches.joined(2)
    assert batches.draw(2).tolist() == drawn.tolist()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=12))
def test_every_shard_is_in_exactly_one_hand_while_anybody_is_here(moves: list[tuple[bool, int]]) -> None:
    batches, here = opened(), {0, 1, 2, 3}
    for leaves, worker in moves:
        if leaves == (worker in here):
            (batches.left if leaves else batches.joined)(worker)
            (here.discard if leaves else here.add)(worker)
    seen = [home for worker in here for home in {*homes(batches, worker, 4)}]
    assert sorted(seen) == ([0, 1, 2, 3] if here else [])


def test_a_run_goes_through_the_shards_of_those_who_left() -> None:
    def unseen(handed_on: bool) -> int:
        recorded = Noted()
        fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3, changes=[pl.Left(1.5, 1)])
        pl.train(
            digits_task(), strategy=pl.Synchronous(), fleet=fleet, stop=pl.Stop(updates=60),
            sampling=pl.ReassignShards(recorded) if handed_on else recorded,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )  # fmt: skip
        return 1500 - len({index for draws in recorded.draws.values() for batch in draws for index in batch})

    # all but a few incomplete batches, against nearly a third of the data
    assert unseen(handed_on=True) < 100
    assert unseen(handed_on=False) > 400
