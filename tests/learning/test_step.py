"""Tasks with ``step=``: rows of docs/models.md. The truth is a plain loop of torch over the same mini-batches."""

import collections
import dataclasses
import math
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.data.samples import to_device
from paceline.learning.curvature import curvature
from support.stepping import CASES, Case, by_hand, close, each, logging, mean, mlp, padded, sgd, simulated, table, texts
from support.stepping import trained as trained_on

REENTRANT = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's own


@REENTRANT
@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_trains_as_in_a_plain_loop(name: str, evaluation: str) -> None:
    """The run says whether mini-batches of workers were joined, and why not."""
    case = CASES[name]
    run, drawn = (found := trained_on(case, simulated(evaluation))).run, found.drawn
    assert run.problem is None
    assert run.evaluation is not None
    assert run.evaluation.startswith("exact: asked for" if evaluation == "exact" else case.evaluation)
    if run.evaluation != "fused" or not case.draws:  # a joined pass draws other numbers
        close(run.model, by_hand(case, drawn.draws), case.within)


@REENTRANT
@pytest.mark.parametrize("name", CASES)
def test_trains_on_processes_as_in_a_plain_loop(name: str) -> None:
    case = CASES[name]
    found = trained_on(case, pl.ProcessFleet(workers=2))
    assert found.run.problem is None
    close(found.run.model, by_hand(case, found.drawn.draws), case.within)


def test_a_step_trains_to_the_bits_of_a_loss() -> None:
    """Losses of samples, of plain tensors: on simulated workers, on processes, in blocks, and by models."""
    task = pl.Task(Case().made(), functional.cross_entropy, train=table())
    for strategy in (pl.Synchronous(), pl.LiveCompensation(quorum=2, blocks=3), pl.ModelAveraging(every=2)):
        for fleet in (simulated(), pl.ProcessFleet(workers=2)):
            own = trained_on(Case(), fleet, strategy=strategy).run
            other = trained_on(Case(), fleet, strategy=strategy, task=task).run
            for one, two in zip(own.model.parameters(), other.model.parameters(), strict=True):
                assert torch.equal(one, two)
            assert [row.loss for row in own.history] == pytest.approx([row.loss for row in other.history])


def test_mean_losses_of_blocks_are_weighed_by_samples() -> None:
    case, blocks = CASES["mean losses"], pl.LiveCompensation(quorum=2, blocks=3)
    for fleet in (simulated(), pl.ProcessFleet(workers=2)):
        found = trained_on(case, fleet, strategy=blocks)
        close(found.run.model, by_hand(case, found.drawn.draws), 1e-6)


class Fields(NamedTuple):
    x: Tensor
    y: Tensor


