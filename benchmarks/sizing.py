"""What 10, 100 and 1,000 workers cost: the simulator, with the server's time as it was measured.

    python benchmarks/ray_fleet.py --scaling --save     measures the driver's time for an update
    python benchmarks/sizing.py [--save] [--markdown]   extrapolates; --markdown prints the tables of docs/cluster.md
    python benchmarks/sizing.py --server-ms LeNet=0.54  with other times, and only the models named

Nothing is trained: the core and the simulator run without a model. The model of this extrapolation:

server      one core takes the same time for each contribution, one after the other, first come, first served. It was
            measured with updates of one contribution; where an update has many, the optimizer steps less often, and the
            server is less busy than here
workers     do not depend on each other; a mini-batch takes 0.1 s in the median, log-normal with sigma 0.2
network     10 Gbit/s and 0.2 ms for every message, as if each had a link of its own. The server's card is not part of
            it: what would go through it is counted, in the direction with more of it, and marked where it is more than
            10 Gbit/s. There a real run is slower
strategies  lgc goes on with three quarters of the workers, and has 4 blocks; gsgd has four groups
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor
from typing import NoReturn

import numpy as np
from against_ddp import CASES
from measuring import RESULTS, write
from torch import nn

import paceline as pl
from paceline.core.messages import Arrived, Event, Instruction, Start, Ticket
from paceline.engine.loop import Loop, NoLearner, Stepped, seldom_collecting
from paceline.learning.model_state import message_bytes
from paceline.trace.writing import TraceWriter

WORKERS = (10, 100, 1000)
MINI_BATCH = pl.delays.LogNormal(median=0.1, sigma=0.2)
NETWORK = pl.Network(latency=0.2e-3, bandwidth=10e9 / 8)
SETTLING, ROUNDS, FEWEST = 5, 20, 10_000  # contributions of a worker before what is measured, and in it; of all workers
MEASURED = RESULTS / "ray_fleet_scaling.json"
BYTES = {"trivial": message_bytes(nn.Linear(4, 1))}
BYTES |= {name: message_bytes(case.model()) for name, case in CASES.items()}


def strategies(workers: int) -> dict[str, pl.strategy.Strategy]:
    return {
        "ssgd": pl.Synchronous(),
        "asgd": pl.Asynchronous(),
        "lgc": pl.LiveCompensation(workers * 3 // 4, blocks=4),
        "gsgd": pl.Grouped([list(range(first, workers, 4)) for first in range(4)]),
    }


@dataclass(frozen=True)
class Row:
    """A strategy with so many workers. Shares are of the time; being served, too, is waiting for a worker."""

    model: str
    strategy: str
    workers: int
    updates_per_second: float
    contributions_per_second: float
    server_busy: float
    mean_staleness: float
    workers_wait: float
    card_gigabytes_per_second: float


class Remembered:
    """A delay that remembers what it drew last."""

    median = MINI_BATCH.median
    last = 0.0

    def durations(self, generator: np.random.Generator) -> Iterator[float]:
        for seconds in MINI_BATCH.durations(generator):
            self.last = seconds
            yield seconds


class Tally(TraceWriter):
    """Counts what happens since ``begin``, instead of writing it down."""

    def __init__(self, delays: Sequence[Remembered], transfer: float) -> None:
        super().__init__(None, {})
        self._delays, self._transfer = delays, transfer
        self._unused: set[Ticket] = set()
        self.begin(0.0)

    def begin(self, at: float) -> None:
        self.since, self.updates, self.arrived, self.downloads, self.uploads = at, 0, 0, 0, 0
        self.working = self.staleness = 0.0

    def record(self, events: Iterable[Event], instructions: Iterable[Instruction]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                ticket, done = event.ticket, event.done
                self._unused.add(ticket)
                self.arrived += 1
                self.uploads += done > 0
                self.working += self._delays[ticket.worker].last * done / ticket.work.units
                self.working += self._transfer * (2 if done else 1)
        self.downloads += sum(isinstance(each, Start) for each in instructions)

    def updated(self, update: Stepped) -> None:
        first_used = self._unused & update.step.weights.keys()
        self._unused -= first_used
        self.updates += 1
        self.staleness += sum(update.version - ticket.version for ticket in first_used) / len(first_used)


def simulated(model: str, name: str, workers: int, server_seconds: float) -> Row:
    """From one update to another, when the run has settled."""
    delays = [Remembered() for _ in range(workers)]
    fleet = pl.SimulatedFleet(delays, network=NETWORK, server_seconds=server_seconds)
    tally = Tally(delays, NETWORK.seconds(BYTES[model]))
    settling, enough = True, SETTLING * workers
    with seldom_collecting():
        for update in Loop(strategies(workers)[name], fleet.open(0, BYTES[model]), NoLearner(), tally):
            tally.updated(update)
            if tally.arrived >= enough:
                if not settling:
                    break
                settling, enough = False, max(ROUNDS * workers, FEWEST)
                tally.begin(update.at)
    seconds = update.at - tally.since
    return Row(
        model=model,
        strategy=name,
        workers=workers,
        updates_per_second=tally.updates / seconds,
        contributions_per_second=tally.arrived / seconds,
        server_busy=tally.arrived * server_seconds / seconds,
        mean_staleness=tally.staleness / tally.updates,
        workers_wait=1 - tally.working / (workers * seconds),
        card_gigabytes_per_second=max(tally.downloads, tally.uploads) * BYTES[model] / seconds / 1e9,
    )


def alone(model: str, server_seconds: float) -> float:
    """Seconds from one model that a worker gets to the next, if it has the server for itself."""
    return MINI_BATCH.mean_seconds + 2 * NETWORK.seconds(BYTES[model]) + server_seconds


def formula(model: str, workers: int, server_seconds: float) -> float:
    """Asynchronous updates a second, if nobody ever waited for the server before it is saturated."""
    return min(workers / alone(model, server_seconds), 1 / server_seconds)


Table = list[Sequence[str]]


def saturation(times: Mapping[str, float], rows: Sequence[Row]) -> Table:
    """Up to how many workers the server has time for all, and how well the formula describes what was simulated."""
    found = {(row.model, row.strategy, row.workers): row for row in rows}
    table: Table = [
        ["model", "server, ms", "message", "card carries, messages/s", "saturates at, workers"]
        + [f"asgd with {workers:,}: formula / simulated" for workers in WORKERS]
    ]
    for model, seconds in times.items():
        sides = (
            f"{formula(model, workers, seconds):,.0f} / {found[model, 'asgd', workers].updates_per_second:,.0f}"
            for workers in WORKERS
        )
        carried, saturates = NETWORK.bandwidth / BYTES[model], floor(alone(model, seconds) / seconds)
        message = f"{BYTES[model] / 1e6:.2g} MB" if BYTES[model] > 1e5 else f"{BYTES[model]:,} bytes"
        table.append([model, f"{seconds * 1e3:g}", message, f"{carried:,.0f}", f"{saturates:,}", *sides])
    return table


def costs(rows: Sequence[Row], *, markdown: bool) -> Table:
    table: Table = [
        ["model", "workers", "strategy", "updates/s", "contributions/s", "server busy", "mean staleness",
         "workers wait", "GB/s at the card"]
    ]  # fmt: skip
    for row in rows:
        through = row.card_gigabytes_per_second
        shown = f"{through:.2g}" if through >= 0.01 else "< 0.01"
        above = f"**{shown}**" if markdown else f"{shown} (!)"
        table.append([
            row.model, f"{row.workers:,}", row.strategy, number(row.updates_per_second),
            number(row.contributions_per_second), f"{row.server_busy:.0%}", number(row.mean_staleness),
            f"{row.workers_wait:.0%}", above if through * 1e9 > NETWORK.bandwidth else shown,
        ])  # fmt: skip
    return table


def rounded(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def layout(table: Sequence[Sequence[str]], *, markdown: bool) -> str:
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in table]
        return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def measured(place: str) -> dict[str, float]:
    """The server's seconds for each model, with as many workers as it was measured with at most."""
    try:
        found = json.loads(MEASURED.read_text())["driver milliseconds an update"][place]
        most = {model: max(by_workers, key=lambda told: int(told.split()[0])) for model, by_workers in found.items()}
        return {model: found[model][most[model]] / 1e3 for model in BYTES if model in found}
    except (OSError, LookupError, ValueError) as error:
        refuse(
            f"benchmarks/results/{MEASURED.name} cannot be used ({type(error).__name__}): make it with "
            "python benchmarks/ray_fleet.py --scaling --save, or give times, such as --server-ms LeNet=0.54"
        )


