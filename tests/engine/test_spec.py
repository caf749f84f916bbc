"""One value for a run: what train, replay and profile share."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.engine.replay import replay, replay_spec
from paceline.engine.setup import set_up
from paceline.engine.spec import RunSpec
from paceline.engine.train import Output, run_spec, train
from paceline.prediction.profile import profile
from paceline.storage.reading import read_run
from support import golden
from support.digits import weights


def lines_without_docstring(function: Callable[..., Any]) -> int:
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    assert tree.end_lineno is not None
    docstring = tree.body[0]
    assert docstring.end_lineno is not None
    assert ast.get_docstring(tree)
    return tree.end_lineno - (docstring.end_lineno - docstring.lineno + 1)


@pytest.mark.parametrize("function", [train, replay, profile, run_spec, replay_spec, set_up])
def test_a_run_is_begun_in_at_most_40_lines(function: Callable[..., Any]) -> None:
    assert lines_without_docstring(inspect.unwrap(function)) <= 40


def test_every_argument_of_train_is_a_field_of_the_spec_or_of_the_output() -> None:
    arguments = {*inspect.signature(train).parameters} - {"task"}
    spec, output = ({field.name for field in fields(kind)} for kind in (RunSpec, Output))
    assert not spec & output
    assert spec | output == arguments | {"training_samples"}


def spec_of(**changed: Any) -> RunSpec:
    chosen: dict[str, Any] = {"strategy": "lgc:quorum=2,blocks=4", "fleet": golden.simulated(), "optimizer": golden.sgd}
    return RunSpec.of(golden.exact_task(), **{**chosen, "stop": pl.Stop(updates=6), "batch_size": 4, **changed})


def test_a_spec_is_one_frozen_value() -> None:
    assert spec_of() == spec_of() != spec_of(seed=1)
    assert spec_of().strategy == pl.LiveCompensation(2, blocks=4)
    assert spec_of().training_samples == golden.SAMPLES
    with pytest.raises(FrozenInstanceError):
        spec_of().seed = 3  # type: ignore[misc]


def test_train_does_what_its_spec_says_and_replay_too(tmp_path: Path) -> None:
    spec, task = spec_of(), golden.exact_task()
    run = run_spec(task, spec, Output(tmp_path / "run", progress=False))
    again = pl.train(
        task, strategy=spec.strategy, fleet=spec.fleet, optimizer=spec.optimizer, stop=spec.stop, batch_size=4
    )
    assert weights(run.model).tolist() == weights(again.model).tolist()
    assert replay_spec(read_run(tmp_path / "run"), task, spec).same
    with pytest.raises(pl.ConfigError, match=r"cannot replay .*: the run was begun with strategy\.quorum = 2, not 3"):
        replay_spec(read_run(tmp_path / "run"), task, spec_of(strategy=pl.LiveCompensation(3, blocks=4)))


@pytest.mark.parametrize(
    ("wanted", "said"), [({"resume": True}, "resume=True"), ({"tensorboard": True}, "tensorboard")]
)
def test_what_is_written_needs_a_directory(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(pl.ConfigError, match=f"{said}.* needs a directory"):
        Output(**wanted)


def test_the_former_name_of_what_was_left_out_warns() -> None:
    run = run_spec(golden.exact_task(), spec_of(), Output(progress=False))
    with pytest.warns(DeprecationWarning, match=r"Run\.spoiled is now Run\.non_finite"):
        assert run.spoiled is run.non_finite
