"""Faults at random moments, under every strategy, on processes and on Ray, while workers train.

    python benchmarks/soak.py [--save] [--faults N] [--on-ray N] [--seed N] [--place DIRECTORY]

Each case is one strategy on one fleet, trained by a process of its own (the server) in a directory. A thread strikes:

    kill stop pause           SIGKILL; SIGSTOP for good; SIGSTOP and SIGCONT a little later, of a worker
    segfault hang error       by the model's own code inside a worker: a null pointer, a sleep without end, an exception
    memory descriptors        more memory than there is; all descriptors closed
    fork server killed, fork server stopped                  of workers on the server's own machine
    agent killed, agent stopped, its fork server killed      Ray only: what hosts the workers of another machine
    raylet killed             Ray only: a node with its workers; another node joins
    server killed             the case's whole process, kill -9; the case is resumed from its checkpoint
    not finite                a sample that is NaN: whatever is computed with it is left out

When a case has had its share, the run is ended and looked at: every ticket is handed in and settled at most once,
nobody works who is not here, everybody is back, and a replay of the trace in one process comes to the same weights,
bit for bit. After a server was killed, none of its processes may be left.

What is done is kept in the directory (by default /tmp/paceline-soak): the same command goes on where it was stopped.
"""

import argparse
import ctypes
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from measuring import write
from torch import Tensor, nn

import paceline as pl
from paceline.core.messages import Arrived, Drop, Halt, Joined, Left, Start, Step, Ticket
from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.storage import saved_models
from paceline.trace.format import NonFinite

TESTS = Path(__file__).parents[1] / "tests"
WORKERS, LR, BATCH_SIZE, NOT_FINITE = 4, 0.05, 8, 7  # the last: which sample
STRATEGIES: dict[str, pl.strategy.Strategy] = {
    "SSGD": pl.Synchronous(),
    "ASGD": pl.Asynchronous(),
    "K-SGD": pl.FastestK(3),
    "K-SGD, late ones finish": pl.FastestK(3, stop_late=False),
    "LGC-SGD": pl.LiveCompensation(3, blocks=4),
    "GSGD": pl.Grouped([[0, 1], [2, 3]]),
    "GSGD around LGC-SGD": pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(1, blocks=4)),
    "GSGD, measured": pl.Regrouped([[0, 1], [2, 3]]),
    "MA-DNN": pl.ModelAveraging(every=4),
    "MA-DNN, nobody waits": pl.ModelAveraging(every=4, waits=pl.Asynchronous()),
    "EC-DNN": pl.EnsembleCompression(every=8, compression_steps=2),
    "bounded staleness": pl.BoundedStaleness(slack=2),
    "buffered": pl.Buffered(size=3),
    "staleness-aware": pl.StalenessAware(size=2),
    "delay-adaptive": pl.DelayAdaptive(),
    "ringmaster": pl.Ringmaster(threshold=3),
    "rennala": pl.Rennala(batch=6),
    "malenia": pl.Malenia(batch=6),
    "rescaled": pl.Rescaled(),
    "newest of each": pl.NewestOfEach(),
    "anytime": pl.Anytime(seconds=0.03, blocks=4),
    "quorum and grace": pl.QuorumGrace(quorum=3, grace=0.01),
    "adaptive quorum": pl.AdaptiveQuorum(quorum=1, patience=5),
    "replicated": pl.Replicated([[0, 1], [2, 3]]),
    "unequal batches": pl.UnequalBatches(total=WORKERS * BATCH_SIZE),
    "advised": pl.Advised(total=WORKERS * BATCH_SIZE),
    "DiLoCo": pl.DiLoCo(every=4),
    "decoupled DiLoCo": pl.DecoupledDiLoCo(every=4, quorum=3, grace=0.02),
    "FedBuff": pl.FedBuff(every=4, size=3),
    "FedAsync": pl.FedAsync(every=4),
    "EASGD": pl.EASGD(every=4),
}
ON_RAY = {  # on the server's own node, or behind agents on two others?
    "SSGD": "local", "GSGD": "local", "MA-DNN": "local", "ASGD": "remote", "LGC-SGD": "remote", "K-SGD": "remote",
    "buffered": "remote", "unequal batches": "remote", "EC-DNN": "remote", "DiLoCo": "remote",
}  # fmt: skip
FROM_OUTSIDE = {"kill": 30, "stop": 4, "pause": 16}
FROM_INSIDE = {"segfault": 12, "hang": 4, "error": 10, "memory": 6, "descriptors": 8}
OF_PROCESSES = {"fork server killed": 4, "fork server stopped": 1}
OF_RAY = {"raylet killed": 8, "agent killed": 8, "agent stopped": 3, "its fork server killed": 4}
LETHAL = (*FROM_INSIDE, "kill", "stop")
SERVER_KILLS = 2  # of each case


