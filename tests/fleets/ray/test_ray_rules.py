"""Rules on a Ray cluster of two labelled nodes, one cluster for all.

Who is slow, and which groups come of it: by profile, by labels, by measured speed. Rules whose workers hand in models.
What callbacks are told.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.core.messages import Arrived, Regroup, Step
from paceline.fleets.ray.fleet import PersistentRayFleet
from paceline.learning.workload import workload_of
from paceline.reports.stragglers import stragglers
from paceline.trace.format import Computed
from paceline.trace.reading import read_trace
from support.digits import digits_task, weights
from support.ray_cluster import Nodes, like, nodes
from support.resumable import PROCESSES, replayed
from support.told import told_and_replayed

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open
FAST, SLOW = 0.1, 2.0  # seconds a mini-batch, made: noise of the machine can only bring them nearer to each other
FILE = """
batch_size = 8
strategy = "gsgd:groups=labels"
[task]
data = "digits"
model = "linear"
[fleet]
kind = "ray"
share_memory = false
resources_per_worker = {{ CPU = 0.3 }}
{fleet}
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 20
"""
UNEQUAL = f"""
workers = 2
[[fleet.slow]]
worker = 0
delay = "constant"
value = {FAST}
[[fleet.slow]]
worker = 1
delay = "constant"
value = {SLOW}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes([]) as made:
        for kind in ("a100", "t4"):
            made.add(1, labels={"gpu": kind})
        yield made


@pytest.fixture(scope="module")
def pair(cluster: Nodes) -> Iterator[PersistentRayFleet]:
    """Two workers on one node, where they would be spread over both. Their agent stays from run to run."""
    labels = ["gpu=t4", "gpu=t4"]
    described = pl.RayFleet(2, {"CPU": 0.3}, address=cluster.address, share_memory=False, labels=labels)
    with described.persistent() as fleet:
        yield fleet


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "ray.toml"


def test_a_profile_of_far_workers_tells_compute_from_transfer_and_goes_on(
    cluster: Nodes, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.format(fleet=UNEQUAL))
    asked = ["profile", str(file), "--address", cluster.address, "--seconds", "9"]
    assert main([*asked, "--output", "out", "--json", "out.json"]) == 0
    out = capsys.readouterr().out
    assert "Suggested: 2 groups of similar speed: gsgd:groups=0/1" in out
    assert f"paceline train {file} --address {cluster.address} --strategy gsgd:groups=0/1" in out
    trace = read_trace("out")
    found = json.loads(Path("out.json").read_text())
    assert found == json.loads(json.dumps(stragglers(trace).table()))
    for each, delay in zip(found["workers"], (FAST, SLOW), strict=True):
        assert delay <= each["compute"] < each["round_trip"]
        assert 0 < each["transfer"] < each["round_trip"]
    computed = [fact for fact in trace if isinstance(fact, Computed)]
    for (worker, round_trip), own in zip(trace.durations(), computed, strict=False):  # the last may not have arrived
        assert worker == own.ticket.worker
        assert (FAST, SLOW)[worker] <= own.seconds < round_trip
    assert main(["replay", "out", "-s", "gsgd:groups=0/1"]) == 0
    assert "gsgd:groups=0/1, simulated" in capsys.readouterr().out
    assert main(["predict", "out", "--no-model", "-s", "gsgd:groups=0/1"]) == 0
    assert "gsgd:groups=0/1" in capsys.readouterr().out


