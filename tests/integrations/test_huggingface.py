"""Hugging Face's trainer is recorded in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.trace.recordings import read_recording
from support import hugging_face

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
]


def test_steps_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hugging_face.train(str(tmp_path / "job"), str(tmp_path / "output"), num_train_epochs=1)
    (one,) = read_recording(tmp_path / "job").workers
    assert (one.steps, one.workers, one.last) == (12, 1, "closed")
    assert {update.samples for update in one.updates} == {4}
    assert not one.tells_waiting


@pytest.mark.timeout(300)
def test_two_processes_are_two_workers_that_wait_for_each_other(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = [str(hugging_face.__file__), str(tmp_path / "job")]
    result = subprocess.run([sys.executable, *command, *script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = read_recording(tmp_path / "job")
    assert [one.worker for one in found.workers] == [0, 1]
    assert all(one.tells_waiting for one in found.workers)
    assert [one.steps for one in found.workers] == [6, 6]
    assert found.batch_size == 8
