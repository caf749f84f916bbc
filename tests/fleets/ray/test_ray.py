"""A Ray cluster of several nodes on this machine: every strategy, every promise of a fleet, and every kind of loss."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import paceline as pl
from paceline.callbacks.base import Update
from paceline.core.messages import Joined, Leaving, Left, Resize, Start, local_steps
from paceline.fleets.ray.fleet import PersistentRayFleet
from paceline.fleets.ray.notices import METADATA
from paceline.learning.gradients.distributed import MachineLost
from paceline.learning.workload import workload_of
from paceline.storage.checkpoint import read_checkpoint
from paceline.testing import FleetContract
from paceline.testing.retraced import WrittenDown, retrace
from paceline.trace.format import MachineWorkers
from support import faults, hops
from support.digits import digits_task, linear
from support.metadata import Metadata, metadata_service
from support.own_rules import Together
from support.processes import PATIENCE, wait_until_gone
from support.ray_cluster import HERE, Nodes, like, nodes
from support.resumable import PROCESSES, replayed
from support.stepping import CASES, trained
from support.until import Until

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open
TESTS = Path(__file__).parents[2]
FAULTS = [faults.die_before_the_answer, faults.die_around_the_answer]
MODELS = [pl.ModelAveraging(every=4), pl.EnsembleCompression(every=4), Together(local_steps(4))]
SOON = pl.SilenceTimeout(factor=5.0, at_least=3.0, at_first=120.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes([2, 2], head=4) as made:
        yield made


@pytest.fixture(scope="module")
def remote(cluster: Nodes) -> Iterator[PersistentRayFleet]:
    """Three workers on the two other nodes. Its agents, which take seconds to start, stay from test to test."""
    with pl.RayFleet(3, {"CPU": 0.3}, address=cluster.address).persistent() as fleet:
        yield fleet


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(task: pl.Task, strategy: pl.strategy.Strategy, fleet: Any, updates: int = 40, **options: Any) -> pl.Run:
    stop = options.pop("stop", pl.Stop(updates=updates))
    return pl.train(task, strategy=strategy, fleet=fleet, optimizer=sgd, stop=stop, progress=False, **options)


def struck(fault: faults.Fault, marks: Path, at: int = 3) -> pl.Task:
    marks.mkdir(exist_ok=True)
    model = faults.Struck(linear(), fault, marks, at=at)
    return replace(digits_task(model), evaluate=lambda model: {"loss": 0.0})


def events(run: pl.Run, kind: type) -> list[Any]:
    return [fact for fact in run.trace if isinstance(fact, kind)]


SLOW = dict.fromkeys(range(3), pl.delays.Constant(0.01))


class OnCluster(FleetContract):
    """Every promise of a fleet."""

    local = False
    updates = 15

    def test_a_lost_worker_becomes_left_and_training_goes_on(self) -> None:
        self.strategies = (pl.LiveCompensation(quorum=2, blocks=4),)  # and two with groups
        super().test_a_lost_worker_becomes_left_and_training_goes_on()

    @pytest.mark.parametrize("strategy", MODELS, ids=lambda s: type(s).__name__)
    def test_workers_hand_in_models(self, strategy: pl.strategy.Strategy) -> None:
        """To the bit those that processes hand in."""
        runs = [train(digits_task(), strategy, fleet, 4) for fleet in (self.fleet, pl.ProcessFleet(3, threads=1))]
        ours, theirs = (run.model.state_dict() for run in runs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    @pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(every=2)], ids=["gradients", "models"])
    def test_a_step_on_batches_of_ones_own_kind(self, strategy: pl.strategy.Strategy) -> None:
        """What processes come to: padded texts, which go through the model in pieces.

        To the bit, but for gradients of several machines, which are added up by machine.
        """
        case = CASES["padded text in dicts"]
        fleets = (self.fleet, pl.ProcessFleet(3, threads=1))
        runs = [trained(case, fleet, strategy=strategy, batch_size=7, micro_batches=3).run for fleet in fleets]
        ours, theirs = (run.model.state_dict() for run in runs)
        if self.local or isinstance(strategy, pl.ModelAveraging):
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        for name, values in ours.items():
            torch.testing.assert_close(values, theirs[name], rtol=1e-4, atol=1e-5)

    def test_what_user_code_starts_in_a_worker_goes_with_the_run(self, tmp_path: Path) -> None:
        """Though agents, and what forks their workers, stay for the next run."""
        pids = tmp_path / "pids"
        train(struck(partial(faults.start_helpers, pids), tmp_path, at=0), pl.Synchronous(), self.fleet, 2)
        wait_until_gone([int(pid) for pid in pids.read_text().split()])


class TestLocal(OnCluster):
    """On the server's own node: they share its memory."""

    local = True

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls, cluster: Nodes) -> Iterator[None]:
        with pl.RayFleet(3, HERE, address=cluster.address, slow=SLOW).persistent() as cls.fleet:
            yield


