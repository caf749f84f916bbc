"""Four worker processes, one of them four times as slow: what each worker does under DDP and under five rules.

    python benchmarks/who_waits.py NAME...        records timelines, by default all: see RULES
    python tools/pictures.py readme               draws them, beside the times that the two benchmarks below found

The setting is that of ``stragglers.py`` and of "computing" in ``unequal_batches.py``: convolutions on handwritten
digits, 32 samples a worker, one learning rate for all. Those measure the time to the same training loss, in turns and
over several seeds; this records a short run of each rule, to show what its workers do. So it reports no ratio. The slow
worker sleeps three times as long as it computed. DDP's timeline is what ``paceline.record`` noted.
"""

import json
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from against_ddp import Case, Team
from measuring import RESULTS
from stragglers import CASES, LR, SLOW, TIMES, WORKERS, data
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline.trace.timeline import Span, Updated, timeline

CASE, ROUNDS, BATCH = CASES["convolutions"], 150, 32
SKIPPED, SHOWN = 0.4, 0.6  # of the run, before the part that is kept; seconds of that
RULES: dict[str, tuple[pl.strategy.Strategy, int]] = {  # and how many updates have as many samples as one of DDP
    "Synchronous": (pl.Synchronous(), 1),
    "LiveCompensation": (pl.LiveCompensation(3, blocks=4), 1),
    "UnequalBatches": (pl.UnequalBatches(pl.Synchronous(), total=WORKERS * BATCH, window=5), 1),
    "Grouped": (pl.Grouped([[0, 1, 2], [3]]), 2),
    "Asynchronous": (pl.Asynchronous(), 4),
}


def shown(trace: Any) -> dict[str, Any]:
    """A part of a timeline, from the first update after a share of the run on."""
    marks = list(timeline(trace))
    updates = [mark.at for mark in marks if isinstance(mark, Updated)]
    begin = updates[int(SKIPPED * len(updates))]
    spans = [mark for mark in marks if isinstance(mark, Span) and mark.end > begin and mark.start < begin + SHOWN]
    return {
        "updates": [round(at - begin, 4) for at in updates if begin <= at <= begin + SHOWN],
        "spans": [
            [span.worker, round(max(span.start - begin, 0.0), 4), round(min(span.end - begin, SHOWN), 4), span.kind]
            for span in spans
        ],
    }


def ours(name: str) -> dict[str, Any]:
    strategy, updates = RULES[name]
    torch.manual_seed(0)
    run = pl.train(
        pl.Task(CASE.model(), cross_entropy, data(), evaluate=lambda model: {"loss": 0.0}), strategy=strategy,
        fleet=pl.ProcessFleet(WORKERS, slow={SLOW: TIMES}, threads=1), batch_size=BATCH, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR), stop=pl.Stop(updates=ROUNDS * updates),
        every=pl.Every(updates=10**9),
    )  # fmt: skip
    return shown(run.trace)


def slowed_ddp(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """The usual loop; the slow rank sleeps when the last of its own gradients was computed, before the all-reduce."""
    inputs, targets = data()
    shard = torch.arange(rank, len(targets), workers)
    began_step = [0.0]  # seen by the hook

    def sleep(gradient: Tensor) -> None:
        time.sleep((TIMES - 1) * (time.perf_counter() - began_step[0]))

    orders.send("ready")
    while (directory := orders.recv()) != "stop":
        torch.manual_seed(0)
        net = case.model()
        distributed = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(distributed.parameters(), lr=LR)
        if rank == SLOW:
            next(net.parameters()).register_hook(sleep)  # its gradient is the last to be computed
        with pl.record(directory, worker=rank) as recorder:
            recorder.watch(distributed)
            for number in range(ROUNDS):
                rows = shard[number * BATCH % (len(shard) - BATCH) :][:BATCH]
                with recorder.step(samples=BATCH):
                    began_step[0] = time.perf_counter()
                    optimizer.zero_grad()
                    cross_entropy(distributed(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
        torch.distributed.barrier()
        orders.send("done")


def ddp() -> dict[str, Any]:
    team = Team(slowed_ddp, CASE, WORKERS)
    with tempfile.TemporaryDirectory() as folder:
        team.ask(str(Path(folder) / "job"))
        found = shown(pl.read_trace(Path(folder) / "job"))
    team.close()
    return found


def main() -> None:
    torch.set_num_threads(1)
    file = RESULTS / "who_waits.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name in sys.argv[1:] or ["DDP", *RULES]:
        found[name] = ddp() if name == "DDP" else ours(name)
        updates = found[name]["updates"]
        print(f"{name}: {len(updates) - 1} updates in {updates[-1]:.2f} s of its timeline", flush=True)
    text = json.dumps(
        {"command": "python benchmarks/who_waits.py", **{k: v for k, v in found.items() if k != "command"}}
    )
    file.write_text(text + "\n")


if __name__ == "__main__":
    main()
