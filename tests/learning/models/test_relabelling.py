"""Labels by the outputs of several models: which samples, in which mode, and by whose coefficients."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.partition import Indices
from paceline.data.samples import TensorSamples, samples
from paceline.learning.models.ensemble import PASSED_AT_ONCE, NormalEquations, Weighing, as_distribution, relabel

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
