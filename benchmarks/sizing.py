"""What 10, 100 and 1,000 workers cost, on machines of eight with links of 10 Gbit/s: the simulator, without a model.

    python benchmarks/sizing.py --save --markdown       both tables of docs/cluster.md, and benchmarks/results
    python benchmarks/sizing.py --measure-memory        times the server's memory first; else those of the last --save
    python benchmarks/sizing.py --server-ms LeNet=2+1   other times of the server: for a machine's sum, and for a step

Nothing is trained: the core and the simulator run without a model. Two designs stand side by side:

gathered   every worker sends its gradient to one server, which takes as long for each as its driver did when it was
           measured (benchmarks/ray_fleet.py --scaling --save). Every message has 10 Gbit/s for itself: what would go
           through the server's card is counted, and marked where it is more than the card carries. There a real run is
           slower
by machine  one sum and one set of weights a machine and update (``paceline.Machines``), on links that are shared by
           what passes at once, with one server or several shards

The server's times of the second design are those of ``--server-ms``, or measured (benchmarks/machines.py --save): all
that an update of eight workers on one machine takes of the server's core. Of it the call is what the trivial model
takes, the step SGD with momentum and a copy of the weights in memory, and the sum is the rest. The sum of a model that
was not measured there is a copy and an addition in memory.

Workers do not depend on each other; a mini-batch takes 0.1 s in the median, log-normal with sigma 0.2. A message takes
0.2 ms besides its bytes. lgc goes on with three quarters of the workers, and has 4 blocks; gsgd has four groups;
"by machine" is gsgd with a group for each machine.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path
from typing import Any, NoReturn

import torch
from against_ddp import CASES
from measuring import RESULTS, write
from torch import nn

import paceline as pl
from paceline.core.messages import Arrived, Event, Instruction, Start, Ticket
from paceline.engine.loop import Loop, NoLearner, Stepped, seldom_collecting
from paceline.learning.model_state import message_bytes
from paceline.theory.runtime.saturation import saturation
from paceline.trace.traffic import Traffic
from paceline.trace.writing import TraceWriter

WORKERS = (10, 100, 1000)
EACH = 8  # workers on a machine
MINI_BATCH = pl.delays.LogNormal(median=0.1, sigma=0.2)
LATENCY, GIGABITS = 0.2e-3, 10.0
NETWORK = pl.Network(latency=LATENCY, bandwidth=GIGABITS * 1e9 / 8)
SETTLING, ROUNDS, FEWEST = 3, 10, 3_000  # contributions of a worker before what is measured, and in it; of all workers
MEASURED = RESULTS / "ray_fleet_scaling.json"  # of the former design
MACHINES = RESULTS / "machines.json"
SAVED = RESULTS / "sizing.json"
BYTES = {"trivial": message_bytes(nn.Linear(4, 1))}
BYTES |= {name: message_bytes(case.model()) for name, case in CASES.items()}
DESIGNS = {
    "1 server": (1, "float32"),
    "1 server, bfloat16": (1, "bfloat16"),
    "4 shards": (4, "float32"),
    "4 shards, bfloat16": (4, "bfloat16"),
}
ON_THE_PAGE = ("LeNet", "MLP of 10 M")  # in its second table
ALL = ("gathered", *DESIGNS)


@dataclass(frozen=True)
class Server:
    """The server's seconds: for a gradient that comes by itself; for a call, a machine's sum and a step by machine.

    Each shard has a call of its own for its part, and does its share of the rest.
    """

    gradient: float
    call: float
    sum: float
    step: float


@dataclass(frozen=True)
class Row:
    """A strategy with so many workers under one of the designs."""

    model: str
    strategy: str
    workers: int
    design: str
    updates_per_second: float
    contributions_per_second: float
    mean_staleness: float
    messages_per_update: float  # between machines, in both directions
    card_gigabytes_per_second: float  # at the server, or at each shard, in the busier direction


def strategies(workers: int) -> dict[str, pl.strategy.Strategy]:
    machines = [list(range(first, min(first + EACH, workers))) for first in range(0, workers, EACH)]
    return {
        "ssgd": pl.Synchronous(),
        "asgd": pl.Asynchronous(),
        "lgc": pl.LiveCompensation(max(1, workers * 3 // 4), blocks=4),
        "gsgd": pl.Grouped([list(range(first, workers, 4)) for first in range(min(4, workers))]),
        "by machine": pl.Grouped(machines),
    }


def fleet(model: str, workers: int, design: str, server: Server) -> pl.SimulatedFleet:
    if design == "gathered":
        return pl.SimulatedFleet(MINI_BATCH, workers=workers, network=NETWORK, server_seconds=server.gradient)
    shards, wire = DESIGNS[design]
    each_sum = shards * server.call + server.sum  # of which a shard has its share
    machines = pl.Machines(EACH, GIGABITS, LATENCY, shards, each_sum, server.step, BYTES[model])
    return pl.SimulatedFleet(MINI_BATCH, workers=workers, machines=machines, wire=wire)  # type: ignore[arg-type]


class Tally(TraceWriter):
    """Counts what happens since ``begin``, instead of writing it down."""

    def __init__(self, about: Mapping[str, object]) -> None:
        super().__init__(None, {})
        self._traffic = Traffic(about) if "workers_a_machine" in about else None
        self._unused: set[Ticket] = set()
        self.begin(0.0)

    def begin(self, at: float) -> None:
        self.since, self.updates, self.arrived = at, 0, 0
        self.staleness = 0.0
        self._before = self._messages() if self._traffic else (0, 0)
        self._out = self._back = 0

    def _messages(self) -> tuple[int, int]:
        return (self._traffic.weights, self._traffic.sums) if self._traffic else (self._out, self._back)

    @property
    def messages(self) -> tuple[int, int]:
        """Weights and gradients, or sums of them, since ``begin``."""
        (out, back), (out_before, back_before) = self._messages(), self._before
        return out - out_before, back - back_before

    def record(self, events: Iterable[Event], instructions: Iterable[Instruction]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._unused.add(event.ticket)
                self.arrived += 1
                self._back += event.done > 0
        for instruction in instructions:
            if isinstance(instruction, Start):
                self._out += 1
                if self._traffic:
                    self._traffic.started(instruction.ticket)

    def updated(self, update: Stepped) -> None:
        if self._traffic:
            self._traffic.stepped(update.step.weights)
        first_used = self._unused & update.step.weights.keys()
        self._unused -= first_used
        self.updates += 1
        self.staleness += sum(update.version - ticket.version for ticket in first_used) / len(first_used)


def simulated(model: str, name: str, workers: int, design: str, server: Server) -> Row:
    """From one update to another, when the run has settled."""
    group = fleet(model, workers, design, server).open(0, BYTES[model])
    tally = Tally(group.about)
    settling, enough = True, SETTLING * workers
    with seldom_collecting():
        for update in Loop(strategies(workers)[name], group, NoLearner(), tally):
            tally.updated(update)
            if tally.arrived >= enough:
                if not settling:
                    break
                settling, enough = False, max(ROUNDS * workers, FEWEST)
                tally.begin(update.at)
    seconds, (out, back) = update.at - tally.since, tally.messages
    shards, wire = DESIGNS.get(design, (1, "float32"))
    size = BYTES[model] * (0.5 if wire == "bfloat16" else 1.0)
    return Row(
        model=model,
        strategy=name,
        workers=workers,
        design=design,
        updates_per_second=tally.updates / seconds,
        contributions_per_second=tally.arrived / seconds,
        mean_staleness=tally.staleness / tally.updates,
        messages_per_update=(out + back) / tally.updates,
        card_gigabytes_per_second=max(out, back) * size / shards / seconds / 1e9,
    )


def knees(model: str, server: Server, rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Where each design saturates: by the formula, and as simulated.

    Simulated: as many workers as would reach the rate of the largest fleet if each had the speed of a machine alone
    (of a worker alone where gradients are gathered).
    """
    found: dict[str, tuple[int, int]] = {}
    most = max(WORKERS)
    for design in ALL:
        name, few = ("asgd", 1) if design == "gathered" else ("by machine", EACH)
        bound = saturation(strategies(most)[name], fleet(model, most, design, server), BYTES[model])
        alone_name = "asgd" if few == 1 else "ssgd"  # one machine alone is one group
        alone = simulated(model, alone_name, few, design, server).contributions_per_second / few
        plateau = next(
            row for row in rows if (row.model, row.strategy, row.workers, row.design) == (model, name, most, design)
        )
        assert bound is not None
        found[design] = floor(bound.workers.value), floor(plateau.contributions_per_second / alone)
    return found