# What is trained


class Struck(nn.Module):
    """A model that does to its own process what a file says that bears the process's number."""

    def __init__(self, orders: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4)).double()
        self.orders = str(orders)

    def forward(self, inputs: Tensor) -> Tensor:
        order = f"{self.orders}/{os.getpid()}"
        if os.path.exists(order):
            kind = Path(order).read_text()
            os.unlink(order)
            suffer(kind)
        outputs: Tensor = self.layers(inputs)
        return outputs


def suffer(kind: str) -> None:
    if kind == "segfault":
        ctypes.string_at(0)
    elif kind == "hang":
        time.sleep(10_000)
    elif kind == "memory":
        torch.zeros(2**50)
    elif kind == "descriptors":
        os.closerange(3, 1024)
    else:
        raise RuntimeError("on purpose")


def task(orders: Path, judge: Any) -> pl.Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 20, generator=generator, dtype=torch.float64)
    targets = inputs[:, :4].argmax(dim=1)
    inputs[NOT_FINITE] = float("nan")
    return pl.Task(Struck(orders), nn.functional.cross_entropy, (inputs, targets), evaluate=judge)


# Who strikes


@dataclass
class Tormented:
    """A fleet that is struck by a thread until it had so many faults."""

    fleet: Any
    faults: int
    random: random.Random
    orders: Path
    done: Path  # one line a fault
    nodes: Any = None
    ended: threading.Event = field(default_factory=threading.Event)
    node_wanted: threading.Event = field(default_factory=threading.Event)
    group: Any = None

    def __repr__(self) -> str:
        return repr(self.fleet)

    @property
    def described_as(self) -> Any:
        """A run directory keeps the fleet without its faults."""
        return self.fleet

    @property
    def workers(self) -> int:
        return int(self.fleet.workers)

    def launch(self, workload: Any, seed: int) -> Any:
        return self._struck(self.fleet.launch(workload, seed))

    def _struck(self, launched: Any) -> Any:
        self.group = launched[0]
        threading.Thread(target=self._strike, args=(launched[0],), daemon=True).start()
        return launched

    def _strike(self, group: Any) -> None:
        remote = self.nodes is not None
        weights = {**FROM_OUTSIDE, **FROM_INSIDE, **(OF_RAY if remote else OF_PROCESSES)}
        if remote:  # to start an agent takes seconds
            weights["pause"] = 60
        while len(group.ready) < self.workers:
            time.sleep(0.05)
        while len(lines(self.done)) < self.faults:
            time.sleep(self.random.expovariate(1 / 0.1))
            (kind,) = self.random.choices([*weights], [*weights.values()])
            if self._strike_once(group, kind):
                with self.done.open("a") as file:
                    file.write(f"{kind}\n")
        while len(group.ready) < self.workers or self._is_suffering(group):
            time.sleep(0.1)  # time for the last ones to be missed and replaced
        time.sleep(1.0)  # and for the run to hear of it
        self.ended.set()

    def _strike_once(self, group: Any, kind: str) -> bool:
        """Whoever has ended twice in a row without handing anything in is left in peace: the fifth time is the last."""
        failures = {worker.number: worker.failures for worker in group.supervisor}
        if kind in OF_PROCESSES or kind in OF_RAY:
            if max(failures.values()) >= 2 or len(group.ready) < self.workers:
                return False
            return self._strike_all(group, kind)
        everybody, present = group.pids, group.ready
        starting_too = self.random.random() < 0.1 and kind in FROM_OUTSIDE
        chosen = [w for w in everybody if (starting_too or w in present) and failures[w] < 2]
        if not chosen or (len(present) < 2 and kind in LETHAL):
            return False
        pid = everybody[self.random.choice(chosen)]
        if kind in FROM_INSIDE:
            return self._order(pid, kind)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            if kind == "pause":
                time.sleep(self.random.uniform(0.01, 0.3))
                os.kill(pid, signal.SIGCONT)
            return True
        return False

    def _strike_all(self, group: Any, kind: str) -> bool:
        """Those that workers depend on. The next strike comes when everybody is back."""
        if kind == "raylet killed":
            node = self.random.choice([n for n in self.nodes.cluster.list_all_nodes() if not n.head])
            self.node_wanted.set()
            while self.node_wanted.is_set():
                time.sleep(0.1)
            self.nodes.kill(node)
            self.nodes.remove(node)
        elif kind in OF_RAY:
            victim = self.random.choice(self.nodes.actors())
            if kind == "its fork server killed":
                (victim,) = victim.children()
            victim.send_signal(signal.SIGSTOP if kind == "agent stopped" else signal.SIGKILL)
            if kind == "agent stopped":  # its workers compute on: somebody has to be missed
                self._order(self.random.choice([*group.pids.values()]), "segfault")
        else:
            stopped = kind == "fork server stopped"
            os.kill(FORK_SERVER.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
            if stopped:  # somebody has to need it
                os.kill(self.random.choice([*group.pids.values()]), signal.SIGKILL)
        time.sleep(0.5)
        while len(group.ready) < self.workers:
            time.sleep(0.1)
        return True

    def _order(self, pid: int, kind: str) -> bool:
        order = self.orders / str(pid)
        hidden = order.with_suffix(".new")
        hidden.write_text(kind)
        hidden.rename(order)
        until = time.monotonic() + 5.0
        while order.exists():
            if time.monotonic() > until:
                with suppress(FileNotFoundError):
                    order.unlink()
                    return False  # it had nothing to do
            time.sleep(0.01)
        return True

    def _is_suffering(self, group: Any) -> bool:
        return any(is_stopped(pid) for pid in group.pids.values()) or any(
            worker.ticket is not None and group.waited - worker.heard_at > 1.0 for worker in group.supervisor
        )


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return True  # gone, and not missed yet


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


# One case, in a process of its own


def run_case(name: str, on_ray: str, faults: int, seed: int, place: Path) -> None:
    """Go on with a case until it had its faults, and write what it came to."""
    logging.getLogger("paceline").setLevel(logging.CRITICAL)  # hundreds of lines that are as expected
    saved_models._save_architecture = lambda *arguments: None  # which takes longer than all else
    strategy, orders, directory = STRATEGIES[name], place / "orders", place / "run"
    shutil.rmtree(orders, ignore_errors=True)
    orders.mkdir(parents=True)
    deadline = pl.SilenceTimeout(factor=8.0, at_least=4.0, at_first=120.0)
    slow = {worker: pl.delays.LogNormal(0.01, 0.5) for worker in range(WORKERS)}
    with ExitStack() as stack:
        nodes, fleet = None, pl.ProcessFleet(WORKERS, slow=slow, deadline=deadline, threads=1)
        if on_ray:
            sys.path.insert(0, str(TESTS))
            from support.ray_cluster import HERE
            from support.ray_cluster import nodes as cluster

            made = stack.enter_context(cluster([2, 2], head=WORKERS))
            nodes = made if on_ray == "remote" else None
            place_of_each = {"CPU": 0.5} if on_ray == "remote" else HERE
            fleet = pl.RayFleet(WORKERS, place_of_each, made.address, slow=slow, deadline=deadline)
        chance = random.Random(f"{seed} {name} {on_ray} {len(lines(place / 'done'))}")
        tormented = Tormented(fleet, faults, chance, orders, place / "done", nodes)

        def judge(model: nn.Module) -> dict[str, float]:
            if tormented.node_wanted.is_set():  # Ray starts nodes in the main thread only
                tormented.nodes.add(2)
                tormented.node_wanted.clear()
            everybody = tormented.ended.is_set() and len(tormented.group.joined) == WORKERS
            return {"loss": 0.0, "accuracy": float(everybody)}

        def sgd(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=LR, momentum=0.5)

        recipe: dict[str, Any] = {"strategy": strategy, "optimizer": sgd, "batch_size": BATCH_SIZE, "seed": seed}
        run = pl.train(
            task(orders, judge), fleet=tormented, stop=pl.Stop(target=1.0, seconds=7200.0), every=pl.Every(seconds=0.5),
            directory=directory, checkpoint=pl.Every(seconds=2.0), resume=directory.exists(), progress=False, **recipe,
        )  # fmt: skip
        assert run.ended == "target", f"{run.ended}: {run.problem}"
    result = {"faults": dict(Counter(lines(place / "done"))), **examine(run)}
    again = pl.replay(directory, task(orders, lambda model: {"loss": 0.0}), fleet=fleet, **recipe)
    assert again.same, f"the replay departs: {again.departure or again.differences}"
    assert again.compared
    (place / "result.json").write_text(json.dumps({**result, "replay": "the same, bit for bit"}))


def examine(run: pl.Run) -> dict[str, Any]:
    """Numbers of a run; raises if something is not as it should be."""
    state: dict[Ticket, str] = {}
    here: set[int] = set()
    facts: Counter[str] = Counter()
    for fact in run.trace:
        facts[type(fact).__name__] += 1
        if isinstance(fact, Joined):
            assert fact.worker not in here
            here.add(fact.worker)
        elif isinstance(fact, Left):
            here.remove(fact.worker)
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
    assert here == set(range(WORKERS)), f"only {here} are back"
    assert facts["Step"] >= run.history[-1].updates
    return {
        "seconds": round(run.history[-1].seconds, 1), "updates": run.history[-1].updates, "tickets": facts["Start"],
        "halted": facts["Halt"], "dropped": facts["Drop"], "left": facts["Left"],
        "not finite": facts[NonFinite.__name__],
    }  # fmt: skip


def _move(state: dict[Ticket, str], ticket: Ticket, before: str | None, after: str) -> None:
    assert state.get(ticket) == before, f"{ticket} is {state.get(ticket)}, and cannot become {after}"
    state[ticket] = after


# All cases


def drive(name: str, on_ray: str, faults: int, seed: int, place: Path) -> dict[str, Any]:
    """Have a case run, and kill its process now and then: it continues from its checkpoint."""
    place.mkdir(parents=True, exist_ok=True)
    chance, killed = random.Random(f"{seed} {name} server"), place / "killed"
    while not (place / "result.json").exists():
        command = [sys.executable, __file__, "--case", name, "--faults", str(faults), "--seed", str(seed)]
        command += ["--place", str(place), "--ray", on_ray]
        with (place / "log").open("a") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        share = len(lines(killed)) + 1
        while server.poll() is None:
            time.sleep(0.5)
            due = share <= SERVER_KILLS and len(lines(place / "done")) >= share * faults // (SERVER_KILLS + 1)
            if due and (place / "run" / "checkpoint.safetensors").exists():
                time.sleep(chance.uniform(0.0, 2.0))
                _kill_server(server)
                with killed.open("a") as file:
                    file.write("server killed\n")
        if server.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"{place} ended with {server.returncode}: see {place / 'log'}")
    result = json.loads((place / "result.json").read_text())
    result["faults"]["server killed"] = len(lines(killed))
    result["faults"]["not finite"] = result.pop("not finite")
    return dict(result)


