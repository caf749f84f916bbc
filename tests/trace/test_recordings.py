"""Recordings of other loops are read as the trace of a synchronous run, and refused with the culprit named."""

import json
import os
from pathlib import Path

import pytest

import paceline as pl
from paceline.core.messages import Arrived, Step
from paceline.prediction.what_if import Survey, recorded_fleet, what_if
from paceline.reports.stragglers import stragglers
from paceline.storage.reading import read_run
from paceline.trace.measure import measure
from paceline.trace.recordings import read_recording
from support.recordings import steps_of, write_job, write_worker

FAST, SLOW = [0.1, 0.1, 0.12, 0.1], [0.4, 0.4, 0.4, 0.5]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", [FAST, SLOW, FAST])


def test_a_recording_is_the_trace_of_a_synchronous_run(job: Path) -> None:
    trace = pl.read_trace(job)
    assert [type(fact).__name__ for fact in trace][3:14] == [
        "Start", "Start", "Start", "Computed", "Arrived", "Computed", "Arrived", "Computed", "Arrived", "Step", "Start",
    ]  # fmt: skip
    found = measure(trace)
    assert found.updates == 3  # the first is left out
    assert found.seconds == pytest.approx(0.4 + 0.4 + 0.5 + 3 * 0.01)
    assert [worker.waited_for for worker in found.workers] == [0, 3, 0]
    assert found.workers[0].idle == pytest.approx(0.3 + 0.28 + 0.4)
    assert found.workers[1].idle == 0
    assert {weight for fact in trace if isinstance(fact, Step) for weight in map(str, fact.weights.values())} == {"1/3"}
    assert list(Survey(trace).durations[0].seconds) == pytest.approx([0.11, 0.13, 0.11])
    assert pl.delays.Empirical.from_trace(trace, 1).median == pytest.approx(0.41)


def test_the_table_names_the_slow_worker_and_tells_computing_from_messages(job: Path) -> None:
    found = stragglers(pl.read_trace(job))
    slow = max(found.workers, key=lambda each: each.ratio)
    assert slow.worker == 1
    assert slow.straggling == 1.0
    assert slow.compute == pytest.approx(0.4)
    assert slow.transfer == pytest.approx(0.01)
    assert found.groups == ((0, 2), (1,))
    assert found.notes == ("The first step of each worker, in which caches are filled, is left out.",)


def test_a_what_if_uses_what_each_worker_took(job: Path) -> None:
    survey = Survey(pl.read_trace(job))
    assert recorded_fleet(survey).medians == pytest.approx((0.11, 0.41, 0.11))
    again, alone = what_if(survey, {"ssgd": pl.Synchronous(), "asgd": pl.Asynchronous()})
    assert again.measures.updates == 3
    assert alone.measures.updates > 20


def test_the_directory_is_read_as_a_run(job: Path) -> None:
    saved = read_run(job)
    assert (saved.strategy, saved.ended, saved.rows) == ("Synchronous()", "recorded", ())
    assert saved.config["batch_size"] == 32
    assert saved.config["recording"] == 3


def test_steps_without_an_exchange_belong_to_the_next_one(tmp_path: Path) -> None:
    """Gradient accumulation: three mini-batches of 8 samples, then the all-reduce."""
    steps = []
    for number in range(6):
        began = number * 0.1
        exchanged = number % 3 == 2
        steps.append((began, began + 0.09, 8, 0.02 if exchanged else None, began + 0.08 if exchanged else None))
    write_worker(tmp_path, 0, [*steps, (0.6, 0.65, 8, None, None)])
    found = read_recording(tmp_path)
    assert found.count == 1
    assert found.batch_size == 24
    assert found.workers[0].updates[0].compute == pytest.approx(0.3 - 0.02)


def test_sizes_of_mini_batches_are_kept_where_they_differ(tmp_path: Path) -> None:
    for worker, size in enumerate((48, 16)):
        steps = [(began, ended, size, *told) for began, ended, _, *told in steps_of([0.3] * 4, [0.3] * 4)]
        write_worker(tmp_path, worker, steps)  # type: ignore[arg-type]
    trace = pl.read_trace(tmp_path)
    assert {str(weight) for fact in trace if isinstance(fact, Step) for weight in fact.weights.values()} == {
        "3/4",
        "1/4",
    }
    assert list(Survey(trace).durations[0].samples) == [48, 48, 48]
    assert "batch_size" not in read_run(tmp_path).config
    (found,) = what_if(Survey(trace), {"unequal": pl.UnequalBatches(pl.Synchronous(), total=64)})
    assert found.measures.updates >= 2


def test_loops_that_do_not_tell_waiting_are_said_to(tmp_path: Path) -> None:
    slowest = [0.4] * 4
    for worker in range(2):
        told = steps_of([0.1] * 4, slowest)
        write_worker(tmp_path, worker, [(began, ended, 32, None, None) for began, ended, *_ in told])
    found = stragglers(pl.read_trace(tmp_path))
    assert [each.round_trip for each in found.workers] == pytest.approx([0.41, 0.41])
    assert [each.compute for each in found.workers] == [None, None]
    assert found.notes[0].startswith("Computing and waiting of all workers were not told apart")
    assert "what-if shows no gain" in found.notes[0]
    write_worker(tmp_path, 0, steps_of([0.1] * 4, slowest))
    notes = read_recording(tmp_path).notes
    assert notes[0].startswith("Computing and waiting of worker 1 were not told apart")


