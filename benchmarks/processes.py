"""Real workers on one machine against DDP over gloo: the same model, batch size, data and threads (one a worker).

    python benchmarks/processes.py [--save] [--rounds N]

synchronous, N workers   how many times as many steps a second as DDP
asynchronous             time for as many gradients as N workers that compute them and do nothing else need, in terms
                         of the time of these
time of DDP              over that of workers that only compute: no fleet can be faster than DDP by more than this

All are warm: the first three steps do not count. Smaller models take more turns.
"""

import torch
from against_ddp import CASES, Case, Team, ddp, pure
from measuring import interleaved_seconds, parse, ratio, save
from timed_training import asynchronous, synchronous

import paceline as pl

BARS = {
    "synchronous, 2 workers": {"logistic regression": 4.0, "LeNet": 1.3, "MLP of 10 M": 1.4},
    "synchronous, 4 workers": {"logistic regression": 6.0, "LeNet": 1.5, "MLP of 10 M": 1.7},
    "asynchronous, 2 workers": {"logistic regression": 2.0, "LeNet": 1.1, "MLP of 10 M": 1.8},
}


def measure(case: Case, workers: int, rounds: int) -> dict[str, list[float]]:
    fleet = pl.ProcessFleet(workers, threads=1)
    teams = {"ddp": Team(ddp, case, workers), "pure": Team(pure, case, workers)}
    try:
        return interleaved_seconds(
            {
                "ddp": teams["ddp"].turn,
                "synchronous": lambda: synchronous(case, fleet, case.steps),
                "pure": teams["pure"].turn,
                "asynchronous": lambda: asynchronous(case, fleet, case.steps * workers),
            },
            rounds,
        )
    finally:
        for team in teams.values():
            team.close()


def main() -> None:
    torch.set_num_threads(1)
    rounds = parse().rounds
    table: dict[str, dict[str, float]] = {name: {} for name in BARS}
    ceilings: dict[str, dict[str, float]] = {}
    for name, case in CASES.items():
        for workers in (2, 4):
            times = measure(case, workers, rounds * case.turns)
            table[f"synchronous, {workers} workers"][name] = round(ratio(times, "ddp", "synchronous"), 2)
            ceilings.setdefault(f"{workers} workers", {})[name] = round(ratio(times, "ddp", "pure"), 2)
            if workers == 2:
                table["asynchronous, 2 workers"][name] = round(ratio(times, "asynchronous", "pure"), 2)
            print(name, workers, {key: round(ratio(times, key, "pure"), 2) for key in times}, flush=True)
    save("processes", {"bars": BARS, "ratios": table, "time of DDP over that of computing alone": ceilings})


if __name__ == "__main__":
    main()