class TestRemote(OnCluster):
    """On two other nodes, each with an agent."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls, remote: PersistentRayFleet) -> None:
        cls.fleet = like(remote, slow=SLOW)

    def test_an_update_passes_few_files(self) -> None:
        found = hops.fewest(hops.updates_of(self.fleet, pl.Synchronous(), 10))
        slowed = 2  # files more where workers are made slow
        assert 0 < len(found.calls) <= hops.FLOWS["ray"].most + slowed, sorted(found.calls)

    def test_an_agent_that_answers_with_an_error_or_not_at_all_is_killed_and_another_one_comes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would keep its place for itself, and its workers would compute on."""
        group: Any = self.fleet.launch(workload_of(digits_task(), [], 32), 0)[0]
        with closing(group):
            group.wait()
            one, other = group.supervisor._launcher._clients.values()
            kept = [client._actor for client in (one, other)]  # Ray ends whom nobody refers to, if it answers
            agents = [psutil.Process(client._info.pid) for client in (one, other)]
            with pytest.raises(MachineLost):
                one.ask("finite", [10**6])()
            agents[1].suspend()
            monkeypatch.setattr("paceline.fleets.ray.machine.ANSWERED_WITHIN", 0.2)
            with pytest.raises(MachineLost):
                other.ask("finite", [0])()
            assert psutil.wait_procs(agents, timeout=PATIENCE)[1] == []
            while any(isinstance(event, Left) for event in group.wait()) or group.ready != {0, 1, 2}:
                pass
            assert kept


class TestShards(OnCluster):
    """The server in two pieces, on two other nodes."""

    updates = 8
    strategies = (pl.Synchronous(), pl.LiveCompensation(quorum=2, blocks=4))

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _on(cls, cluster: Nodes) -> Iterator[None]:
        with pl.RayFleet(3, {"CPU": 0.3}, address=cluster.address, slow=SLOW, shards=2).persistent() as cls.fleet:
            yield

    def test_they_compute_the_bits_of_one_server_and_a_lost_one_ends_the_run(
        self, cluster: Nodes, remote: PersistentRayFleet, tmp_path: Path
    ) -> None:
        """A replay has one server. The run is resumed from its last checkpoint, with another number of shards."""
        case = replace(PROCESSES, fleet=self.fleet, strategy=pl.Synchronous(), clip_norm=0.5)
        case.run(tmp_path / "well", pl.Stop(updates=6))
        found = replayed(case, tmp_path / "well")
        assert (found.departure, found.differences, found.compared) == (None, {}, True)
        task = replace(digits_task(), evaluate=Killing(cluster, "Shard", 100, tmp_path / "run"))
        options = {"directory": tmp_path / "run", "checkpoint": pl.Every(updates=4), "every": pl.Every(updates=3)}
        runs = [train(digits_task(), pl.Synchronous(), self.fleet, 6)]
        with pytest.raises(pl.PacelineError, match=r"a shard of the server ended.*: continue from the last checkpoint"):
            train(task, pl.Synchronous(), self.fleet, 200, **options)
        shards = {*cluster.actors("Shard")}
        runs += [train(digits_task(), pl.Synchronous(), self.fleet, 6) for _ in range(2)]
        both = {*cluster.actors("Shard")}
        assert (len(shards), len(both), shards & both) == (1, 2, set())
        ours, *others = (run.model.state_dict() for run in runs)
        assert all(torch.equal(ours[name], theirs[name]) for theirs in others for name in ours)
        made = read_checkpoint(tmp_path / "run" / "checkpoint.safetensors")["loop"]["version"]
        run = train(digits_task(), pl.Synchronous(), like(remote, slow=SLOW), made + 5, **options, resume=True)
        assert (run.ended, run.history[-1].updates) == ("updates", made + 5)


