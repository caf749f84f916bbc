"""Runs that use everything that has a state, small enough to be killed and resumed many times."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

import paceline as pl
from paceline.core.stateful import State
from paceline.data.batches import Batches, Losses, Sampling
from paceline.data.partition import Indices, Partition
from paceline.delays import Delay
from paceline.engine.replay import Replay
from paceline.fleets.base import Fleet
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler
from paceline.randomness import restore_stream, stream, stream_state
from support.digits import digits, linear

FLEET = pl.SimulatedFleet(pl.delays.ShiftedExponential(0.05, 0.02), workers=5)


def sgd(lr: float = 0.1, **settings: Any) -> MakeOptimizer:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **settings)


@dataclass(frozen=True)
class Case:
    """The arguments of a run; what is random in its model is drawn by a seed of its own."""

    strategy: pl.strategy.Strategy = pl.Synchronous()
    fleet: Fleet = FLEET
    model: Callable[[], nn.Module] = linear
    optimizer: MakeOptimizer = sgd()
    scheduler: MakeScheduler | None = None
    sampling: Sampling = pl.Shuffled()
    partition: Partition = pl.Equal()
    every: pl.Every | None = None
    clip_norm: float | None = None
    batch_size: int | Sequence[int] = 8
    compensate_delay: float = 0.0

    def exact(self) -> "Case":
        assert isinstance(self.fleet, pl.SimulatedFleet)
        return replace(self, fleet=replace(self.fleet, evaluation="exact"))

    def run(
        self,
        directory: Path,
        stop: pl.Stop,
        *,
        resume: bool = False,
        checkpoint: pl.Every | None = None,
        seed: int = 3,
        callbacks: Sequence[pl.Callback] = (),
    ) -> pl.Run:
        (x, y), (x_test, y_test) = digits()
        with torch.random.fork_rng():
            torch.manual_seed(99)
            model = self.model()
        kind = next(model.parameters()).dtype
        return pl.train(
            pl.Task(model, nn.functional.cross_entropy, (x[:400].to(kind), y[:400]), (x_test.to(kind), y_test)),
            strategy=self.strategy,
            fleet=self.fleet,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            sampling=self.sampling,
            partition=self.partition,
            every=self.every,
            clip_norm=self.clip_norm,
            stop=stop,
            batch_size=self.batch_size,
            compensate_delay=self.compensate_delay,
            seed=seed,
            directory=directory,
            checkpoint=checkpoint,
            resume=resume,
            progress=False,
            callbacks=callbacks,
        )


def replayed(case: Case, directory: Path, seed: int = 3) -> Replay:
    """The run that the case left in a directory, made again from its trace."""
    (x, y), (x_test, y_test) = digits()
    with torch.random.fork_rng():
        torch.manual_seed(99)
        model = case.model()
    kind = next(model.parameters()).dtype
    return pl.replay(
        directory,
        pl.Task(model, nn.functional.cross_entropy, (x[:400].to(kind), y[:400]), (x_test.to(kind), y_test)),
        strategy=case.strategy,
        fleet=case.fleet,
        optimizer=case.optimizer,
        scheduler=case.scheduler,
        sampling=case.sampling,
        partition=case.partition,
        clip_norm=case.clip_norm,
        batch_size=case.batch_size,
        compensate_delay=case.compensate_delay,
        seed=seed,
    )


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10))


class Drawing(nn.Module):
    """Draws numpy's and Python's random numbers while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        factor = 1.0 + 0.1 * float(np.random.randn()) + 0.1 * random.random() if self.training else 1.0
        return self.layer(inputs * factor)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Hardest:
    """Draws the samples whose last loss was high more often: it watches, and it draws at random."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return HardestBatches(shards, batch_size, seed)


class HardestBatches:
    """The state is the last losses, what was put back, and one random stream a worker."""

    def __init__(self, shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        self._shards = shards
        self._batch_size = batch_size
        self._losses = np.ones(1 + max(int(shard.max()) for shard in shards))
        self._streams = [stream(seed, "batches", worker) for worker in range(len(shards))]
        self._unused = 0

    def draw(self, worker: int) -> Indices:
        shard = self._shards[worker]
        chances = self._losses[shard] / self._losses[shard].sum()
        return self._streams[worker].choice(shard, size=self._batch_size, replace=False, p=chances)

    def put_back(self, worker: int, indices: Indices) -> None:
        self._unused += len(indices)

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        self._losses[indices] = 0.01 + losses

    def state(self) -> State:
        return {
            "losses": self._losses,
            "unused": self._unused,
            "streams": [stream_state(each) for each in self._streams],
        }

    def restore(self, state: State) -> None:
        self._losses, self._unused = state["losses"], state["unused"]
        for own, saved in zip(self._streams, state["streams"], strict=True):
            restore_stream(own, saved)


@dataclass(frozen=True)
class Slowing:
    """A delay of one's own, as an ordinary generator function."""

    median = 0.05

    def durations(self, generator: np.random.Generator) -> Any:
        seconds = 0.04
        while True:
            seconds *= 1.01
            yield seconds + 0.01 * float(generator.random())


