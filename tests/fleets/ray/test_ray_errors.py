"""What can be wrong with a cluster, told in one line within seconds."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import paceline as pl
from paceline.cli.main import main
from paceline.core.errors import WorkerFailed
from paceline.fleets.ray.addresses import own_clusters
from paceline.learning.workload import workload_of
from support.digits import digits_task
from support.factory import write_experiment
from support.forks import all_well, forked
from support.processes import PATIENCE
from support.ray_cluster import Nodes, nodes

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes([1]) as made:
        yield made


def refused(fleet: pl.RayFleet, task: pl.Task | None = None) -> str:
    """The one line in which a fleet refuses to work."""
    with pytest.raises(pl.ConfigError) as caught:
        fleet.launch(workload_of(digits_task() if task is None else task, [], 32), seed=0)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"workers": 0}, "a fleet of 0 workers can do nothing: at least 1"),
        ({"min_workers": 3}, "min_workers=3 does not fit 2 workers"),
        ({"placement": "scatter"}, "placement='scatter' is unknown: 'spread' or 'pack'"),
        ({"address": "ray://head:10001"}, "is that of a Ray client"),
        ({"resources_per_worker": {"CPU": -1.0}}, "-1.0 of CPU is not possible"),
        ({"resources_per_worker": {"GPU": "1"}}, "'1' of GPU is not possible"),
        ({"resources_per_worker": {1: 1}}, "1 is no name of a resource"),
        ({"resources_per_worker": "GPU"}, "resources_per_worker='GPU' names no amounts"),
        ({"slow": {1: 1e308}}, "cannot be 1e\\+308 times as slow: 1 to 1,000,000 times"),
        ({"labels": ["gpu=a100"]}, "1 labels for 2 workers"),
        ({"labels": ["a100", "t4"]}, "'a100' names no label"),
        ({"slow": {2: 3.0}}, "slow names worker 2: the fleet has workers 0 to 1"),
        ({"slow": {1: 0.5}}, "worker 1 cannot be 0.5 times as slow"),
    ],
)
def test_descriptions_that_cannot_be(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(pl.ConfigError, match=line):
        pl.RayFleet(**{"workers": 2, **wrong})


def test_without_ray() -> None:
    def launch() -> None:
        sys.modules["ray"] = None  # type: ignore[assignment]
        print(refused(pl.RayFleet(2)))

    (said,) = forked(launch)
    assert said == (0, "RayFleet needs Ray, which is not installed: pip install paceline[ray]\n", "")


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, which would try for long, is not even asked."""
    monkeypatch.setattr("ray.init", None)
    line = refused(pl.RayFleet(2, address="127.0.0.1:9"))
    assert line.startswith("no Ray cluster answers at 127.0.0.1:9 (")
    assert "ray start --head" in line


def test_a_task_that_cannot_be_sent() -> None:
    """It is not even tried to connect."""
    lock = threading.Lock()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        with lock:
            return mse_loss(outputs, targets)

    task = replace(digits_task(), loss=loss)
    line = refused(pl.RayFleet(2, address="127.0.0.1:9"), task)
    assert line.startswith("the task cannot be sent to worker processes: cannot pickle '_thread.lock' object")


def test_too_few_resources(cluster: Nodes) -> None:
    address = cluster.address
    assert refused(pl.RayFleet(2, address=address)) == (
        "2 workers of 1 CPU need 2 of CPU, and the cluster has 1 on 2 nodes: 1 is missing"
    )
    assert refused(pl.RayFleet(1, {"CPU": 4.0}, address=address)) == (
        "a worker of 4 CPU fits no node of the cluster: none has more than 1 of CPU"
    )
    assert "none has more than 0 of TPU" in refused(pl.RayFleet(1, {"CPU": 1.0, "TPU": 1.0}, address=address))