def given(texts: Sequence[str]) -> dict[str, float]:
    times: dict[str, float] = {}
    for text in texts:
        model, _, milliseconds = text.partition("=")
        try:
            times[model] = float(milliseconds) / 1e3
        except ValueError:
            refuse(f"--server-ms {text}: write MODEL=MILLISECONDS, such as LeNet=0.54")
        if model not in BYTES or not 0 < times[model] < float("inf"):
            refuse(f"--server-ms {text}: give more than 0 for one of {', '.join(BYTES)}")
    return times


def refuse(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--markdown", action="store_true", help="print the tables as docs/cluster.md has them")
    parser.add_argument("--place", choices=("local", "remote"), default="remote", help="of the measured workers")
    parser.add_argument("--server-ms", nargs="+", metavar="MODEL=MS", help="instead of what was measured")
    arguments = parser.parse_args()
    times = given(arguments.server_ms) if arguments.server_ms else measured(arguments.place)
    rows = [
        simulated(model, name, workers, seconds)
        for model, seconds in times.items()
        for workers in WORKERS
        for name in strategies(workers)
    ]
    if arguments.save:
        result = {
            "server": "given" if arguments.server_ms else f"measured with {arguments.place} workers",
            "server milliseconds": {model: round(seconds * 1e3, 3) for model, seconds in times.items()},
            "mini-batch": repr(MINI_BATCH),
            "network": repr(NETWORK),
            "rows": [{name: rounded(value) for name, value in asdict(row).items()} for row in rows],
        }
        write("sizing", result, save=True)
    markdown = arguments.markdown
    many = [row for row in rows if row.workers >= 100 or not markdown]  # the page has enough with these
    for table in (saturation(times, rows), costs(many, markdown=markdown)):
        print(layout(table, markdown=markdown), end="\n\n")


if __name__ == "__main__":
    main()