PASSES: dict[str, Any] = {"window": 20, "start": 1, "block": 1, "count": 1, "fraction": 0.7}
PRUNING = pl.FinePruning(samples=400, **PASSES)  # three batches of ten are left of every pass: it is soon over
GROUPS = [[0, 1], [2, 3, 4]]
STRATEGIES: Mapping[str, pl.strategy.Strategy] = {
    "synchronous": pl.Synchronous(),
    "asynchronous": pl.Asynchronous(),
    "fastest": pl.FastestK(3),
    "fastest, late ones finish": pl.FastestK(3, stop_late=False),
    "compensation": pl.LiveCompensation(3, blocks=4),
    "compensation, late ones finish": pl.LiveCompensation(3, blocks=4, recall=False),
    "compensation, warm": pl.LiveCompensation(3, blocks=2, scale=False, warm_up=2),
    "grouped": pl.Grouped(GROUPS),
    "grouped compensation": pl.Grouped(GROUPS, inside=pl.LiveCompensation(2, blocks=2)),
}
CHANGES: Sequence[pl.Left | pl.Joined] = [
    pl.Left(0.1, 1),
    pl.Joined(0.23, 1),
    pl.Left(0.27, 4),
    pl.Joined(0.31, 3),
    pl.Left(0.55, 3),
]
DELAYS: Sequence[Delay] = [
    pl.delays.Constant(0.06),
    pl.delays.ShiftedExponential(0.03, 0.02, h=3),
    pl.delays.LogNormal(0.05, 0.4),
    pl.delays.Pareto(0.04, 2.0),
    pl.delays.Empirical([0.03, 0.05, 0.09], in_order=True),
    pl.delays.Empirical([0.03, 0.05, 0.09]),
    Slowing(),
]
LGC, BOTH = STRATEGIES["compensation"], STRATEGIES["grouped compensation"]
CASES: Mapping[str, Case] = {
    **{name: Case(strategy) for name, strategy in STRATEGIES.items()},
    **{f"{name}, exact": Case(strategy).exact() for name, strategy in STRATEGIES.items()},
    "regrouped": Case(pl.Regrouped(tolerance=0.2, margin=0.05, window=1)),
    "unequal batches": Case(pl.UnequalBatches(total=40, window=1, margin=0.0)),
    "unequal batches, compensated": Case(pl.UnequalBatches(pl.LiveCompensation(3, blocks=2), total=40, window=1)),
    "unequal batches, leaving and joining": Case(
        pl.UnequalBatches(total=40, window=2, margin=0.0), replace(FLEET, changes=CHANGES), sampling=pl.Resampled()
    ),
    "sizes of their own": Case(LGC, batch_size=(4, 8, 12, 8, 16)),
    "sizes of their own, pruned": Case(pl.Asynchronous(), sampling=PRUNING, batch_size=(4, 8, 10, 8, 16)),
    "seconds a sample": Case(
        pl.UnequalBatches(total=40, window=1),
        pl.SimulatedFleet([pl.delays.PerSample(0.02 * w, pl.delays.LogNormal(0.01, 0.3)) for w in range(5)]),
    ),
    "dropout": Case(LGC, model=dropout, optimizer=sgd(momentum=0.9)),
    "dropout, exact": Case(LGC, model=dropout, optimizer=sgd(momentum=0.9)).exact(),
    "numpy and Python": Case(LGC, model=Drawing),
    "numpy and Python, exact": Case(LGC, model=Drawing).exact(),
    "batch norm": Case(BOTH, model=normalised, optimizer=sgd(momentum=0.9, nesterov=True, weight_decay=1e-3)),
    "batch norm, asynchronous": Case(pl.Asynchronous(), model=normalised, optimizer=sgd(momentum=0.5)),
    "Adam and one cycle": Case(
        LGC,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        scheduler=lambda optimizer: schedulers.OneCycleLR(optimizer, max_lr=0.05, total_steps=40),
    ),
    "NAdam keeps singles beside doubles": Case(
        optimizer=lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
        scheduler=lambda optimizer: schedulers.MultiStepLR(optimizer, [3, 7], gamma=0.3),
    ),
    "schedulers in a row": Case(
        scheduler=lambda optimizer: schedulers.SequentialLR(
            optimizer, [schedulers.ConstantLR(optimizer, 0.3), schedulers.StepLR(optimizer, 3)], milestones=[4]
        )
    ),
    "leaving and joining": Case(LGC, replace(FLEET, changes=CHANGES), optimizer=sgd(momentum=0.9)),
    "leaving and joining, in groups": Case(BOTH, replace(FLEET, changes=CHANGES), optimizer=sgd(momentum=0.9)),
    "recall: complete": Case(LGC, replace(FLEET, recall="complete")),
    "recall: abandon": Case(LGC, replace(FLEET, recall="abandon", network=pl.Network(latency=0.01))),
    "ties: batch": Case(BOTH, pl.SimulatedFleet(pl.delays.Constant(0.1), workers=5, ties="batch")),
    "ties: batch, asynchronous": Case(
        pl.Asynchronous(), pl.SimulatedFleet(pl.delays.Constant(0.1), workers=5, ties="batch")
    ),
    "ties: reverse": Case(pl.Asynchronous(), pl.SimulatedFleet(pl.delays.Constant(0.1), workers=5, ties="reverse")),
    "busy server": Case(LGC, replace(FLEET, changes=CHANGES, server_seconds=0.02), optimizer=sgd(momentum=0.9)),
    "machines": Case(
        LGC,
        replace(
            FLEET,
            machines=pl.Machines(2, gigabits=0.0005, latency=0.001, shards=2, sum_seconds=0.01, step_seconds=0.01),
            slowness=[pl.delays.SlowSpells(3.0, lasts=0.05, every=0.1), pl.delays.Hourly([1.0, 1.5], hour=0.1)],
            prices=0.5,
        ),
        optimizer=sgd(momentum=0.9),
    ),
    "coming and going": Case(
        LGC, replace(FLEET, availability=pl.Availability(0.2, 0.03, notice=0.02), recall="abandon", wire="bfloat16")
    ),
    "coming and going on machines": Case(
        BOTH,
        replace(
            FLEET,
            machines=pl.Machines(3, gigabits=0.0005),
            availability=pl.Availability(0.2, 0.03, notice=0.02, workers=(1, 2)),
            ties="batch",
        ),
    ),
    "busy server, in groups": Case(BOTH, replace(FLEET, recall="complete", server_seconds=0.04)),
    "busy server, ties": Case(
        pl.Asynchronous(), pl.SimulatedFleet(pl.delays.Constant(0.1), workers=5, ties="batch", server_seconds=0.03)
    ),
    "every delay": Case(pl.FastestK(4), pl.SimulatedFleet(DELAYS)),
    "every delay, asynchronous": Case(pl.Asynchronous(), pl.SimulatedFleet(DELAYS)),
    "resampled": Case(pl.FastestK(3), sampling=pl.Resampled(), partition=pl.Dirichlet(2.0)),
    "handed on": Case(LGC, replace(FLEET, changes=CHANGES), sampling=pl.ReassignShards()),
    "watchful": Case(pl.FastestK(3), sampling=Hardest()),
    "pruned": Case(LGC, sampling=PRUNING, every=pl.Every(updates=2)),
    "pruned, asynchronous": Case(pl.Asynchronous(), sampling=PRUNING),
    "pruned at random": Case(pl.FastestK(3), sampling=pl.RandomPruning(samples=400, **PASSES)),
    "pruned and handed on": Case(BOTH, replace(FLEET, changes=CHANGES), sampling=pl.ReassignShards(PRUNING)),
    "judged by updates": Case(every=pl.Every(updates=3), clip_norm=0.5),
    "judged by seconds": Case(pl.Asynchronous(), every=pl.Every(seconds=0.04)),
}