@pytest.mark.parametrize("sizes", [32, (40, 24, 8)])
def test_local_workers_and_processes_compute_the_same_bits(
    cluster: Nodes, remote: PersistentRayFleet, sizes: int | tuple[int, ...]
) -> None:
    """Of a model with batch normalisation, whose weights take several chunks; also of mini-batches of unequal sizes.

    Those of other machines are added up by machine, which rounds differently: a replay has their bits.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 10)).double()
    fleets: list[Any] = [pl.RayFleet(3, HERE, address=cluster.address), pl.ProcessFleet(3, threads=1), remote]
    rule = pl.FastestK(3, stop_late=False)
    runs = [train(digits_task(model), rule, fleet, 5, batch_size=sizes) for fleet in fleets]
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for name, values in states[0].items():
        torch.testing.assert_close(values, states[2][name], rtol=1e-10, atol=1e-12)


@pytest.fixture(params=[True, False], ids=["local", "remote"])
def three(request: pytest.FixtureRequest, cluster: Nodes, remote: PersistentRayFleet) -> Iterator[PersistentRayFleet]:
    """Three workers, on the server's own node or on two others."""
    if not request.param:
        yield remote
        return
    with pl.RayFleet(3, HERE, address=cluster.address).persistent() as fleet:
        yield fleet


def test_rules_that_measure_speeds_are_replayed_bit_for_bit(three: PersistentRayFleet, tmp_path: Path) -> None:
    fleet = like(three, slow={1: 3.0})
    for strategy in (pl.UnequalBatches(total=24, window=2, margin=0.0), pl.Advised(total=24, window=2)):
        case = replace(PROCESSES, fleet=fleet, strategy=strategy, sampling=pl.Shuffled())
        directory = tmp_path / type(strategy).__name__
        run = case.run(directory, pl.Stop(updates=15))
        resized = events(run, Resize)
        if isinstance(strategy, pl.Advised):
            assert "3 workers: all are waited for, for 2 rounds" in [fact.why for fact in resized]
        else:
            assert all(sum(fact.sizes.values()) == 24 for fact in resized)
        found = replayed(case, directory)
        assert (found.departure, found.differences, found.compared) == (None, {}, True)


