"""Several processes under torch.distributed: the same plan, disjoint shares, and counts that are put together."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

import paceline as pl
from paceline.pruning.samplers import PruningSampler

SAMPLES, EPOCHS, RANKS = 61, 7, 2


def samplers(rank: int, ranks: int) -> dict[str, PruningSampler]:
    fine: dict[str, Any] = {"samples": SAMPLES, "window": 20, "start": 2, "block": 2, "count": 1, "fraction": 0.3}
    return {
        "fine": pl.FinePruning(**fine, rank=rank, ranks=ranks),
        "soft": pl.SoftPruning(samples=SAMPLES, fraction=0.5, rank=rank, ranks=ranks),
    }


def made_up(indices: torch.Tensor, epoch: int) -> torch.Tensor:
    return (indices * 7 % 11).float() + torch.sin(indices.float() + epoch)


def _train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        torch.save({name: _seen(each) for name, each in samplers(rank, RANKS).items()}, f"{folder}/{rank}.pt")
    finally:
        distributed.destroy_process_group()


def _seen(sampler: PruningSampler) -> dict[str, Any]:
    """What each epoch gave out and kept; one sample is observed twice, as loaders that fill up batches do."""
    orders, kept = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        sampler.observe(order, made_up(order, epoch))
        sampler.observe(order[:3], made_up(order[:3], epoch) + 100)
        orders.append(order.tolist())
        kept.append(torch.from_numpy(sampler.kept))
    sampler.set_epoch(EPOCHS)
    state = sampler.state_dict()["memory"]
    return {"orders": orders, "kept": kept, "state": state}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_train, args=(rank, str(folder))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * RANKS
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("name", ["fine", "soft"])
def test_all_processes_keep_the_same_samples_and_share_them_out(
    name: str, results: list[dict[str, dict[str, Any]]]
) -> None:
    first, second = (result[name] for result in results)
    for epoch in range(EPOCHS):
        assert torch.equal(first["kept"][epoch], second["kept"][epoch])
        mine, other = first["orders"][epoch], second["orders"][epoch]
        assert not set(mine) & set(other)
        assert len(mine) == len(other) == int(first["kept"][epoch].sum()) // RANKS
    for array, other in zip(first["state"].values(), second["state"].values(), strict=True):
        assert (
            torch.equal(array.nan_to_num(), other.nan_to_num())
            if array.is_floating_point()
            else (torch.equal(array, other))
        )


def test_counts_are_those_of_all_processes_together(results: list[dict[str, dict[str, Any]]]) -> None:
    """Recomputed here from what both observed, each batch by its own mean; repeated samples count once."""
    counts = np.zeros(SAMPLES, dtype=int)
    for epoch in range(EPOCHS):
        for result in results:
            order = torch.tensor(result["fine"]["orders"][epoch])
            losses = made_up(order, epoch)
            counts[order[losses >= losses.double().mean()].numpy()] += 1
    assert results[0]["fine"]["state"]["counts"].tolist() == counts.tolist()
    assert counts.max() > 2
