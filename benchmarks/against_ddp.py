"""What the process fleet is measured against: DistributedDataParallel over gloo, and workers that only compute.

Both run in processes that are started once and then wait, without using the processor, for their next turn.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def logistic_regression() -> nn.Module:
    return nn.Linear(784, 10)


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def mlp_of_10_million() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 10))


@dataclass(frozen=True)
class Case:
    """A model, the shape of a sample, how many steps one turn takes, and how many turns for each one of the largest."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    steps: int
    turns: int = 1
    batch: int = 32
    samples: int = 4096
    lr: float = 0.01

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(self.samples, *self.shape, generator=generator)
        return inputs, torch.randint(10, (self.samples,), generator=generator)

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model()


CASES = {
    "logistic regression": Case(logistic_regression, (784,), steps=400, turns=5),
    "LeNet": Case(lenet, (3, 32, 32), steps=100, turns=3),
    "MLP of 10 M": Case(mlp_of_10_million, (784,), steps=10),
}

WARM_UP = 3  # steps that do not count

Body = Callable[[int, int, Case, Connection], None]


class Team:
    """Processes that do their steps when they are told to."""

    def __init__(self, body: Body, case: Case, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        with tempfile.NamedTemporaryFile() as file:
            store = file.name  # where the members of a process group find each other
        for rank in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_member, args=(body, (rank, workers), case, theirs, store), daemon=True)
            process.start()
            self._ends.append(ours)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def ask(self, what: object) -> list[Any]:
        """Say the same to everybody; what they answer."""
        for end in self._ends:
            end.send(what)
        return [end.recv() for end in self._ends]

    def turn(self) -> float:
        """Seconds until the last one had done its steps."""
        return max(map(float, self.ask("go")))

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send("stop")
            process.join()


def _member(body: Body, who: tuple[int, int], case: Case, orders: Connection, store: str) -> None:
    rank, workers = who
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    body(rank, workers, case, orders)
    torch.distributed.destroy_process_group()


def ddp(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """The usual loop: every worker its own mini-batches, gradients averaged by all-reduce, everybody steps."""
    model = torch.nn.parallel.DistributedDataParallel(case.make())
    optimizer = torch.optim.SGD(model.parameters(), lr=case.lr)
    inputs, targets = case.data()

    def step(rows: Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()

    _take_turns(rank, workers, case, orders, step)


def pure(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """Forward and backward, nothing else: nobody tells anybody anything."""
    model = case.make()
    inputs, targets = case.data()

    def step(rows: Tensor) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        cross_entropy(model(inputs[rows]), targets[rows]).backward()

    _take_turns(rank, workers, case, orders, step)


def _take_turns(rank: int, workers: int, case: Case, orders: Connection, step: Callable[[Tensor], None]) -> None:
    generator = torch.Generator().manual_seed(rank)
    shard = torch.arange(rank, case.samples, workers)
    for _ in range(WARM_UP):
        step(shard[: case.batch])
    orders.send("ready")
    while orders.recv() == "go":
        order = shard[torch.randperm(len(shard), generator=generator)]
        torch.distributed.barrier()
        began = time.perf_counter()
        for number in range(case.steps):
            begin = number * case.batch % (len(order) - case.batch + 1)
            step(order[begin : begin + case.batch])
        orders.send(time.perf_counter() - began)
