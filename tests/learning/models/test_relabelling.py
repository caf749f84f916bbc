"""Labels by the outputs of several models: which samples, in which mode, and by whose coefficients."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.partition import Indices, deal
from paceline.data.samples import TensorSamples, samples
from paceline.engine.build import launch
from paceline.engine.loop import Loop
from paceline.fleets.simulated.fleet import SimulatedWorkers
from paceline.learning.models.compression import Ensembling
from paceline.learning.models.ensemble import PASSED_AT_ONCE, NormalEquations, Weighing, as_distribution, relabel
from paceline.learning.models.server import ModelServer
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import workload_of
from paceline.randomness import stream
from paceline.trace.writing import TraceWriter

N = 2 * PASSED_AT_ONCE + 7
FIRST = PASSED_AT_ONCE + PASSED_AT_ONCE // 2  # samples of the first part
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
PARTS: Sequence[Indices] = [np.arange(0, FIRST), np.arange(FIRST, N), np.empty(0, dtype=np.int64)]


class Watched(nn.Module):
    """Takes note of the sizes of its passes, and whether gradients or training were on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = nn.Linear(5, 3)
        self.drop = nn.Dropout(0.5)
        self.passes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        assert torch.is_inference_mode_enabled()
        assert not self.training
        self.passes.append(len(inputs))
        outputs: Tensor = self.layer(self.drop(inputs))
        return outputs


def models(count: int = 3) -> list[Watched]:
    return [Watched(seed) for seed in range(count)]


def probabilities(model: Watched, part: Indices) -> Tensor:
    return torch.softmax(model.layer(X[torch.from_numpy(part)]), dim=1).detach()


@pytest.mark.parametrize("rule", ["simple", "margin", "regression"])
def test_every_model_sees_every_chosen_sample_once_in_large_passes(rule: str) -> None:
    found = models()
    labels = relabel(found, TensorSamples(X, Y), PARTS, Weighing(rule)).labels
    rest = [FIRST - PASSED_AT_ONCE, N - FIRST]
    for model in found:
        assert model.passes == [PASSED_AT_ONCE, rest[0], rest[1]]
        assert model.training  # as it was before
    assert [len(each) for each in labels] == [len(part) for part in PARTS]
    for each in labels[:2]:
        torch.testing.assert_close(each.sum(dim=1), torch.ones(len(each)))


def test_simple_labels_are_the_mean_of_the_outputs() -> None:
    found = models()
    labels = relabel(found, TensorSamples(X, Y), PARTS, Weighing()).labels
    expected = torch.stack([probabilities(model, PARTS[1]) for model in found]).mean(dim=0)
    torch.testing.assert_close(labels[1], expected)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("non_negative", [False, True])
def test_regression_labels_are_weighed_by_the_own_or_the_pooled_coefficients(pooled: bool, non_negative: bool) -> None:
    found = models()
    result = relabel(found, TensorSamples(X, Y), PARTS, Weighing("regression", pooled, non_negative))
    own, whole = [], NormalEquations(3)
    for part in PARTS[:2]:
        outputs = torch.stack([probabilities(model, part) for model in found])
        own.append(fit := NormalEquations(3))
        fit.add(outputs, Y[torch.from_numpy(part)])
        whole.join(fit)
    assert result.coefficients is not None
    torch.testing.assert_close(result.coefficients, whole.solve(non_negative=non_negative), rtol=1e-4, atol=1e-5)
    for number, part in enumerate(PARTS[:2]):
        coefficients = (whole if pooled else own[number]).solve(non_negative=non_negative).float()
        outputs = torch.stack([probabilities(model, part) for model in found])
        expected = as_distribution(torch.einsum("k,knc->nc", coefficients, outputs))
        torch.testing.assert_close(result.labels[number], expected, rtol=1e-4, atol=1e-5)


def test_models_that_disagree_about_the_classes_are_refused() -> None:
    disagreeing = [nn.Linear(5, 3), nn.Linear(5, 4)]
    with pytest.raises(pl.ConfigError, match=r"models with the same classes, not \[3, 4\]"):
        relabel(disagreeing, TensorSamples(X, Y), PARTS, Weighing())


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (nn.Linear(5, 1), torch.zeros(N)),
        (nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), Y),
        (nn.Linear(5, 3), torch.zeros(N, 3)),
    ],
    ids=["a regression", "one output", "soft targets"],
)
def test_a_model_without_classes_is_refused_before_anything_is_trained(model: nn.Module, targets: Tensor) -> None:
    task = pl.Task(model, nn.functional.mse_loss, train=(X, targets))
    with pytest.raises(pl.ConfigError, match="one output a class, and class numbers as labels"):
        pl.train(
            task,
            strategy=pl.FinalEnsemble(5),
            fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2),
            optimizer=lambda parameters: torch.optim.SGD(parameters or [torch.zeros(1)], lr=0.1),
        )


