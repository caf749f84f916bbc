"""An interrupted run of a campaign goes on from its last checkpoint, and comes to the same result file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from reproductions.datasets.cifar import Cifar10
from reproductions.ec_dnn import training as ec_training
from reproductions.ec_dnn.plan import FULL as EC
from reproductions.ec_dnn.training import Case
from reproductions.fine_pruning import training as pruning_training
from reproductions.fine_pruning.long import LONG
from reproductions.fine_pruning.training import Pictures
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.resuming import FILE, keep, kept

MEASURED = ("seconds", "overhead_seconds")  # of the processor: no two runs take the same
EC_SIZE = replace(EC.size, samples=64, steps=24, followed=8, tested=8)


def pictures(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec_training, "BATCH", 4)
    monkeypatch.setattr(ec_training, "cifar10", lambda *_, **__: Cifar10(pictures(64), pictures(8), pictures(8)))
    monkeypatch.setattr(pruning_training, "cifar10", lambda *_: Pictures(pictures(80), pictures(20)))


def result_file(module: ModuleType, settings: Any, place: Path) -> tuple[dict[str, Any], bytes]:
    """What a campaign writes, without what is measured; and the whole file."""
    Campaign(place / "results", place / "scratch").run(module.run_in_campaign, [settings], label="a run")
    (file,) = (place / "results").iterdir()
    content = json.loads(file.read_text())
    del content["made"], content["sum"]
    content["result"] = {name: value for name, value in content["result"].items() if name not in MEASURED}
    return content, file.read_bytes()


def interrupted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *, at: int) -> list[int]:
    """Let the evaluation of this number be interrupted; a list of those that there were."""
    seen: list[int] = []
    evaluate: Callable[..., Any] = module.evaluate

    def watched(*arguments: Any) -> Any:
        seen.append(len(seen))
        if len(seen) - 1 == at:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(module, "evaluate", watched)
    return seen


def check(module: ModuleType, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    whole, _ = result_file(module, settings, tmp_path / "whole")
    seen = interrupted(monkeypatch, module, at=at)
    with pytest.raises(KeyboardInterrupt):
        result_file(module, settings, tmp_path / "cut")
    assert [path.name for path in (tmp_path / "cut" / "scratch").glob(f"*/{FILE}")] == [FILE]
    seen.clear()
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as again:
        small.__wrapped__(again)  # type: ignore[attr-defined]
        seen = interrupted(again, module, at=-1)
        resumed, _ = result_file(module, settings, tmp_path / "cut")
    assert len(seen) <= len(whole["result"]["curve"]) + 2 - at  # two are of the last models, of EC-DNN
    assert resumed == whole


@pytest.mark.parametrize("arm", ["regular", "pruned", "soft"])
def test_fine_pruning(arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = replace(LONG.size, samples=80, epochs=20, batch=40, tested=20, last_epochs=1)
    check(pruning_training, replace(LONG, size=size).run("", arm, 0), tmp_path, monkeypatch, at=3)


@pytest.mark.parametrize(("method", "tau"), [("ma", 4), ("ec_m", 6), ("ec_r", 6)])
def test_ec_dnn(method: str, tau: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ec_training.Training("", "lenet", Case(method, 2, tau), 0.02, 0, EC_SIZE)
    check(ec_training, run, tmp_path, monkeypatch, at=3)


def test_a_damaged_checkpoint_is_not_used_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "run", {"tensor": torch.ones(3), "numbers": [1, 2]})
    found = kept(tmp_path / "run")
    assert found is not None
    assert found["numbers"] == [1, 2]
    (tmp_path / "run" / FILE).write_bytes(b"nothing")
    assert kept(tmp_path / "run") is None
    assert "the run begins anew" in capsys.readouterr().err
    assert kept(None) is None
    keep(None, {})