def test_groups_of_a_file_are_those_of_its_labels(
    cluster: Nodes, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = ["gpu=a100", "gpu=t4", "gpu=a100"]
    file.write_text(FILE.format(fleet=f"workers = {len(labels)}\nlabels = {json.dumps(labels)}"))
    asked = ["train", str(file), "--address", cluster.address, "--directory", "run", "--no-check-step"]
    assert main(asked) == 0
    assert "ended by updates after 20 updates" in capsys.readouterr().out
    steps = [fact for fact in read_trace("run") if isinstance(fact, Step)]
    together = {tuple(sorted(ticket.worker for ticket in step.weights)) for step in steps}
    assert together <= {(0, 2), (1,)}  # one group may have made all updates before the other one's first


@pytest.mark.parametrize(
    ("workers", "label", "said"),
    [
        (
            3, "gpu=a10",
            "no node of the cluster has the label gpu=a10, wanted for 3 of the workers: did you mean 'gpu=a100'? "
            "(known: gpu=a100, gpu=t4)",
        ),
        (3, "zone=the moon", "the label zone=the moon, wanted for 3 of the workers: choose from gpu=a100, gpu=t4"),
        (
            5, "gpu=t4",
            "5 workers of 0.3 CPU need 1.5 of CPU, and the cluster has 1 on 1 nodes labelled gpu=t4: 0.5 is missing",
        ),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_had_are_one_line(  # noqa: PLR0917 - pytest names them
    cluster: Nodes, file: Path, workers: int, label: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.format(fleet=f"workers = {workers}\nlabels = {json.dumps([label] * workers)}"))
    assert main(["train", str(file), "--address", cluster.address]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert [path.name for path in Path.cwd().iterdir()] == ["ray.toml"]


def test_workers_are_on_nodes_with_their_labels(cluster: Nodes, pair: PersistentRayFleet) -> None:
    labels = {node["NodeID"]: node["Labels"].get("gpu") for node in ray.nodes()}
    raylets = {
        node.all_processes["raylet"][0].process.pid: labels[node.node_id] for node in cluster.cluster.list_all_nodes()
    }
    assert sorted(map(str, raylets.values())) == ["None", "a100", "t4"]
    group, _ = pair.launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        ancestors = [{each.pid for each in psutil.Process(pid).parents()} for pid in group.pids.values()]
    assert [[raylets[pid] for pid in each & raylets.keys()] for each in ancestors] == [["t4"], ["t4"]]


def test_groups_are_formed_anew_when_one_becomes_slow(pair: PersistentRayFleet) -> None:
    """Two are alike; later the second becomes slow for good."""
    becomes_slow = pl.delays.Empirical([FAST] * 8 + [SLOW] * 1000, in_order=True)
    fleet = like(pair, slow={0: pl.delays.Constant(FAST), 1: becomes_slow})
    rule = pl.Regrouped(tolerance=1.5, margin=1.0, window=3)
    run = pl.train(
        digits_task(), strategy=rule, fleet=fleet, stop=pl.Stop(updates=30), progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    facts = list(run.trace)
    (regroup,) = (fact for fact in facts if isinstance(fact, Regroup))
    assert regroup.groups == ((0,), (1,))
    assert re.fullmatch(r"worker 1 takes \S+ s and worker 0 of its group \S+ s: \S+ times, more than 5", regroup.why)
    before = facts[: facts.index(regroup)]
    assert sum(isinstance(fact, Arrived) and fact.ticket.worker == 1 for fact in before) > 8


def test_a_handler_of_sigterm_stays(cluster: Nodes) -> None:
    """Ray would take its place, and a run that is asked to end could save nothing."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    try:
        with pl.RayFleet(1, {"CPU": 0.1}, address=cluster.address).persistent():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [signal.SIGTERM]


# One rule for each thing that a server does with models: BMUF, SlowMo and post-local SGD are other numbers of DiLoCo's.
OF_MODELS = {
    "DiLoCo": pl.DiLoCo(every=2),
    "Decoupled DiLoCo": pl.DecoupledDiLoCo(every=2, quorum=1, grace=0.02),
    "AdaComm": pl.AdaComm(every=4, interval=2),
    "FedBuff": pl.FedBuff(every=2, size=2),
    "FedAsync": pl.FedAsync(every=2),
    "EASGD": pl.EASGD(every=2),
    "local steps by speed": pl.ModelAveraging(every=3, waits=pl.Asynchronous(), by_speed=True),
}


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_run_of_models_is_replayed_bit_for_bit(name: str, pair: PersistentRayFleet, tmp_path: Path) -> None:
    case, updates = replace(PROCESSES, fleet=pair, strategy=OF_MODELS[name]), 6
    run = case.run(tmp_path, pl.Stop(updates=updates))
    taken = [fact for fact in run.trace if isinstance(fact, Step)]
    assert len(taken) == updates
    assert {ticket.work.kind for step in taken for ticket in step.weights} == {"local_steps"}
    assert torch.isfinite(weights(run.model)).all()
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_callbacks_are_told_what_those_of_simulated_workers_are(pair: PersistentRayFleet, tmp_path: Path) -> None:
    told_and_replayed(pair, tmp_path)
