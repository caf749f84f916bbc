"""Worker processes that are killed and stopped at random moments, under every strategy, while they train.

    python benchmarks/soak.py [--save] [--faults N] [--seed N]

For each strategy a run is struck until its share of the faults is done: SIGKILL, SIGSTOP for good (the deadline must
find it), or SIGSTOP and SIGCONT a little later. Then the run is ended, and its trace is looked at: every ticket is
settled at most once, nobody works who is not here, whoever ``Left`` has ``Joined`` again, and the weights are those
that the trace leads to when every gradient is computed again. (A process that is struck while it starts never joined.)
"""

import argparse
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from measuring import write

import paceline as pl
from paceline.core.facts import Arrived, Drop, Halt, Joined, Left, Start, Step, Ticket
from paceline.testing.retraced import WrittenDown, retrace

WORKERS, LR = 4, 0.05
MOST_IN_A_ROW = 3  # a worker that ends five times in a row without handing anything in is not replaced
STRATEGIES: dict[str, pl.Strategy] = {
    "SSGD": pl.Synchronous(),
    "ASGD": pl.Asynchronous(),
    "K-SGD": pl.FastestK(3),
    "K-SGD, late ones finish": pl.FastestK(3, stop_late=False),
    "LGC-SGD": pl.LiveCompensation(3, blocks=4),
    "GSGD": pl.Grouped([[0, 1], [2, 3]]),
    "GSGD around LGC-SGD": pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(1, blocks=4)),
}


@dataclass
class Tormented:
    """A fleet whose processes are struck by a thread."""

    fleet: pl.ProcessFleet
    faults: int
    random: random.Random
    done: Counter[str] = field(default_factory=Counter)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def workers(self) -> int:
        return self.fleet.workers

    def hire(self, job: Any, seed: int) -> Any:
        crew, contributions = self.fleet.hire(job, seed)
        threading.Thread(target=self._strike, args=(crew,), daemon=True).start()
        return crew, contributions

    def _strike(self, crew: Any) -> None:
        in_a_row: Counter[int] = Counter()  # strikes since the last pause, in which everybody can come back
        while sum(self.done.values()) < self.faults:
            time.sleep(self.random.expovariate(1 / 0.15))
            everybody, present = crew.pids, crew.present
            starting_too = self.random.random() < 0.2
            chosen = [w for w in everybody if (starting_too or w in present) and in_a_row[w] < MOST_IN_A_ROW]
            if not chosen:
                time.sleep(2.0)
                in_a_row.clear()
                continue
            worker, kind = self.random.choice(chosen), self.random.choices(["kill", "stop", "pause"], [6, 1, 3])[0]
            pid = everybody[worker]
            in_a_row[worker] += kind != "pause"
            try:
                if kind == "kill":
                    os.kill(pid, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGSTOP)
                if kind == "pause":
                    time.sleep(self.random.uniform(0.01, 0.3))
                    os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
            self.done[kind] += 1
        while len(crew.present) < self.workers or any(is_stopped(pid) for pid in crew.pids.values()):
            time.sleep(0.1)  # time for the last ones to be missed and replaced
        time.sleep(2.0)  # and for the run to hear of it
        self.ended.set()


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return True  # gone, and not missed yet


def task() -> pl.Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 20, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    return pl.Task(model, torch.nn.functional.mse_loss, (inputs, targets), evaluate=lambda model: {"loss": 0.0})


def soak(strategy: pl.Strategy, faults: int, seed: int) -> dict[str, Any]:
    fleet = pl.ProcessFleet(
        WORKERS, slow={worker: pl.LogNormal(0.01, 0.5) for worker in range(WORKERS)},
        deadline=pl.Deadline(factor=8.0, at_least=1.0, at_first=30.0),
    )  # fmt: skip
    tormented, written = Tormented(fleet, faults, random.Random(seed)), WrittenDown()
    run = _until_ended(tormented, strategy, written)
    return {"faults": dict(tormented.done), **examine(run, strategy, written)}


def _until_ended(tormented: Tormented, strategy: pl.Strategy, written: WrittenDown) -> pl.Run:
    def judge(model: torch.nn.Module) -> dict[str, float]:
        return {"loss": 0.0, "accuracy": 1.0 if tormented.ended.is_set() else 0.0}

    before = task()
    given = pl.Task(before.model, before.loss, before.train, evaluate=judge)
    return pl.train(
        given, strategy=strategy, fleet=tormented, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR),
        batch_size=8, sampling=written, stop=pl.Stop(target=1.0, seconds=1800.0), every=pl.Every(updates=5),
        progress=False,
    )  # fmt: skip


def examine(run: pl.Run, strategy: pl.Strategy, written: WrittenDown) -> dict[str, Any]:
    """Numbers of a run; raises if something is not as it should be."""
    assert run.ended == "target", f"{strategy}: {run.ended}, {run.problem}"
    state: dict[Ticket, str] = {}
    here: set[int] = set()
    left: Counter[int] = Counter()
    joined: Counter[int] = Counter()
    facts: Counter[str] = Counter()
    for fact in run.trace:
        facts[type(fact).__name__] += 1
        if isinstance(fact, Joined):
            here.add(fact.worker)
            joined[fact.worker] += 1
        elif isinstance(fact, Left):
            here.remove(fact.worker)
            left[fact.worker] += 1
        elif isinstance(fact, Start):
            assert fact.ticket.worker in here
            _move(state, fact.ticket, None, "running")
        elif isinstance(fact, Arrived | Halt):
            _move(state, fact.ticket, "running", "held" if isinstance(fact, Arrived) else "settled")
        elif isinstance(fact, Drop):
            _move(state, fact.ticket, "held", "settled")
        elif isinstance(fact, Step):
            for ticket in fact.weights:
                _move(state, ticket, "held", "held" if ticket in fact.keep else "settled")
    assert here == set(range(WORKERS)), f"{strategy}: only {here} are back"
    assert all(joined[worker] == left[worker] + 1 for worker in range(WORKERS))
    expected = retrace(run.trace, written.draws, task(), LR, run.history[-1].updates)
    difference = max(
        float((one - other).detach().abs().max())
        for one, other in zip(run.model.parameters(), expected.parameters(), strict=True)
    )
    assert difference < 1e-9, f"{strategy}: the weights differ by {difference} from what the trace leads to"
    return {
        "seconds": round(run.history[-1].seconds, 1), "updates": run.history[-1].updates, "tickets": facts["Start"],
        "halted": facts["Halt"], "dropped": facts["Drop"], "left": facts["Left"],
        "largest difference from the weights that the trace leads to": difference,
    }  # fmt: skip


def _move(state: dict[Ticket, str], ticket: Ticket, before: str | None, after: str) -> None:
    assert state.get(ticket) == before, f"{ticket} is {state.get(ticket)}, and cannot become {after}"
    state[ticket] = after


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--faults", type=int, default=210)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("paceline").setLevel(logging.CRITICAL)  # hundreds of lines that are as expected
    share = -(-options.faults // len(STRATEGIES))
    results = {}
    for number, (name, strategy) in enumerate(STRATEGIES.items()):
        results[name] = soak(strategy, share, options.seed + number)
        print(name, results[name], flush=True)
    total: Counter[str] = Counter()
    for result in results.values():
        total.update(result["faults"])
    write("soak", {"workers": WORKERS, "faults in all": dict(total), "strategies": results}, save=options.save)


if __name__ == "__main__":
    main()