EC = pl.EnsembleCompression
COSTLY = replace(FLEET, network=pl.Network(latency=0.003, bandwidth=1e6))
# workers hand in models
MODELS: Mapping[str, Case] = {
    "averages, numpy and Python": Case(pl.ModelAveraging(3), model=Drawing),
    "averages": Case(pl.ModelAveraging(3), model=dropout, optimizer=sgd(momentum=0.9)),
    "averaged momentum": Case(
        pl.ModelAveraging(3, momentum="averaged", recalibrate=2), model=normalised, optimizer=sgd(momentum=0.9)
    ),
    "averages of the fastest": Case(
        pl.ModelAveraging(2, waits=pl.FastestK(3, stop_late=False)), COSTLY, model=normalised,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        scheduler=lambda optimizer: schedulers.OneCycleLR(optimizer, max_lr=0.05, total_steps=60),
    ),
    "averages, asynchronous": Case(pl.ModelAveraging(2, waits=pl.Asynchronous()), optimizer=sgd(momentum=0.9)),
    "averages in groups": Case(
        pl.ModelAveraging(2, waits=pl.Grouped(GROUPS)), replace(FLEET, changes=CHANGES), sampling=pl.ReassignShards()
    ),
    "averages, busy server": Case(
        pl.ModelAveraging(2, waits=pl.FastestK(3, stop_late=False)), replace(COSTLY, server_seconds=0.05)
    ),
    "diloco": Case(
        pl.DiLoCo(2, waits=pl.FastestK(3, stop_late=False)), COSTLY, model=normalised, optimizer=sgd(momentum=0.9)
    ),
    "diloco, asynchronous": Case(
        pl.ModelAveraging(
            2, pl.Asynchronous(), outer=lambda p: torch.optim.Adam(p, lr=0.01), weights="age", warm_up=2
        ),
        replace(FLEET, changes=CHANGES), sampling=pl.ReassignShards(),
    ),
    "buffer of models": Case(pl.FedBuff(2, 6), model=dropout, optimizer=sgd(momentum=0.9)),
    "decoupled diloco": Case(pl.DecoupledDiLoCo(2, 3, 0.02), optimizer=sgd(momentum=0.9)),
    "averages by speed": Case(pl.ModelAveraging(4, pl.Asynchronous(), by_speed=True), pl.SimulatedFleet(DELAYS)),
    "averages by loss": Case(pl.AdaComm(4, interval=1), optimizer=sgd(momentum=0.9)),
    "mixed models": Case(pl.FedAsync(2), model=normalised, optimizer=sgd(momentum=0.9)),
    "elastic models": Case(pl.EASGD(2), COSTLY, model=normalised, optimizer=sgd(momentum=0.9)),
    "averages, watchful": Case(pl.ModelAveraging(2), sampling=Hardest()),
    "ensembles": Case(EC(4, compression_steps=2), COSTLY, model=dropout, optimizer=sgd(momentum=0.9)),
    "ensembles of the fastest": Case(
        EC(4, "regression", compression_steps=1, waits=pl.FastestK(3, stop_late=False)), COSTLY, model=normalised,
        optimizer=sgd(momentum=0.9),
    ),
    "ensembles, joining": Case(
        EC(3, "margin", diversity=0.0, compression_steps=3), replace(COSTLY, changes=CHANGES), model=dropout
    ),
    "ensembles kept apart": Case(EC(3, compression_steps=0, same_start=True), model=dropout),
}  # fmt: skip


PROCESSES = Case(
    LGC,
    pl.ProcessFleet(workers=5, slow={4: pl.delays.Constant(0.01)}, threads=1),
    model=normalised,
    optimizer=sgd(momentum=0.9),
    sampling=pl.ReassignShards(),
)


def endless(directory: Path, fleet: Fleet) -> None:
    """Train on real workers until somebody puts an end to it."""
    case = replace(PROCESSES, fleet=fleet, strategy=pl.LiveCompensation(fleet.workers - 1, blocks=4))
    case.run(directory, pl.Stop(updates=1_000_000), checkpoint=pl.Every(updates=5))


def endless_processes(directory: Path) -> None:
    PROCESSES.run(directory, pl.Stop(updates=1_000_000), checkpoint=pl.Every(updates=5))