def test_room_that_others_take(cluster: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.fleets.ray import session

    with pl.RayFleet(1, address=cluster.address).persistent() as others:
        assert others.workers == 1
        monkeypatch.setattr(session, "RESERVED_WITHIN", 1.0)  # only now: on a busy machine, these may take longer
        line = refused(pl.RayFleet(1, {"CPU": 0.5}))  # where this process is connected to
    assert line.startswith("1 workers of 0.5 CPU found no room within 1 s: ")
    line = refused(pl.RayFleet(1, {"CPU": 0.5}, address=cluster.address, labels=["zone=in(moon,mars)"]))
    assert line.endswith("; wanted labels: zone=in(moon,mars)")


@pytest.mark.parametrize(
    ("shards", "optimizer", "line"),
    [
        (400, torch.optim.SGD, "shards=400 are more than the 5 parameters of the model: at most 5"),
        (2, torch.optim.Rprop, "shards=2 needs an optimizer that works element by element, and Rprop is not known to"),
    ],
    ids=["more than parameters", "an optimizer that cannot be cut"],
)
def test_a_server_that_cannot_be_cut(shards: int, optimizer: Any, line: str, cluster: Nodes) -> None:
    """Nothing is left running, and the cluster serves the next run."""
    task = pl.Task(torch.nn.Linear(4, 1), mse_loss, (torch.rand(8, 4), torch.rand(8, 1)))
    fleet = pl.RayFleet(1, address=cluster.address, shards=shards)
    with pytest.raises(pl.ConfigError) as caught:
        pl.train(
            task, strategy=pl.Synchronous(), fleet=fleet, optimizer=lambda each: optimizer(each, lr=0.1),
            stop=pl.Stop(updates=1), batch_size=4, progress=False,
        )  # fmt: skip
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    until_gone(cluster, "Shard")
    until_gone(cluster, "Agent")


def until_gone(cluster: Nodes, kind: str) -> None:
    limit = time.monotonic() + PATIENCE
    while cluster.actors(kind):
        assert time.monotonic() < limit, f"{kind} is left"
        time.sleep(0.05)


def test_more_shards_than_machines_are_warned_of(cluster: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    task = pl.Task(torch.nn.Linear(4, 1), mse_loss, (torch.rand(8, 4), torch.rand(8, 1)))
    fleet = pl.RayFleet(1, address=cluster.address, shards=2)
    run = pl.train(
        task, strategy=pl.Synchronous(), fleet=fleet, optimizer=lambda each: torch.optim.SGD(each, lr=0.1),
        stop=pl.Stop(updates=2), batch_size=4, progress=False,
    )  # fmt: skip
    assert run.ended == "updates"
    assert "shards=2 on 1 machines: those of one machine share its link" in caplog.text


def test_a_cluster_of_ones_own_is_found(cluster: Nodes) -> None:
    assert cluster.address in own_clusters()


def test_more_workers_than_machines_should_have(cluster: Nodes) -> None:
    """Before any is reserved; and before a cluster is started for them."""
    line = refused(pl.RayFleet(2100, {"CPU": 1e-4}, address=cluster.address))
    assert line.startswith("2,100 processes on 2 machines are too many: at most 2,048 are started")
    assert refused(pl.RayFleet(1100)).startswith("1,100 processes on one machine are too many")


def test_labels_where_there_are_none(cluster: Nodes) -> None:
    assert refused(pl.RayFleet(1, address=cluster.address, labels=["zone=moon"])) == (
        "no node of the cluster has the label zone=moon, wanted for 1 of the workers: its nodes have no labels, "
        "which ray start --labels zone=moon would give them"
    )


def test_another_version_of_ray(cluster: Nodes) -> None:
    address = cluster.address

    def launch() -> None:
        import ray

        ray.__version__ = "2.59.0"
        print(refused(pl.RayFleet(1, address=address)))

    (said,) = forked(launch)
    all_well([said])
    (line,) = said.out.splitlines()
    assert line.startswith(f"this process does not fit the Ray cluster at {address}: Version mismatch")
    assert "2.59.0" in line


class OnDisk:
    """A data set that lies in a directory which only some nodes have."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = np.load(Path(os.environ["PACELINE_TEST_DATA"]) / "values.npy")
        return torch.from_numpy(values[index]), torch.zeros(1, dtype=torch.float64)


@pytest.fixture(scope="module")
def other(cluster: Nodes) -> Iterator[Nodes]:
    """The cluster with another node, which has not the data, and of which Ray believes that it has a GPU."""
    node = cluster.add(1, num_gpus=1, env_vars={"PACELINE_TEST_DATA": "/nowhere"}, labels={"disk": "no"})
    yield cluster
    cluster.remove(node)


def test_a_node_without_the_data(other: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "values.npy", np.ones((64, 3)))
    monkeypatch.setenv("PACELINE_TEST_DATA", str(tmp_path))
    task = pl.Task(torch.nn.Linear(3, 1).double(), mse_loss, OnDisk(), evaluate=lambda model: {"loss": 0.0})
    fleet = pl.RayFleet(1, address=other.address, share_memory=False, labels=["disk=no"])
    with pytest.raises(WorkerFailed) as caught:
        pl.train(
            task, strategy=pl.Synchronous(), fleet=fleet, stop=pl.Stop(updates=5), batch_size=4,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), progress=False,
        )  # fmt: skip
    first, *rest = str(caught.value).splitlines()
    assert first == "worker 0 raised an error while it started:"
    (line,) = rest
    assert line.startswith("ConfigError: the data cannot be read on ")
    assert "FileNotFoundError" in line
    assert "/nowhere/values.npy" in line


def test_a_device_that_ray_promises_and_torch_does_not_find(other: Nodes) -> None:
    fleet = pl.RayFleet(1, {"CPU": 1.0, "GPU": 1.0}, address=other.address)
    with pytest.raises(WorkerFailed) as caught:
        pl.train(
            digits_task(), strategy=pl.Synchronous(), fleet=fleet, stop=pl.Stop(updates=5), progress=False,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )  # fmt: skip
    first, line = str(caught.value).splitlines()
    assert first == "worker 0 raised an error while it started:"
    assert "cuda:0" in line


def test_the_command_line(cluster: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        """
strategy = "asgd"
[task]
data = "digits"
model = "linear"
[fleet]
kind = "ray"
workers = 1
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 20
"""
    )
    command = ["train", str(file), "--directory", str(tmp_path / "run")]
    assert main([*command, "--address", cluster.address]) == 0
    assert "ended by updates after 20 updates" in capsys.readouterr().out
    assert 'kind = "ray"' in (tmp_path / "run" / "config.toml").read_text()
    assert main([*command, "--fleet", "ray", "--address", "127.0.0.1:9"]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "no Ray cluster answers at 127.0.0.1:9" in err


def test_a_task_of_ones_own_on_the_command_line(cluster: Nodes, tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    file.write_text(file.read_text().replace("count = 2", "count = 1"))
    elsewhere, address = tmp_path / "elsewhere", cluster.address
    elsewhere.mkdir()

    def train() -> None:
        os.chdir(elsewhere)
        sys.exit(main(["train", str(file), "--fleet", "ray", "--address", address]))

    (said,) = forked(train)
    assert said.code == 0, said.err
    assert "ended by updates after 6 updates" in said.out
