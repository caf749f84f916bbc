"""Lightning's trainer is recorded in one line, under both names of the framework."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.integrations.lightning import RecorderCallback, _samples
from paceline.trace.recordings import WorkerRecording, read_recording

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore::pytorch_lightning.utilities.rank_zero.LightningDeprecationWarning"),
]


class Tiny(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.fails_at = fails_at

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if number == self.fails_at:
            raise RuntimeError("out of luck")
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.layer(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(directory: Path, module: Tiny | None = None, **options: Any) -> None:
    data = TensorDataset(torch.rand(24, 4), torch.randint(2, (24,)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, callbacks=[RecorderCallback(directory)], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, **options,
    )  # fmt: skip
    trainer.fit(module or Tiny(), DataLoader(data, batch_size=4))


def recorded(directory: Path) -> WorkerRecording:
    (one,) = read_recording(directory).workers
    return one


def test_steps_are_recorded(tmp_path: Path) -> None:
    fit(tmp_path / "job")
    one = recorded(tmp_path / "job")
    assert (one.steps, one.workers, one.last) == (12, 1, "closed")
    assert {update.samples for update in one.updates} == {4}
    assert not one.tells_waiting


def test_under_ddp_waiting_is_told_and_gradients_are_accumulated(tmp_path: Path) -> None:
    fit(tmp_path / "job", strategy="ddp", accumulate_grad_batches=2)
    one = recorded(tmp_path / "job")
    assert one.tells_waiting
    assert one.steps == 12
    assert [update.samples for update in one.updates] == [8] * 5


def test_what_was_recorded_before_an_error_is_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(tmp_path / "job", Tiny(fails_at=3))
    assert (recorded(tmp_path / "job").steps, recorded(tmp_path / "job").last) == (3, "closed")


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(3, 2), 3),
        ({"name": "x", "ids": torch.zeros(5)}, 5),
        ([("a", "b"), torch.zeros(2)], 2),
        (torch.zeros(()), None),
        ("text", None),
        ({}, None),
        (3, None),
    ],
)
def test_samples_of_any_batch(batch: object, samples: int | None) -> None:
    assert _samples(batch) == samples


OTHER_NAME = """
import sys, types
import pytorch_lightning
package = types.ModuleType("lightning")
package.pytorch = pytorch_lightning
sys.modules["lightning"], sys.modules["lightning.pytorch"] = package, pytorch_lightning
del sys.modules["pytorch_lightning"]
from paceline.integrations.lightning import RecorderCallback
assert RecorderCallback.__mro__[1] is pytorch_lightning.Callback
"""
MISSING = """
import sys
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = sys.modules["transformers"] = None
import paceline
for name in ("lightning", "huggingface"):
    try:
        getattr(paceline.integrations, name)
    except paceline.ConfigError as error:
        print(error)
"""


def test_the_other_name_of_the_framework_works() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", OTHER_NAME], check=True)


def test_a_missing_framework_is_named() -> None:
    result = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == [
        "paceline.integrations.lightning needs Lightning: pip install 'paceline[lightning]'",
        "paceline.integrations.huggingface needs transformers: pip install 'paceline[huggingface]'",
    ]


def test_frameworks_are_loaded_when_they_are_first_used() -> None:
    code = (
        "import paceline, sys; paceline.integrations; assert not {'transformers', 'pytorch_lightning'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'keras'"):
        _ = pl.integrations.keras