BATCHES: dict[str, Any] = {
    "list": ([{"x": x, "y": int(y)} for x, y in zip(*table(), strict=True)], None, lambda b: (b["x"], b["y"])),
    "tuple": (TensorDataset(*table()), None, lambda b: b),
    "named tuple": ([Fields(x, y) for x, y in zip(*table(), strict=True)], None, lambda b: (b.x, b.y)),
    "nested": (
        [{"in": [{"x": x}], "out": (y,)} for x, y in zip(*table(), strict=True)],
        None,
        lambda b: (b["in"][0]["x"], b["out"][0]),
    ),
    "collated pair of tensors": (
        table(),
        lambda items: {"all": items},
        lambda b: [torch.stack(t) for t in zip(*b["all"], strict=True)],
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_whatever_collating_makes(name: str) -> None:
    data, collate, pair = BATCHES[name]
    case = Case(step=lambda model, batch: each(model, pair(batch)), data=data, collate=collate)
    run = trained_on(case, simulated()).run
    expected = trained_on(Case(), simulated()).run
    for one, two in zip(run.model.parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


# Evaluation.


TRAINING = ["train/right", "train/half"]


def test_evaluation_averages_what_a_step_logs_and_the_metrics() -> None:
    """Over all test samples, in eval mode; batches of collated samples are as large as in training."""
    x, y = table()
    seen: list[tuple[int, bool]] = []

    def right(model: nn.Module, batch: Any) -> Tensor:
        seen.append((len(batch[1]), model.training))
        found: Tensor = (model(batch[0]).argmax(dim=1) == batch[1]).float()
        return found

    metrics = {
        "accuracy": right,
        "mean accuracy": lambda model, batch: right(model, batch).mean(),
        "perplexity": lambda means: math.exp(means["loss"]),
    }
    task = Case(step=logging).task(test=TensorDataset(x[:20], y[:20]), metrics=metrics)
    run = trained_on(Case(), simulated(), task=task).run
    outputs = run.model.eval()(x[:20]).detach()
    loss = float(functional.cross_entropy(outputs, y[:20]))
    accuracy = float((outputs.argmax(dim=1) == y[:20]).float().mean())
    found = run.history[-1].metrics
    assert [*found] == ["loss", "right", "half", "accuracy", "mean accuracy", "perplexity", *TRAINING]
    assert (found["loss"], found["perplexity"]) == pytest.approx((loss, math.exp(loss)), rel=1e-5)
    for name in ("right", "accuracy", "mean accuracy"):
        assert found[name] == pytest.approx(accuracy)
    assert (run.history[-1].accuracy, found["half"]) == (found["accuracy"], 0.5)
    assert {size for size, _ in seen} == {6, 2}
    assert not any(training for _, training in seen)


def test_metrics_of_a_task_with_a_loss_and_from_one_function() -> None:
    x, y = table()
    task = pl.Task(mlp(), functional.cross_entropy, train=(x, y), metrics=lambda model, batch: {"size": len(batch[1])})
    assert task.evaluator()(task.model)["size"] == 64
    assert [*task.evaluator()(task.model)] == ["loss", "accuracy", "size"]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (3, "metrics=3 is no function"),
        ({"a": 3}, "metrics['a'] is 3: give a function"),
        (lambda model, batch: 3, "metrics returned 3: let it return a mapping"),
        (lambda model, batch: {"a": "b"}, "metrics returned a='b' for a batch of 64 samples"),
        ({"a": lambda means: means["b"]}, "metrics['a'] asks for the average 'b': there are loss"),
    ],
)
def test_metrics_that_are_none_are_refused(metrics: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        (task := Case().task(metrics=metrics)).evaluator()(task.model)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="no effect beside evaluate="):
        Case().task(metrics=lambda model, batch: {}, evaluate=lambda model: {})


# What is refused, before anything is trained.


def nothing(model: nn.Module, batch: Any) -> None:
    model(batch[0])


BAD_STEPS: dict[str, tuple[Any, str]] = {
    "no loss": (nothing, "step returned None"),
    "a number": (lambda model, batch: 3.0, "step returned a float, not a tensor"),
    "no name": (lambda model, batch: {"Loss": mean(model, batch)}, "a mapping without 'loss' (it has 'Loss')"),
    "no tensor": (lambda model, batch: {"loss": 3.0}, "whose 'loss' is 3.0, not a tensor"),
    "of words": (lambda model, batch: each(model, batch)[:3], "a loss of shape [3] for a batch of 6 samples"),
    "not finite": (lambda model, batch: mean(model, batch) / 0, "a loss of inf on the first 6 training samples"),
    "detached": (lambda model, batch: mean(model, batch).detach(), "depends on no trained parameter"),
    "raises": (lambda model, batch: batch["tokens"], "step or the data set raised TypeError on the first 6"),
}


@pytest.mark.parametrize("fleet", [simulated(), pl.ProcessFleet(workers=2)])
@pytest.mark.parametrize("name", BAD_STEPS)
def test_steps_without_a_loss_are_refused(name: str, fleet: Any) -> None:
    step, said = BAD_STEPS[name]
    with pytest.raises(ConfigError) as error:
        trained_on(Case(step=step), fleet)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_samples_that_cannot_be_collated_are_named() -> None:
    ragged = [{"tokens": torch.arange(3)}] * 4 + [{"tokens": torch.arange(5)}] * 60
    with pytest.raises(ConfigError) as error:
        trained_on(Case(data=ragged), simulated())
    assert "sample 4 with sample 0 cannot be put into a batch by default_collate" in str(error.value)
    assert "give Task a collate= function" in str(error.value)
    with pytest.raises(ConfigError, match=r"by padded .KeyError: 'label'.: correct Task's collate= function"):
        trained_on(Case(data=ragged, collate=padded), simulated())


def test_other_arguments_that_are_none_are_refused() -> None:
    for given, said in (
        ({}, "either loss= or step=, not neither"),
        ({"loss": functional.cross_entropy, "step": mean}, "not both"),
        ({"step": 3}, "step must be a function, not int"),
        ({"step": mean, "collate": 3}, "collate must be a function"),
        ({"step": mean, "train": None}, "train= is missing"),
        ({"step": mean, "train": (*table(), table()[1])}, "data of 3 tensors or arrays are no pair"),
        ({"step": mean, "train": {"x": table()[0]}}, "a map-style dataset, not dict"),
    ):
        with pytest.raises(ConfigError) as error:
            pl.Task(mlp(), **{"train": table(), **given}).training_samples()  # type: ignore[arg-type]
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_a_step_that_refers_to_the_task_s_own_model_is_refused() -> None:
    model = mlp()
    with pytest.raises(ConfigError, match=r"the step refers to the task's own model .* Use the model that step is"):
        trained_on(Case(), simulated(), task=pl.Task(model, step=lambda _, batch: mean(model, batch), train=table()))


def test_ensembles_need_outputs_and_fine_pruning_the_losses_of_samples() -> None:
    with pytest.raises(ConfigError, match="EnsembleCompression cannot train a task with step="):
        trained_on(Case(), simulated(), strategy=pl.EnsembleCompression(every=2, steps=4))
    pruning = pl.FinePruning(samples=64, window=4, start=1, block=2, count=1, fraction=0.25)
    with pytest.raises(ConfigError, match="chooses samples by their losses, and step returns one loss for a batch"):
        pl.train(
            Case(step=mean).task(), strategy=pl.Synchronous(), fleet=simulated(), optimizer=sgd, batch_size=6,
            sampling=pruning, stop=pl.Stop(updates=2), progress=False,
        )  # fmt: skip


def test_classes_of_other_samples_have_to_be_listed() -> None:
    with pytest.raises(ConfigError, match="needs the class of each sample"):
        trained_on(CASES["padded text in dicts"], simulated(), partition=pl.Pathological(1))

    class Listed(list[Any]):
        targets = tuple(sample["label"] for sample in texts())

    case = CASES["padded text in dicts"]._replace(data=Listed(texts()))
    run = trained_on(case, simulated(), partition=pl.Pathological(1)).run
    assert run.problem is None


@dataclasses.dataclass(frozen=True)
class Pair:
    x: Tensor
    y: Tensor
    name: str = "both"


def as_pair(items: list[Any]) -> Pair:
    x, y = (torch.stack(part) for part in zip(*items, strict=True))
    return Pair(x, y)


def as_encoding(items: list[Any]) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding({"x": as_pair(items).x, "y": as_pair(items).y})


@pytest.mark.parametrize("collate", [as_pair, as_encoding])
def test_objects_in_batches_keep_their_kind(collate: Any) -> None:
    """A frozen dataclass with a text in it, which is not joined; a mapping of another package, which is."""
    if collate is as_encoding:
        pytest.importorskip("transformers")
    kinds: set[str] = set()

    def step(model: nn.Module, batch: Any) -> Tensor:
        kinds.add(type(batch).__name__)
        return each(model, (batch.x, batch.y))

    run = trained_on(Case(step=step, collate=collate), simulated()).run
    assert kinds == {"Pair" if collate is as_pair else "BatchEncoding"}
    assert (run.evaluation == "fused") == (collate is as_encoding)
    for one, two in zip(run.model.parameters(), trained_on(Case(), simulated()).run.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def test_what_is_moved_to_a_device() -> None:
    """A device that holds no values is enough to see it."""

    class Own:
        def to(self, device: torch.device) -> torch.device:
            return device

    x, meta = torch.ones(2), torch.device("meta")
    batch = {"nested": [Fields(x, x)], "data": Pair(x, x), "own": Own(), "text": "a", "set": {1}, "none": None}
    moved = to_device(collections.UserDict(batch), meta)
    assert isinstance(moved, collections.UserDict)
    assert isinstance(moved["nested"][0], Fields)
    assert {t.device for t in (*moved["nested"][0], moved["data"].x, moved["data"].y)} == {meta}
    assert (moved["own"], moved["text"], moved["set"], moved["none"]) == (meta, "a", {1}, None)
    assert batch["data"].x is x  # type: ignore[attr-defined]
    assert to_device(types.MappingProxyType({"x": x}), meta)["x"].device == meta


def test_a_collate_that_draws_gives_each_worker_its_own_numbers() -> None:
    """So that joined passes have the batches that the workers have alone."""

    def noisy(items: list[Any]) -> tuple[Tensor, Tensor]:
        x, y = (torch.stack(part) for part in zip(*items, strict=True))
        return x + torch.rand(len(x), 1), y

    case = Case(collate=noisy)
    fused, exact = (trained_on(case, simulated(how)).run for how in ("fused", "exact"))
    assert fused.evaluation == "fused"
    close(fused.model, exact.model, 1e-6)
    close(exact.model, trained_on(case, pl.ProcessFleet(workers=2)).run.model, 1e-6)


def test_losses_of_samples_that_influence_each_other_are_not_joined() -> None:
    def centred(model: nn.Module, batch: Any) -> Tensor:
        outputs = model(batch[0])
        return functional.cross_entropy(outputs - outputs.mean(0), batch[1], reduction="none")

    found = trained_on(Case(step=centred), simulated())
    assert found.run.evaluation == "exact: the samples of a batch influence each other"
    close(found.run.model, by_hand(Case(step=centred), found.drawn.draws), 1e-6)


def test_fine_pruning_sees_the_losses_of_a_step() -> None:
    def pruned(task: pl.Task) -> Any:
        return pl.train(
            task, strategy=pl.Synchronous(), fleet=simulated(), optimizer=sgd, batch_size=4, progress=False,
            sampling=pl.FinePruning(samples=64, window=4, start=2, block=1, count=1, fraction=0.25),
            stop=pl.Stop(epochs=4), directory=None,
        ).pruning  # fmt: skip

    own, other = pruned(Case().task()), pruned(pl.Task(Case().made(), functional.cross_entropy, train=table()))
    assert own.times_pruned.sum() > 0
    assert (own.times_pruned == other.times_pruned).all()


def test_a_pruned_run_of_dicts_and_a_run_of_models_are_kept(tmp_path: Path) -> None:
    """Neither inputs of pruned samples nor an architecture can be saved, for only the step knows what is in a batch."""
    case = CASES["padded text in dicts"]
    asked: dict[str, dict[str, Any]] = {
        "pruned": {"sampling": pl.RandomPruning(samples=64, window=4, start=1, block=1, count=1, fraction=0.25)},
        "models": {"strategy": pl.ModelAveraging(every=2)},
    }
    for name, changed in asked.items():
        run = trained_on(
            case, simulated(), batch_size=4, directory=tmp_path / name, stop=pl.Stop(epochs=3), **changed
        ).run
        assert run.problem is None
        loaded = pl.load(tmp_path / name, model=case.made())
        for one, two in zip(loaded.parameters(), run.model.parameters(), strict=True):
            assert torch.equal(one, two)


def test_weights_of_a_compiled_model_fit_the_plain_one(tmp_path: Path) -> None:
    plain, case = Case(), CASES["torch.compile"]
    run = trained_on(case, simulated(), directory=tmp_path / "compiled").run
    trained_on(plain, simulated(), directory=tmp_path / "plain")
    for place in ("compiled", "plain"):
        for model in (plain.made(), case.made()):
            loaded = pl.load(tmp_path / place, model=model)
            for one, two in zip(loaded.parameters(), run.model.parameters(), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


def test_the_curvature_of_a_step() -> None:
    task = pl.Task(Case().made(), functional.cross_entropy, train=table())
    for case in (Case(), CASES["mean losses"]):
        assert curvature(case.task()).value == pytest.approx(curvature(task).value, rel=1e-4)
