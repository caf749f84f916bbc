"""How well the simulator foretells real processes: predicted and real time of the same run, for each strategy.

    python benchmarks/fidelity.py [--save] [--rounds N]

Four worker processes have injected delays of unequal length. For some seconds everybody works for itself
(``Asynchronous``: whoever begins something also finishes it, so that the durations are no selection); what each worker
took is all that the simulator is given. It then predicts, for every strategy, when each update of a run will be made;
the real run follows. Reported is by how much the prediction of the total time and of the median time between updates is
off, with its sign: the median of the rounds, and the largest.
"""

from statistics import median

import torch
from measuring import parse, save
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Event, Step
from paceline.trace.reading import Trace

MEDIANS = (0.04, 0.05, 0.06, 0.16)  # seconds a mini-batch
FIRST_SECONDS = 6.0
UPDATES = 60
STRATEGIES: dict[str, pl.strategy.Strategy] = {
    "SSGD": pl.Synchronous(),
    "ASGD": pl.Asynchronous(),
    "K-SGD": pl.FastestK(3),
    "LGC-SGD": pl.LiveCompensation(3, blocks=8),
    "GSGD": pl.Grouped([[0, 1, 2], [3]]),
}


def train(strategy: pl.strategy.Strategy, stop: pl.Stop, seed: int) -> Trace:
    generator = torch.Generator().manual_seed(0)
    data = torch.rand(4096, 784, generator=generator), torch.randint(10, (4096,), generator=generator)
    torch.manual_seed(0)
    task = pl.Task(torch.nn.Linear(784, 10), cross_entropy, data, evaluate=lambda model: {"loss": 0.0})
    fleet = pl.ProcessFleet(
        len(MEDIANS),
        slow={worker: pl.delays.LogNormal(seconds, 0.3) for worker, seconds in enumerate(MEDIANS)},
        threads=1,
    )
    return pl.train(
        task, strategy=strategy, fleet=fleet, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        stop=stop, every=pl.Every(updates=10**9), seed=seed, progress=False,
    ).trace  # fmt: skip


def update_times(trace: Trace) -> list[float]:
    at, times = 0.0, []
    for fact in trace:
        if isinstance(fact, Event):
            at = fact.at
        elif isinstance(fact, Step):
            times.append(at)
    return times[:UPDATES]


def between(times: list[float]) -> float:
    return median(later - earlier for earlier, later in zip([0.0, *times], times, strict=False))


def main() -> None:
    torch.set_num_threads(1)
    off: dict[str, dict[str, list[float]]] = {name: {"total": [], "between updates": []} for name in STRATEGIES}
    for seed in range(parse().rounds):
        first = train(pl.Asynchronous(), pl.Stop(seconds=FIRST_SECONDS), seed=1000 + seed)
        delays = [pl.delays.Empirical.from_trace(first, worker) for worker in range(len(MEDIANS))]
        for name, strategy in STRATEGIES.items():
            foretold = [
                update_times(pl.simulate(strategy, pl.SimulatedFleet(delays), pl.Stop(updates=UPDATES), seed=sample))
                for sample in range(20)
            ]
            real = update_times(train(strategy, pl.Stop(updates=UPDATES), seed))
            off[name]["total"].append(median(times[-1] for times in foretold) / real[-1] - 1)
            off[name]["between updates"].append(median(map(between, foretold)) / between(real) - 1)
        print(seed, {name: f"{each['total'][-1]:+.1%}" for name, each in off.items()}, flush=True)
    table = {
        name: {
            what: {"median": round(median(values), 3), "largest": round(max(values, key=abs), 3)}
            for what, values in each.items()
        }
        for name, each in off.items()
    }
    save("fidelity", {"delays": MEDIANS, "updates": UPDATES, "prediction over reality, less one": table})


if __name__ == "__main__":
    main()
