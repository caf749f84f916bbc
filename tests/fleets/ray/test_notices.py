"""Notices before a loss, without Ray: what clouds tell, and what becomes of it on the server."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.config.fleets import fleet_table, read_fleet
from paceline.core.messages import Arrived, Joined, Leaving, Left, Recall, Start, Step
from paceline.fleets.processes.channel import LEAVING, READY, RECORD, STAYING, UNKNOWN
from paceline.fleets.ray import notices
from paceline.fleets.ray.messages import Notice, Ready
from paceline.fleets.ray.notices import CLOUDS, GRACE, CloudWatch, DrainWatch, MachineNotices, MetadataService
from paceline.learning.workload import workload_of
from support.agents import Remote
from support.digits import digits_task
from support.metadata import NAME, Metadata, azure_event, metadata_service

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@pytest.fixture
def cloud() -> Iterator[Metadata]:
    with metadata_service() as made:
        yield made


def reader(name: str, cloud: Metadata) -> Any:
    return CLOUDS[name](MetadataService(cloud.address))


# What clouds tell.


@pytest.mark.parametrize("name", CLOUDS)
def test_a_machine_that_stays_has_no_notice(name: str, cloud: Metadata) -> None:
    own = reader(name, cloud)
    assert [own.taken_at() for _ in range(3)] == [None] * 3


def test_aws_names_the_time_and_a_token_is_asked_for_once(cloud: Metadata) -> None:
    own = reader("aws", cloud)
    cloud.answers["/latest/meta-data/spot/instance-action"] = '{"action": "stop", "time": "2017-09-18T08:22:00Z"}'
    assert [own.taken_at(), own.taken_at()] == [1505722920.0] * 2
    assert len(cloud.tokens) == 1


def test_a_token_of_aws_that_has_expired_is_renewed(cloud: Metadata) -> None:
    own = reader("aws", cloud)
    assert own.taken_at() is None
    cloud.tokens.append("another one")
    with pytest.raises(OSError, match="401"):
        own.taken_at()
    assert own.taken_at() is None


def test_gcp_names_no_time_and_gives_half_a_minute_from_the_first_time_on(cloud: Metadata) -> None:
    own = reader("gcp", cloud)
    cloud.take_on_gcp()
    before = time.time()
    first = own.taken_at()
    assert before + 30 <= first <= time.time() + 30
    assert own.taken_at() == first


def test_azure_lists_events_of_other_machines_too_and_such_that_a_machine_survives(cloud: Metadata) -> None:
    own = reader("azure", cloud)
    others = [
        azure_event("Preempt", 30, "WestNO_0"),
        azure_event("Freeze", 900, NAME),
        azure_event("Reboot", 900, NAME),
    ]
    cloud.schedule_on_azure(*others)
    assert own.taken_at() is None
    terminate = {**azure_event("Terminate", 30, "WestNO_0", NAME), "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}
    cloud.schedule_on_azure(*others, terminate)
    assert own.taken_at() == 1474309787.0
    cloud.schedule_on_azure(azure_event("Preempt", None, NAME))
    before = time.time()
    assert before <= own.taken_at() <= time.time()


class Told:
    """What a watch tells when it is asked."""

    def __init__(self, *clouds: str) -> None:
        self.told: list[tuple[str, float | None, str]] = []
        self.watch = CloudWatch(clouds, lambda *told: self.told.append(told))


def test_a_change_is_told_once_and_so_is_that_it_was_taken_back(
    cloud: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(notices.METADATA, cloud.address)
    own = Told("azure")
    cloud.schedule_on_azure(azure_event("Preempt", 30, NAME))
    for _ in range(3):
        own.watch.ask("azure")
    cloud.schedule_on_azure()
    for _ in range(3):
        own.watch.ask("azure")
    (name, seconds, problem), withdrawn = own.told
    assert (name, problem, withdrawn) == ("azure", "", ("azure", None, ""))
    assert seconds is not None
    assert 20 < seconds <= 30


@pytest.mark.parametrize("answer", [500, "<html>", '{"action": "terminate"}', '{"time": 12}', "[]"])
def test_a_cloud_that_cannot_be_asked_says_so_once_and_takes_no_notice_back(
    answer: str | int, cloud: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(notices.METADATA, cloud.address)
    own = Told("aws")
    cloud.take_on_aws(120)
    own.watch.ask("aws")
    cloud.answers["/latest/meta-data/spot/instance-action"] = answer
    for _ in range(6):
        own.watch.ask("aws")
    (_, seconds, _), (name, none, problem) = own.told
    assert seconds is not None
    assert (name, none) == ("aws", None)
    assert problem


def test_nothing_answers_where_there_is_no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_service() as gone:
        pass
    monkeypatch.setenv(notices.METADATA, gone.address)
    own = Told("aws", "gcp", "azure")
    for _ in range(3):
        for name in CLOUDS:
            own.watch.ask(name)
    assert [(name, "refused" in problem) for name, _, problem in own.told] == [(name, True) for name in CLOUDS]


def test_the_thread_of_a_machine_asks_until_it_is_closed(cloud: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(notices.METADATA, cloud.address)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody is there: it must not be asked
    monkeypatch.setattr(notices, "CLOUD_INTERVAL", 0.01)
    told, heard = list[tuple[str, float | None, str]](), threading.Event()

    def tell(*notice: Any) -> None:
        told.append(notice)
        heard.set()

    watch = CloudWatch(("gcp",), tell)
    watch.start()
    cloud.take_on_gcp()
    assert heard.wait(60)
    watch.close()
    watch._thread.join()
    assert [name for name, _, _ in told] == ["gcp"]


# What the server makes of it.


def test_the_soonest_of_several_notices_counts_until_the_machine_has_outlived_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = MachineNotices("10.0.0.2")

    def heard(source: str, by: float | None, now: float) -> bool:
        own.hear(source, by)
        return own.changed(now)

    assert not heard("ray", None, 100.0)
    assert heard("ray", 200.0, 100.0)
    assert not heard("ray", 200.3, 101.0)  # computed anew, from another clock
    assert heard("aws", 150.0, 102.0)
    assert own.told == 150.0
    assert not own.changed(150.0 + GRACE)
    assert own.changed(150.1 + GRACE)
    assert own.told == 200.3
    assert own.changed(200.4 + GRACE)
    assert own.told is None
    assert heard("ray", math.inf, 300.0)
    assert not own.changed(1e9)
    assert heard("ray", None, 1e9)
    assert own.told is None
    assert [each.removeprefix("10.0.0.2 ") for each in caplog.messages] == [
        "will be gone in 100 s (ray): its workers get no more work",
        "will be gone in 48 s (aws): its workers get no more work",
        "will be gone in 0 s (ray): its workers get no more work",
        "was to be gone, and is still here",
        "will be gone soon (ray): its workers get no more work",
        "was to be gone, and is still here",
    ]


@pytest.fixture
def remote() -> Iterator[Remote]:
    made = Remote(10)
    yield made
    made.close()


def test_workers_of_a_drained_node_are_announced_also_those_that_become_ready_later(remote: Remote) -> None:
    remote.client.look_for_notice({"node": 50.0})  # where it will be is not known yet
    assert remote.told() == []
    remote.open().tell(Ready(7, 17))
    assert remote.told() == [(7, READY, 0)]
    by = time.monotonic() + 30
    for draining in ({"another": by}, {"node": by}, {"node": by + 0.1}):
        remote.client.look_for_notice(draining)
    assert remote.told() == [(7, LEAVING, int(by * 1000)), (9, LEAVING, int(by * 1000))]
    remote.tell(Ready(9, 19))
    assert remote.told() == [(9, READY, 0), (9, LEAVING, int(by * 1000))]
    remote.client.look_for_notice({"node": math.inf})
    assert remote.told() == [(7, LEAVING, UNKNOWN), (9, LEAVING, UNKNOWN)]
    remote.client.look_for_notice({})  # it has ended, and its agent with it: that will be told in its own way
    assert remote.told() == []


def test_workers_of_a_machine_that_outlives_its_notice_stay(remote: Remote) -> None:
    remote.open().tell(Ready(7, 17), Ready(9, 19))
    remote.client.look_for_notice({"node": time.monotonic() - GRACE - 1})  # a drain of long ago
    assert remote.told() == [(7, READY, 0), (9, READY, 0)]
    remote.tell(Notice("azure", 30.0))
    assert [done for _, done, _ in remote.told()] == [LEAVING, LEAVING]
    remote.tell(Notice("azure", None))
    assert remote.told() == [(7, STAYING, 0), (9, STAYING, 0)]


def test_a_cloud_s_notice_comes_behind_what_it_is_about(remote: Remote, caplog: pytest.LogCaptureFixture) -> None:
    remote.open().tell(Ready(7, 17), Notice("aws", 120.0), Notice("gcp", None, "URLError: timed out"))
    (ready, leaving, _) = remote.told()
    assert (ready, leaving[:2]) == ((7, READY, 0), (7, LEAVING))
    assert 110 < leaving[2] / 1000 - time.monotonic() <= 120
    assert "gcp gives no notices of 10.0.0.2, as it could not be asked there (URLError: timed out)" in caplog.text


def test_ray_is_asked_again_after_an_error_which_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "RAY_INTERVAL", 0.001)
    heard, asked = list[Mapping[str, float]](), iter(range(1000))
    enough = threading.Event()

    def draining() -> Mapping[str, float]:
        if next(asked) < 3:
            raise AttributeError("get_draining_nodes")
        return {"own": 1.0, "other": 2.0}

    class Machine:
        def look_for_notice(self, draining: Mapping[str, float]) -> None:
            heard.append(draining)
            enough.set()

    watch = DrainWatch(draining, [Machine()], "own")
    assert enough.wait(60)
    watch.close()
    assert heard[0] == {"other": 2.0}
    assert caplog.messages == [
        "Ray could not be asked which nodes are drained (AttributeError: get_draining_nodes)",
        "the server's own node is drained, and the run will end with it: resume it elsewhere",
    ]


# What workers make of it.


def announce(group: Any, worker: int, seconds: float | None) -> None:
    """As an agent does."""
    record = (STAYING, 0) if seconds is None else (LEAVING, int(1000 * (time.monotonic() + seconds)))
    os.write(group.supervisor._results, RECORD.pack(worker, *record))


def test_a_worker_that_stays_is_started_anew(caplog: pytest.LogCaptureFixture) -> None:
    group, _ = pl.ProcessFleet(2).launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        before = group.pids[1]
        announce(group, 1, 20.0)
        (leaving,) = group.wait()
        assert isinstance(leaving, Leaving)
        assert (leaving.worker, 19 < leaving.by - leaving.at <= 20) == (1, True)
        announce(group, 1, None)
        assert [type(event) for event in (*group.wait(), *group.wait())] == [Left, Joined]
        assert group.pids[1] != before
        assert "worker 1 was to be lost with its machine, and is not: it was ended while it had" in caplog.text


def test_without_replacement_it_stays_without_work(caplog: pytest.LogCaptureFixture) -> None:
    group, _ = pl.ProcessFleet(2, replace=False).launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        announce(group, 1, -5.0)  # heard too late
        announce(group, 0, UNKNOWN / 2000)
        late, unknown = *group.wait(), *group.wait()
        assert isinstance(late, Leaving)
        assert isinstance(unknown, Leaving)
        assert (late.by, unknown.by) == (late.at, unknown.at + 3600)
        announce(group, 1, None)
        group.wake_at(group.now + 0.05)
        group.wait()
        assert "worker 1 stays without work: to begin anew it would have to be replaced" in caplog.text


def test_one_that_is_announced_while_all_start_begins_so() -> None:
    group, _ = pl.ProcessFleet(2).launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        while not group.supervisor.workers[1].ready:
            group._wait_once()
        announce(group, 1, 20.0)
        group._wait_once()
        *joined, leaving = group.wait()
        assert joined == [Joined(0.0, 0), Joined(0.0, 1)]
        assert isinstance(leaving, Leaving)
        assert (leaving.at, leaving.worker) == (0.0, 1)


class Announced:
    """Processes of which worker 2 is announced to leave in the middle of its work, and lost when it has handed in."""

    def __init__(self, fleet: pl.ProcessFleet) -> None:
        self.described_as = fleet
        self.workers, self.medians = fleet.workers, fleet.medians

    def launch(self, workload: Any, seed: int) -> Any:
        group, contributions = self.described_as.launch(workload, seed)
        seen, wait = list[Any](), group.wait

        def waited() -> Any:
            doomed = group.pids.get(2, 0)
            if len(seen) == 2:  # another one has handed in
                while not group.supervisor.workers[2].channel.last_heartbeat:
                    time.sleep(0.01)
                os.kill(doomed, signal.SIGSTOP)  # until it is recalled, however busy the machine is
                announce(group, 2, 30.0)
            if isinstance(seen and seen[-1], Leaving):
                os.kill(doomed, signal.SIGCONT)
            if isinstance(seen and seen[-1], Arrived) and seen[-1].ticket.worker == 2:
                os.kill(doomed, signal.SIGKILL)
            events = wait()
            seen.append(events[-1] if events else None)
            return events

        group.wait = waited  # type: ignore[method-assign]
        return group, contributions


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_who_is_leaving_is_recalled_and_gets_no_more_work_and_the_run_is_replayed(tmp_path: Path) -> None:
    slow = {0: pl.delays.Constant(0.02), 1: pl.delays.Constant(0.02), 2: pl.delays.Constant(2.0)}
    fleet = pl.ProcessFleet(3, slow=slow, replace=False)
    options: dict[str, Any] = {"strategy": pl.LiveCompensation(quorum=3, blocks=8), "optimizer": sgd}
    run = pl.train(
        digits_task(), fleet=Announced(fleet), stop=pl.Stop(updates=10), directory=tmp_path / "run", progress=False,
        **options,
    )  # fmt: skip
    facts = list(run.trace)
    (place,) = [place for place, fact in enumerate(facts) if isinstance(fact, Leaving)]
    (had,) = [fact.ticket for fact in facts if isinstance(fact, Start) and fact.ticket.worker == 2]
    assert facts[place + 1] == Recall(had)  # at once
    (done,) = [fact.done for fact in facts if isinstance(fact, Arrived) and fact.ticket == had]
    assert 0 < done < 8
    assert had in {ticket for fact in facts if isinstance(fact, Step) for ticket in fact.weights}  # none is lost
    assert [fact.worker for fact in facts if isinstance(fact, Left)] == [2]
    assert run.ended == "updates"
    found = pl.replay(tmp_path / "run", digits_task(), fleet=fleet, **options)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("aws", 'notices=\'aws\' are none: give a list such as ("ray", "aws")'),
        (["ray", 3], "notices=['ray', 3] are none"),
        (["awss"], "notices: 'awss' gives none: did you mean 'aws'? (known: ray, aws, gcp, azure)"),
        (["oracle"], "notices: 'oracle' gives none: choose from ray, aws, gcp, azure"),
    ],
)
def test_other_sources_are_refused(wrong: Any, line: str) -> None:
    with pytest.raises(pl.ConfigError) as caught:
        pl.RayFleet(2, notices=wrong)
    assert line in str(caught.value)


@pytest.mark.parametrize("chosen", [(), ("ray",), ("ray", "aws"), ("gcp",)])
def test_a_file_takes_them_and_the_directory_of_a_run_keeps_them(chosen: tuple[str, ...]) -> None:
    table = fleet_table(pl.RayFleet(2, notices=chosen))
    assert ("notices" in table) == (chosen != ("ray",))  # an older version can read the rest
    fleet = read_fleet(dict(table))
    assert isinstance(fleet, pl.RayFleet)
    assert tuple(fleet.notices) == chosen
    assert repr(fleet) == repr(pl.RayFleet(2))  # a run may be resumed with others


def test_a_file_with_others_is_refused() -> None:
    with pytest.raises(pl.ConfigError, match=r"^fleet: notices: 'gpc' gives none: did you mean 'gcp'\?"):
        read_fleet({"kind": "ray", "workers": 2, "notices": ["gpc"]})