# Losses


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_a_lost_call_did_counts_once_or_not_at_all(
    fault: faults.Fault, remote: PersistentRayFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, written = struck(fault, tmp_path / "marks"), WrittenDown()
    fleet = like(remote, slow=SLOW)
    run = train(task, pl.Asynchronous(), fleet, 10**6, sampling=written, callbacks=[Until("left", updates=30)])
    (left,) = events(run, Left)
    assert f"worker {left.worker} was killed by SIGKILL on " in caplog.text
    assert "a replacement is on its way" in caplog.text
    expected = retrace(run.trace, written.draws, replace(task, model=linear()), 0.1, run.history[-1].updates)
    for one, other in zip(run.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


def test_death_is_noticed(three: PersistentRayFleet) -> None:
    """Of a worker that has nothing to do, so that no deadline ends; and another one comes.

    How soon it is noticed: benchmarks/ray_fleet.py.
    """
    group, _ = three.launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        for worker in (0, 1):
            os.kill(group.pids[worker], signal.SIGKILL)
        seen: list[Any] = []  # another one may come before the second death is noticed
        while sum(isinstance(event, Joined) for event in seen) < 2:
            seen += group.wait()
        for worker in (0, 1):
            assert [type(event) for event in seen if event.worker == worker] == [Left, Joined]


def test_a_silent_worker_is_given_up_at_a_deadline_learnt_from_its_past(
    three: PersistentRayFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = like(three, slow=SLOW, deadline=SOON)
    run = train(struck(faults.stop, tmp_path / "marks", at=5), pl.Synchronous(), fleet, 60)
    left, *_ = events(run, Left)  # on a machine that stands still now and then, others may be given up too
    assert f"worker {left.worker} was silent for" in caplog.text
    assert run.ended == "updates"


class Story:
    """Worker 0's machine is drained, dies, and another comes. Then a cloud takes that of the others, which stays."""

    def __init__(self, cluster: Nodes, cloud: Metadata, directory: Path) -> None:
        self._cluster, self._cloud, self._trace = cluster, cloud, directory / "trace.jsonl"
        self.nodes = [self._add(1, "doomed"), self._add(2, "spare", cloud.address)]
        self._story = self._told()
        self._awaited = next(self._story)
        self.noticed_within = 0.0

    def __call__(self, model: torch.nn.Module) -> dict[str, float]:
        text = self._trace.read_text() if self._trace.exists() else ""
        if self._awaited and all(text.count(f'["{what}"') >= times for what, times in self._awaited.items()):
            self._awaited = next(self._story, {})
        return {"loss": 0.0, "accuracy": float(not self._awaited)}

    def _add(self, cpus: int, part: str, cloud: str = "http://127.0.0.1:9") -> Any:  # where nobody answers
        return self._cluster.add(cpus, labels={"part": part}, env_vars={METADATA: cloud})

    def _told(self) -> Iterator[dict[str, int]]:
        """What the trace has to tell before the next thing happens."""
        yield {"joined": 3}
        drained_at = time.monotonic()
        self._cluster.drain(self.nodes[0], 60.0)
        yield {"leaving": 1}
        self.noticed_within = time.monotonic() - drained_at
        self._cluster.kill(self.nodes[0])
        self.nodes.append(self._add(1, "doomed"))
        yield {"left": 1, "joined": 4}
        self._cloud.take_on_aws(1.0)
        yield {"leaving": 3, "left": 3, "joined": 6}


def test_a_node_that_dies_after_a_notice_is_replaced_and_workers_of_one_that_stays_begin_anew(
    cluster: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is to be lost gets no more work; the others go on; the run is replayed."""
    monkeypatch.setattr("paceline.fleets.ray.notices.GRACE", 0.5)
    fleet = pl.RayFleet(
        3, address=cluster.address, labels=("part=doomed", "part=spare", "part=spare"), notices=("ray", "aws"),
        slow=dict.fromkeys(range(3), pl.delays.Constant(0.05)),
    )  # fmt: skip
    with metadata_service() as cloud:
        story = Story(cluster, cloud, tmp_path / "run")
        options: dict[str, Any] = {"strategy": pl.LiveCompensation(2, blocks=4), "fleet": fleet}
        task, stop = replace(digits_task(), evaluate=story), pl.Stop(target=0.5, seconds=150.0)
        try:
            run = train(task, **options, stop=stop, every=pl.Every(updates=5), directory=tmp_path / "run")
        finally:
            for node in story.nodes:
                cluster.remove(node)
    assert run.ended == "target", caplog.text
    facts = list(run.trace)
    told = [fact for fact in facts if isinstance(fact, Leaving)]
    assert [fact.worker for fact in told] == [0, 1, 2]
    assert 59.9 - story.noticed_within <= told[0].by - told[0].at <= 60.1
    for fact in told:
        left = next(each for each in facts if isinstance(each, Left) and each.worker == fact.worker)
        since = facts[facts.index(fact) : facts.index(left)]
        assert not [each for each in since if isinstance(each, Start) and each.ticket.worker == fact.worker]
    assert sorted(event.worker for event in events(run, Joined)) == [0, 0, 1, 1, 2, 2]
    assert all(text in caplog.text for text in ("s (ray): its workers get no", "worker 0 ended", "s (aws): its"))
    found = pl.replay(tmp_path / "run", digits_task(), **options, optimizer=sgd)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_a_run_begins_without_a_worker_that_finds_no_place(
    cluster: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node dies while it starts, and there is no other one. Who has a place may take its time to start."""
    monkeypatch.setattr("paceline.fleets.ray.process.EXPECTED_FOR", 2.0)
    doomed, spare = cluster.add(1, labels={"part": "doomed"}), cluster.add(1, labels={"part": "spare"})
    doom = [doomed]

    def evaluate(
        model: torch.nn.Module,
    ) -> dict[str, float]:  # the first time while the workers start
        while doom:
            cluster.kill(doom.pop())
        return {"loss": 0.0}

    try:
        fleet = pl.RayFleet(2, address=cluster.address, labels=("part=doomed", "part=spare"))
        run = train(replace(digits_task(), evaluate=evaluate), pl.Synchronous(), fleet, updates=5)
        assert (run.ended, run.history[-1].updates) == ("updates", 5)
        assert [event.worker for event in events(run, Joined)] == [1]
        assert "worker 0 found no free resources: the run begins without it" in caplog.text
    finally:
        for node in (doomed, spare):
            cluster.remove(node)


def test_a_lost_node_that_nobody_replaces_keeps_no_core_busy(cluster: Nodes, tmp_path: Path) -> None:
    """Ray would try to place its machine again, without a pause, while another node could take it if it were free."""
    doomed, spare = (cluster.add(1, resources={"apart": 1.0}) for _ in range(2))
    store = psutil.Process(cluster.cluster.head_node.all_processes["gcs_server"][0].process.pid)
    doom, since, trace = [doomed], [], tmp_path / "run" / "trace.jsonl"

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        there = trace.read_text() if trace.exists() else ""
        while doom and '["step"' in there:
            cluster.kill(doom.pop())
        now = time.monotonic(), sum(store.cpu_times()[:2])
        if '["left"' in there:
            since.append(now)
        return {"loss": 0.0, "accuracy": float(bool(since) and now[0] > since[0][0] + 3.0)}

    try:
        fleet = pl.RayFleet(2, {"apart": 1.0}, address=cluster.address, slow=dict.fromkeys(range(2), SLOW[0]))
        stop, task = pl.Stop(target=0.5), replace(digits_task(), evaluate=evaluate)
        train(task, pl.Asynchronous(), fleet, stop=stop, every=pl.Every(updates=5), directory=tmp_path / "run")
    finally:
        for node in (doomed, spare):
            cluster.remove(node)
    (began, before), *_, (ended, after) = since
    assert after - before < 0.5 * (ended - began)


class Killing:
    """Kills a process of Ray once, when there have been a few updates, and waits until enough workers joined again."""

    def __init__(self, cluster: Nodes, kind: str, joined: int, directory: Path) -> None:
        self._cluster, self._kind, self._joined, self._trace = cluster, kind, joined, directory / "trace.jsonl"
        self.killed: list[int] = []

    def __call__(self, model: torch.nn.Module) -> dict[str, float]:
        text = self._trace.read_text() if self._trace.exists() else ""
        if not self.killed and text.count('["step"') > 5:
            newest = max(self._cluster.actors(self._kind), key=lambda each: each.create_time())  # those of the run
            newest.kill()
            self.killed.append(newest.pid)
        return {"loss": 0.0, "accuracy": float(text.count('["joined"') >= self._joined)}


def test_an_agent_that_is_killed_comes_back_with_its_workers_and_the_run_is_replayed(
    cluster: Nodes, remote: PersistentRayFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it held is left out of the update that wanted it, if any did; the replay leaves it out too."""
    fleet = like(remote, slow=SLOW)
    strike = Killing(cluster, "Agent", 4, tmp_path / "run")
    task = replace(digits_task(), evaluate=strike)
    stop = pl.Stop(target=0.5, seconds=150.0)
    run = train(
        task, pl.LiveCompensation(2, blocks=4), fleet, stop=stop, every=pl.Every(updates=5), directory=tmp_path / "run",
    )  # fmt: skip
    assert (run.ended, len(strike.killed)) == ("target", 1)
    (machines,) = [fact.workers for fact in run.trace if isinstance(fact, MachineWorkers)]
    left = sorted(event.worker for event in events(run, Left))
    assert tuple(left) in machines
    assert all(f"worker {worker} ended" in caplog.text for worker in left)
    found = pl.replay(
        tmp_path / "run", digits_task(), strategy=pl.LiveCompensation(2, blocks=4), fleet=fleet, optimizer=sgd
    )
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


class Standstill(pl.Callback):
    """After some updates all agents are stopped, and the run is asked to end."""

    def __init__(self, cluster: Nodes) -> None:
        self._cluster = cluster
        self.stopped: list[psutil.Process] = []
        self.asked_at = 0.0
        self.saved_at = 0.0

    def on_update(self, update: Update) -> None:
        if update.updates >= 5 and not self.stopped:
            self.stopped = self._cluster.actors()
            for agent in self.stopped:
                agent.suspend()
            self.asked_at = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

    def on_checkpoint(self, path: Path) -> None:
        self.saved_at = time.monotonic()


def test_a_run_ends_soon_though_no_machine_answers(
    cluster: Nodes, remote: PersistentRayFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What machines hold that do not say that they are alive is lost, also to the checkpoint."""
    standstill = Standstill(cluster)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(
                digits_task(), pl.LiveCompensation(2, blocks=1, recall=False), like(remote, slow=SLOW), 10**6,
                directory=tmp_path / "run", callbacks=[standstill],
            )  # fmt: skip
    finally:
        for agent in standstill.stopped:
            with suppress(psutil.NoSuchProcess):
                agent.resume()
    state = read_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert "lost" in str(state)
    assert standstill.saved_at - standstill.asked_at < 60


def test_half_precision_between_machines_is_replayed(remote: PersistentRayFleet, tmp_path: Path) -> None:
    fleet = like(remote, wire="bfloat16")
    task = digits_task(linear().float())
    task = replace(task, train=tuple(each.float() if each.is_floating_point() else each for each in task.train))  # type: ignore[union-attr]
    task = replace(task, evaluate=lambda model: {"loss": 0.0})
    train(task, pl.Synchronous(), fleet, 6, directory=tmp_path / "run")
    found = pl.replay(tmp_path / "run", task, strategy=pl.Synchronous(), fleet=fleet, optimizer=sgd)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_below_the_minimum_the_run_stops_with_a_checkpoint_and_goes_on_later(
    remote: PersistentRayFleet, tmp_path: Path
) -> None:
    fleet = like(remote, min_workers=3, replace=False)
    task = struck(faults.die, tmp_path / "marks", at=6)
    run = train(task, pl.Synchronous(), fleet, 30, directory=tmp_path / "run")
    assert run.ended == "too few workers"
    assert "2 of 3 workers are left, and min_workers=3" in (run.problem or "")
    before = read_checkpoint(tmp_path / "run" / "checkpoint.safetensors")["loop"]["version"]
    run = train(task, pl.Synchronous(), fleet, 30, directory=tmp_path / "run", resume=True)
    assert (run.ended, run.history[-1].updates) == ("updates", 30)
    assert before < 30


def test_a_run_whose_server_was_killed_is_resumed(cluster: Nodes, remote: PersistentRayFleet, tmp_path: Path) -> None:
    """SIGKILL in the middle of everything: its actors go, and it comes to its end from the last checkpoint."""
    code = f"""
from pathlib import Path
import paceline as pl
from support.resumable import endless
endless(Path({str(tmp_path / "run")!r}), pl.RayFleet(3, {{"CPU": 0.3}}, address={cluster.address!r}))
"""
    others = cluster.actors()
    server = subprocess.Popen([sys.executable, "-c", code], cwd=TESTS)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    while not checkpoint.exists():
        assert server.poll() is None, "it ended by itself"
        time.sleep(0.01)
    actors = [each for each in cluster.actors() if each not in others]
    server.kill()
    assert server.wait() == -signal.SIGKILL
    made = read_checkpoint(checkpoint)["loop"]["version"]
    case = replace(PROCESSES, fleet=remote, strategy=pl.LiveCompensation(2, blocks=4))
    run = case.run(tmp_path / "run", pl.Stop(updates=made + 10), resume=True)
    assert run.history[-1].updates == made + 10
    found = replayed(case, tmp_path / "run")
    assert (found.departure, found.differences, found.compared) == (None, {}, True)
    assert actors
    assert psutil.wait_procs(actors, timeout=PATIENCE)[1] == []
