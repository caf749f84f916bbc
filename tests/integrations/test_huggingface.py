"""Hugging Face's trainer is recorded in one line, and its models are trained by Paceline."""

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import paceline as pl
from paceline.integrations.huggingface import task_from
from paceline.trace.recordings import read_recording
from support.forks import all_well, ranks
from support.hugging_face import TinyModel, samples, train_recorded

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
]


def test_steps_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_recorded(str(tmp_path / "job"), str(tmp_path / "output"), num_train_epochs=1)
    (one,) = read_recording(tmp_path / "job").workers
    assert (one.steps, one.workers, one.last) == (12, 1, "closed")
    assert {update.samples for update in one.updates} == {4}
    assert not one.tells_waiting


def test_two_processes_are_two_workers_that_wait_for_each_other(tmp_path: Path) -> None:
    job, output = str(tmp_path / "job"), str(tmp_path / "output")
    all_well(ranks(2, lambda: train_recorded(job, output, gradient_accumulation_steps=2, num_train_epochs=2)))
    found = read_recording(tmp_path / "job")
    assert [one.worker for one in found.workers] == [0, 1]
    assert all(one.tells_waiting for one in found.workers)
    assert [one.steps for one in found.workers] == [6, 6]
    assert found.batch_size == 8


def model() -> TinyModel:
    torch.manual_seed(0)
    return TinyModel(transformers.PretrainedConfig())


def train(task: pl.Task, fleet: Any = None) -> pl.Run:
    return pl.train(
        task, strategy=pl.Synchronous(), fleet=fleet or pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), batch_size=4, stop=pl.Stop(updates=6),
        progress=False,
    )  # fmt: skip


def test_a_model_trains_on_its_own_loss() -> None:
    run = train(task_from(model(), samples(24), metrics={"root": lambda means: means["loss"] ** 0.5}))
    found = samples(24)
    inputs, labels = (
        torch.stack([each["inputs"] for each in found]),
        torch.tensor([each["labels"] for each in found]),
    )
    same = train(pl.Task(model().layer, torch.nn.functional.cross_entropy, (inputs, labels)))
    torch.testing.assert_close(run.model.state_dict()["layer.weight"], same.model.state_dict()["weight"])
    assert run.history[-1].metrics["root"] == pytest.approx(same.history[-1].loss ** 0.5)


def test_worker_processes_train_with_a_collator() -> None:
    task = task_from(model(), samples(24), collate=transformers.default_data_collator)
    assert train(task, pl.ProcessFleet(2, threads=1)).history[-1].updates == 6


def test_collators_may_return_any_mapping() -> None:
    def collate(samples: list[Any]) -> UserDict[str, Any]:
        return UserDict(transformers.default_data_collator(samples))

    assert train(task_from(model(), samples(24), collate=collate)).history[-1].updates == 6


@pytest.mark.parametrize(
    ("collate", "why"),
    [
        (lambda samples: {"inputs": torch.zeros(len(samples), 4), "labels": None}, "TinyModel returned no loss"),
        (lambda samples: 3, "the collator returned a int: a dictionary is needed"),
    ],
)
def test_batches_without_a_loss_are_refused(collate: Any, why: str) -> None:
    with pytest.raises(pl.ConfigError, match=why):
        train(task_from(model(), samples(24), collate=collate))


def test_only_models_of_hugging_face_are_taken() -> None:
    with pytest.raises(pl.ConfigError, match=r"PreTrainedModel\) is needed, not Linear"):
        task_from(torch.nn.Linear(2, 2), samples(8))
    with pytest.raises(pl.ConfigError, match="not the class TinyModel"):
        task_from(TinyModel, samples(8))