def _kill_server(server: "subprocess.Popen[bytes]") -> None:
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(server.pid).children(recursive=True)
        server.kill()
        server.wait()
        _, left = psutil.wait_procs(family, timeout=120)
        running = [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        assert not running, f"still there after their server was killed: {running}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--faults", type=int, default=1000, help="on processes")
    parser.add_argument("--on-ray", type=int, default=120, help="faults on Ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, default=Path("/tmp/paceline-soak"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--ray", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        run_case(options.case, options.ray, options.faults, options.seed, options.place)
        return
    cases = [(name, "", -(-options.faults // len(STRATEGIES))) for name in STRATEGIES]
    cases += [(name, where, -(-options.on_ray // len(ON_RAY))) for name, where in ON_RAY.items()]
    results: dict[str, Any] = {}
    total: Counter[str] = Counter()
    for number, (name, on_ray, share) in enumerate(cases):
        if not share:
            continue
        called = f"{name}, Ray ({on_ray})" if on_ray else name
        results[called] = drive(name, on_ray, share, options.seed, options.place / str(number))
        total.update(results[called]["faults"])
        print(called, results[called], flush=True)
        summary = {"workers": WORKERS, "faults": total.total(), "by kind": dict(total), "cases": results}
        write("soak", summary, save=options.save)


if __name__ == "__main__":
    main()