class Augmented:
    """Training samples that are seen with a large offset; their unaugmented selves are plain."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + 1000, Y[index]


def test_labels_are_of_the_unaugmented_samples() -> None:
    seen: list[float] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(float(inputs.abs().max()) if torch.is_inference_mode_enabled() else -1.0)
            outputs: Tensor = self.layer(inputs)
            return outputs

    task = pl.Task(Model(), cross_entropy, train=Augmented(), test=(X[:9], Y[:9]), unaugmented=(X[:64], Y[:64]))
    pl.train(
        task,
        strategy=pl.EnsembleCompression(every=4, compression_steps=1, steps=8),
        fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
        batch_size=8,
    )
    assert 0 < max(seen) < 100
    with pytest.raises(pl.ConfigError, match="9 unaugmented samples for 64 training samples"):
        pl.Task(Model(), cross_entropy, train=Augmented(), unaugmented=(X[:9], Y[:9])).unaugmented_samples()
    assert len(samples(Augmented())) == 64


def ensembling(rule: str, updates: int, *, compression_steps: int = 1) -> tuple[Ensembling, SimulatedWorkers]:
    """After so many updates of two workers with 32 samples each: four steps a round, one of which distils."""
    task = pl.Task(Counted(), cross_entropy, train=(X[:64], Y[:64]))
    strategy = pl.EnsembleCompression(every=4, weights=rule, compression_steps=compression_steps, steps=400)  # type: ignore[arg-type]
    shards = deal(pl.Equal(), task.training_samples(), 2, 8, stream(0, "partition"))
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2)
    recipe = Recipe(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    workers, server = launch(
        strategy, fleet, workload_of(task, shards, 8), recipe, batches=pl.Shuffled().open(shards, 8, 0), seed=0
    )
    assert isinstance(server, ModelServer)
    assert isinstance(workers, SimulatedWorkers)
    assert isinstance(server.aggregation, Ensembling)
    for update in Loop(strategy, workers, server, TraceWriter(None, workers.about)):
        if update.version == updates - 1:
            break
    return server.aggregation, workers


class Counted(nn.Module):
    """Takes note of how many samples pass without gradients."""

    passed = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            Counted.passed += len(inputs)
        outputs: Tensor = self.layer(inputs)
        return outputs


def passed(rule: str, updates: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """How many samples passed without gradients, and the charge for it."""
    monkeypatch.setattr(Counted, "passed", 0)
    _, workers = ensembling(rule, updates)
    return Counted.passed, workers.costs.relabelling


@pytest.mark.parametrize("rule", ["simple", "margin"])
def test_only_samples_of_the_next_mini_batches_are_labelled_and_all_chosen_ones_are_charged(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 of a worker's 32 samples are chosen; the step that distils has 8 of 32, the three others have 24."""
    charge = 2 * 2 * 22 / 8 / 3  # of both workers: 22 samples through two models, a third of a mini-batch each
    first, second, third = (passed(rule, updates, monkeypatch) for updates in (1, 2, 3))
    assert first == (1, 0)  # the sample by which tasks without classes are refused
    assert 1 < second[0] < 1 + 2 * 2 * 8
    assert second[0] < third[0] < second[0] + 2 * 2 * 22
    assert (second[1], third[1]) == pytest.approx((charge, 2 * charge))


def test_a_regression_is_fitted_on_all_chosen_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passed("regression", 1, monkeypatch)[0] == 1 + 2 * 2 * 22


@pytest.mark.parametrize("rule", ["simple", "regression"])
@pytest.mark.parametrize(("compression_steps", "updates"), [(1, 1), (1, 2), (0, 1)])
def test_an_older_checkpoint_tells_what_comes_next(rule: str, compression_steps: int, updates: int) -> None:
    """It had labels for all chosen samples, and those of the other kind from the round before."""
    found, _ = ensembling(rule, updates, compression_steps=compression_steps)
    state = dict(found.state())
    asked = state.pop("asked")
    everything = [[each, torch.ones(len(each), 3) / 3] for each in state["chosen"]]
    old = {**state, "soft": [*state["soft"], *everything], "labels": state["labels"], "centres": []}
    places = [len(state["soft"]), len(state["soft"]) + 1]
    if asked:
        old[asked] = places
    again, _ = ensembling(rule, updates, compression_steps=compression_steps)
    again.restore(old)
    assert again.state()["asked"] == asked
    assert (
        asked
        == {(1, 1): "" if rule == "regression" else "labels", (1, 2): "centres", (0, 1): "centres"}[
            compression_steps, updates
        ]
    )