def test_a_killed_worker_is_read_as_far_as_it_came(job: Path) -> None:
    file = job / "worker-2.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:20])
    found = read_recording(job)
    assert found.count == 1
    assert found.notes[0] == "Worker 0 recorded 2 updates more than others did: left out."
    assert "Worker 2 did not close its recorder: it was killed, and its last steps may be missing." in found.notes
    assert sum(isinstance(fact, Arrived) for fact in pl.read_trace(job)) == 3


def test_a_recorder_left_open_is_named(job: Path) -> None:
    write_worker(job, 0, steps_of(FAST, SLOW), workers=3, last="left open")
    assert "Worker 0 left its recorder open until its process ended." in read_recording(job).notes


def test_several_machines_are_put_on_one_clock(tmp_path: Path) -> None:
    slowest = [0.4 + 0.01 * (number % 3) for number in range(50)]
    write_worker(tmp_path, 0, steps_of([0.1] * 50, slowest), host="a", clock="a")
    for worker in (1, 2):
        late = steps_of(slowest, slowest, after=3.0)
        write_worker(tmp_path, worker, late, host="b", clock="b", opened=9000.0, wall=1000.0 - 3.0 + 0.25)
    (note,) = [note for note in read_recording(tmp_path).notes if "clock" in note]
    assert note == (
        "The clock of b (worker 1, 2) is 250 ms ahead of that of a (worker 0), give or take 10 ms: from the ends of 49 "
        "exchanges. Durations do not depend on it."
    )
    assert measure(pl.read_trace(tmp_path)).seconds == pytest.approx(sum(slowest[1:]) + 49 * 0.01)


def test_workers_that_are_out_of_step_are_said_to_be(job: Path) -> None:
    write_worker(job, 2, steps_of(FAST, SLOW), workers=3, opened=5.5)
    notes = [note for note in read_recording(job).notes if note.startswith("Steps of worker 2 end 0.5 s after")]
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "it is empty: its process was killed before a step"),
        ([{"workers": 4}], "is no recording of a worker: it begins with"),
        ([[1, 2]], "is no recording of a worker"),
        ([{"paceline_recording": 2}], "has format 2; this version reads 1"),
        ([{"worker": -1}], "is no recording of a worker"),
        ([{"worker": 5, "workers": 3}], "is no recording of a worker"),
        ([{"host": 3}], "is no recording of a worker"),
        ([{}, [0.2, 0.1, 1, None, None]], "line 2 of .* cannot be understood: .*a step begins before it ends"),
        ([{}, [0.0, 0.1, -1, None, None]], "-1 is no count"),
        ([{}, [0.0, 0.1, 1, -0.1, None]], "nobody waits for less than no time"),
        ([{}, [0.0, 0.1, 1, None]], "line 2 of .* cannot be understood"),
        ([{}, [0.0, 0.2, 1, None, None], [0.1, 0.3, 1, None, None]], "a step begins 0.1 s before the last one ended"),
        ([{}, ["closed"], [0.0, 0.1, 1, None, None]], "more follows the last line"),
        ([{}, ["closed"]], "worker 2 recorded no step"),
    ],
)
def test_a_broken_file_is_refused_by_its_name(job: Path, lines: list[object], why: str) -> None:
    header = json.loads((job / "worker-2.jsonl").read_text().splitlines()[0])
    if len(lines) > 1 or (lines and isinstance(lines[0], dict) and lines[0].keys() != {"workers"}):
        lines = [header | dict(lines[0]), *lines[1:]]  # type: ignore[call-overload]
    (job / "worker-2.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(pl.ConfigError, match=why) as refused:
        pl.read_trace(job)
    assert "worker-2.jsonl" in str(refused.value)


def test_a_torn_line_is_allowed_at_the_end_only(job: Path) -> None:
    file = job / "worker-0.jsonl"
    file.write_text(file.read_text().replace("]\n[", "\n[", 1))
    with pytest.raises(pl.ConfigError, match=r"line 2 of .*worker-0.jsonl cannot be understood"):
        pl.read_trace(job)


def test_a_missing_worker_is_named(job: Path) -> None:
    os.remove(job / "worker-1.jsonl")
    with pytest.raises(pl.ConfigError, match=r"lacks the recording of worker 1 of 3: copy worker-1.jsonl there"):
        pl.read_trace(job)
    os.remove(job / "worker-0.jsonl")
    with pytest.raises(pl.ConfigError, match="lacks the recording of worker 0 and 1 more of 3"):
        pl.read_trace(job)


def test_two_files_of_one_worker_and_of_different_jobs_are_named(job: Path) -> None:
    os.rename(job / "worker-1.jsonl", job / "worker-9.jsonl")
    write_worker(job, 1, steps_of(FAST, SLOW), workers=3)
    with pytest.raises(pl.ConfigError, match=r"worker-1.jsonl and .*worker-9.jsonl are both of worker 1"):
        pl.read_trace(job)
    os.remove(job / "worker-9.jsonl")
    write_worker(job, 1, steps_of(FAST, SLOW), workers=4)
    with pytest.raises(pl.ConfigError, match=r"different jobs: worker-0.jsonl is of 3 workers, worker-1.jsonl of 4"):
        pl.read_trace(job)


def test_a_link_is_not_followed(job: Path) -> None:
    os.rename(job / "worker-1.jsonl", job / "elsewhere")
    os.symlink(job / "elsewhere", job / "worker-1.jsonl")
    with pytest.raises(pl.ConfigError, match=r"worker-1.jsonl is a symbolic link"):
        pl.read_trace(job)


def test_a_directory_without_recordings_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match=r"holds no recording: paceline.record writes one"):
        read_recording(tmp_path)
    with pytest.raises(pl.ConfigError, match="no trace at"):
        pl.read_trace(tmp_path)