Table = list[Sequence[str]]


def saturation_table(times: Mapping[str, Server], found: Mapping[str, Mapping[str, tuple[int, int]]]) -> Table:
    table: Table = [
        ["model", "message", "gathered: server, ms", "by machine: call + sum + step, ms"]
        + [f"{design}: saturates at, formula / simulated" for design in ALL]
    ]
    for model, server in times.items():
        message = f"{BYTES[model] / 1e6:.2g} MB" if BYTES[model] > 1e5 else f"{BYTES[model]:,} bytes"
        own = " + ".join(f"{each * 1e3:.3g}" for each in (server.call, server.sum, server.step))
        most = max(WORKERS)
        knee = [
            f"{formula:,} / {f'{seen:,}' if formula < 0.9 * most else f'not by {most:,}'}"
            for formula, seen in found[model].values()
        ]
        table.append([model, message, f"{server.gradient * 1e3:.3g}", own, *knee])
    return table


def costs(rows: Sequence[Row], *, markdown: bool) -> Table:
    """One row a strategy and number of workers, with what each design makes of it."""
    table: Table = [
        ["model", "workers", "strategy"]
        + [f"{design}: contributions/s" for design in ALL]
        + ["gathered: staleness", "1 server: staleness", "messages an update: gathered", "by machine"]
    ]
    by_key: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        by_key.setdefault((row.model, row.workers, row.strategy), {})[row.design] = row
    for (model, workers, name), found in by_key.items():
        rates = []
        for design in ALL:
            shown = number(found[design].contributions_per_second)
            if design == "gathered" and found[design].card_gigabytes_per_second * 1e9 > NETWORK.bandwidth:
                shown = f"**{shown}**" if markdown else f"{shown} (!)"
            rates.append(shown)
        old, new = found["gathered"], found["1 server"]
        table.append([
            model, f"{workers:,}", name, *rates, number(old.mean_staleness), number(new.mean_staleness),
            number(old.messages_per_update), number(new.messages_per_update),
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


def seconds_of(action: Callable[[], object], times: int = 25) -> float:
    """The shortest of several, in processor time of this thread: other programs may be running."""
    found = []
    for _ in range(times):
        begin = time.thread_time()
        action()
        found.append(time.thread_time() - begin)
    return min(found)


def memory_seconds(size: int) -> dict[str, float]:
    """What this machine takes to copy so many bytes, to add them to others, and for a step of SGD with momentum."""
    torch.set_num_threads(1)
    values = max(1, size // 4)
    one, other = torch.rand(values), torch.rand(values)
    parameter = nn.Parameter(torch.rand(values))
    parameter.grad = torch.rand(values)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.step()
    return {
        "copy": seconds_of(lambda: one.copy_(other)),
        "add": seconds_of(lambda: one.add_(other)),
        "step": seconds_of(optimizer.step),
    }


def gathered() -> dict[str, float]:
    """The server's seconds for each gradient, measured with as many workers as it was measured with at most."""
    found = recorded(MEASURED)["driver milliseconds an update"]["remote"]
    most = {model: max(by_workers, key=lambda told: int(told.split()[0])) for model, by_workers in found.items()}
    return {model: found[model][most[model]] / 1e3 for model in BYTES if model in found}


Times = dict[str, tuple[float, float, float]]


def by_machine(*, measure_memory: bool) -> tuple[Times, dict[str, dict[str, float]]]:
    """The server's seconds for a call, a sum and a step of each model; and what memory takes."""
    measured = recorded(MACHINES)
    now = measured["milliseconds of the server's core a gradient, and updates a second"]["now"]
    call = now["trivial"]["synchronous"][0] * EACH / 1e3
    saved = recorded(SAVED).get("memory seconds") if SAVED.exists() else None
    memory = saved if saved and not measure_memory else {model: memory_seconds(size) for model, size in BYTES.items()}
    times: Times = {}
    for model, took in memory.items():
        step = took["step"] + took["copy"]
        rest = now[model]["synchronous"][0] * EACH / 1e3 - call - step if model in now else took["copy"] + took["add"]
        times[model] = call, max(0.0, rest), step
    return times, memory


def recorded(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    except (OSError, ValueError) as error:
        refuse(
            f"{file} cannot be used ({type(error).__name__}): make ray_fleet_scaling.json with python "
            "benchmarks/ray_fleet.py --scaling --save, and machines.json with benchmarks/machines.py --save"
        )


def given(texts: Sequence[str]) -> Times:
    times: Times = {}
    for text in texts:
        model, _, milliseconds = text.partition("=")
        try:
            own, step = (float(each) / 1e3 for each in milliseconds.split("+"))
        except ValueError:
            refuse(f"--server-ms {text}: write MODEL=SUM+STEP in milliseconds, such as LeNet=2.1+0.5")
        if model not in BYTES or not (0 <= own < float("inf") and 0 < step < float("inf")):
            refuse(f"--server-ms {text}: give times above 0 for one of {', '.join(BYTES)}")
        times[model] = 0.0, own, step
    return times


def refuse(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--markdown", action="store_true", help="print the tables as docs/cluster.md has them")
    parser.add_argument("--measure-memory", action="store_true", help="time copying, adding and stepping here and now")
    parser.add_argument("--server-ms", nargs="+", metavar="MODEL=SUM+STEP", help="times of the server by machine")
    arguments = parser.parse_args()
    measured, memory = by_machine(measure_memory=arguments.measure_memory)
    own = given(arguments.server_ms) if arguments.server_ms else measured
    times = {model: Server(seconds, *own[model]) for model, seconds in gathered().items() if model in own}
    rows = [
        simulated(model, name, workers, design, server)
        for model, server in times.items()
        for workers in WORKERS
        for name in strategies(workers)
        for design in ALL
    ]
    found = {model: knees(model, server, rows) for model, server in times.items()}
    if arguments.save:
        result = {
            "server by machine": "given" if arguments.server_ms else f"measured: {MACHINES.name}",
            "memory seconds": memory,
            "server milliseconds": {
                model: {name: round(each * 1e3, 3) for name, each in asdict(server).items()}
                for model, server in times.items()
            },
            "mini-batch": repr(MINI_BATCH),
            "machines": f"{EACH} workers, {GIGABITS:g} Gbit/s, {LATENCY * 1e3:g} ms",
            "saturates at, formula and simulated": found,
            "columns": list(asdict(rows[0])),
            "rows": ["; ".join(str(rounded(value)) for value in asdict(row).values()) for row in rows],
        }
        write("sizing", result, save=True)
    markdown = arguments.markdown
    shown = [row for row in rows if row.model in ON_THE_PAGE or not markdown]
    for table in (saturation_table(times, found), costs(shown, markdown=markdown)):
        print(layout(table, markdown=markdown), end="\n\n")


if __name__ == "__main__":
    main()
