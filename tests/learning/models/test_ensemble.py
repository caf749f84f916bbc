"""Weighted sums of outputs: the known values and the invariants K1-K4, K9, K10, K12 of the EC-DNN specification."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from paceline.core.errors import ConfigError
from paceline.data.samples import TensorSamples
from paceline.learning.models.ensemble import (
    Ensemble,
    NormalEquations,
    Weighing,
    as_distribution,
    margin_weights,
    margins,
    relabel,
)

F = torch.tensor(
    [
        [[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.2, 0.2, 0.6], [0.4, 0.35, 0.25]],
        [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.4, 0.3], [0.2, 0.6, 0.2]],
        [[0.2, 0.5, 0.3], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]],
    ],
    dtype=torch.float64,
)
Y = torch.tensor([0, 1, 2, 0])


class Outputs(nn.Module):
    """A model whose logits are written down; its inputs are the numbers of the samples."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits[inputs]


def models(probabilities: Tensor) -> list[Outputs]:
    return [Outputs(each.log()) for each in probabilities]


def relabelled(probabilities: Tensor, labels: Tensor, rule: str) -> Tensor:
    numbers = torch.arange(len(labels))
    weighing = Weighing(rule)
    (found,) = relabel(models(probabilities), TensorSamples(numbers, labels), [numbers.numpy()], weighing).labels
    return found


def losses(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each sample."""
    return -probabilities.gather(-1, labels.expand(probabilities.shape[:-1]).unsqueeze(-1)).squeeze(-1).log()


def squares(combined: Tensor) -> float:
    return float((combined - one_hot(Y, 3)).square().sum())


def equations(outputs: Tensor, labels: Tensor) -> NormalEquations:
    found = NormalEquations(len(outputs))
    found.add(outputs, labels)
    return found


@st.composite
def cases(draw: st.DrawFn, classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Softmax outputs (models, samples, classes), and labels."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 40)), classes or draw(st.integers(2, 7)))
    logits = draw(st.sampled_from([0.1, 1.0, 6.0])) * torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.softmax(logits, dim=2), torch.randint(shape[2], (shape[1],), generator=generator)


# Known values


def test_normal_equations_of_the_specification() -> None:
    found = equations(F, Y)
    expected = torch.tensor([[1.705, 1.54, 1.535], [1.54, 1.82, 1.39], [1.535, 1.39, 1.875]], dtype=torch.float64)
    torch.testing.assert_close(found.products, expected)
    assert found.targets.tolist() == pytest.approx([2.2, 1.8, 2.1])
    assert found.solve().tolist() == pytest.approx([1.465265656, -0.438118424, 0.245227641], abs=1e-9)
    assert found.solve(non_negative=True).tolist() == pytest.approx([1.072384464, 0, 0.242074585], abs=1e-9)


def test_squared_errors_of_the_specification() -> None:
    assert [squares(each) for each in F] == pytest.approx([1.305, 2.22, 1.675])
    assert squares(F.mean(dim=0)) == pytest.approx(1.525556, abs=1e-6)
    fitted = torch.einsum("k,knc->nc", equations(F, Y).solve(), F)
    assert squares(fitted) == pytest.approx(1.050051, abs=1e-6)


def test_cross_entropies_of_the_specification() -> None:
    each = losses(F, Y).mean(dim=1)
    assert each.tolist() == pytest.approx([0.6192346, 0.9324254, 0.7591386], abs=1e-7)
    assert float(each.mean()) == pytest.approx(0.7702662, abs=1e-7)
    ensemble = Ensemble(models(F))(torch.arange(4))
    assert cross_entropy(ensemble, Y).item() == pytest.approx(0.6893101, abs=1e-7)
    torch.testing.assert_close(relabelled(F, Y, "simple"), F.mean(dim=0))


def test_margins_of_the_specification() -> None:
    expected = [[0.5, 0.2, 0.4, 0.05], [0.2, 0.7, -0.1, -0.4], [-0.3, 0.25, 0.7, 0.3]]
    torch.testing.assert_close(margins(F, Y), torch.tensor(expected, dtype=torch.float64))
    assert margin_weights(F, Y)[:, 0].tolist() == pytest.approx([5 / 7, 2 / 7, 0])
    torch.testing.assert_close(relabelled(F, Y, "margin")[0], (5 * F[0, 0] + 2 * F[1, 0]) / 7)


def test_k6_a_regression_over_one_model_scales_it() -> None:
    assert equations(F[:1], Y).solve().tolist() == pytest.approx([1.2903], abs=5e-5)


# Invariants


@given(cases())
def test_k1_the_ensemble_loses_no_more_than_its_members_do_on_average(case: tuple[Tensor, Tensor]) -> None:
    outputs, labels = case
    numbers = torch.arange(len(labels))
    ensemble = cross_entropy(Ensemble(models(outputs))(numbers), labels, reduction="none")
    assert bool((ensemble <= losses(outputs, labels).mean(dim=0) + 1e-6).all())


@given(cases())
def test_k1_holds_for_the_mean_of_logits_too(case: tuple[Tensor, Tensor]) -> None:
    outputs, labels = case
    mean = cross_entropy(outputs.log().mean(dim=0), labels, reduction="none")
    assert bool((mean <= losses(outputs, labels).mean(dim=0) + 1e-9).all())


@given(cases())
def test_k2_regression_fits_best_and_the_ensemble_better_than_its_members(case: tuple[Tensor, Tensor]) -> None:
    outputs, labels = case
    targets = one_hot(labels, outputs.shape[2])
    each = (outputs - targets).square().sum(dim=(1, 2))
    simple = (outputs.mean(dim=0) - targets).square().sum()
    found = equations(outputs, labels)

    def error(coefficients: Tensor) -> float:
        return float((torch.einsum("k,knc->nc", coefficients, outputs) - targets).square().sum())

    fitted, non_negative = error(found.solve()), error(found.solve(non_negative=True))
    assert fitted <= non_negative + 1e-9 <= float(simple) + 2e-9 <= float(each.mean()) + 3e-9


@given(cases())
def test_k3_by_margins_whatever_one_model_gets_right_is_right(case: tuple[Tensor, Tensor]) -> None:
    outputs, labels = case
    right = relabelled(outputs, labels, "margin").argmax(dim=1) == labels
    assert bool(right[(margins(outputs, labels) > 1e-9).any(dim=0)].all())


@given(cases(classes=2))
def test_k4_with_two_classes_margins_lose_no_more_than_the_members_on_average(case: tuple[Tensor, Tensor]) -> None:
    outputs, labels = case
    ensemble = losses(relabelled(outputs, labels, "margin"), labels)
    assert bool((ensemble <= losses(outputs, labels).mean(dim=0) + 1e-9).all())


@given(cases(), st.integers(1, 4), st.sampled_from(["simple", "margin", "regression"]))
def test_k9_identical_models_are_their_own_ensemble(case: tuple[Tensor, Tensor], copies: int, rule: str) -> None:
    outputs, labels = case
    same = outputs[:1].expand(copies, -1, -1)
    torch.testing.assert_close(relabelled(same, labels, rule), outputs[0])
    coefficients = equations(same, labels).solve()
    torch.testing.assert_close(coefficients, coefficients.mean().expand(copies))  # the smallest of all solutions


@given(cases(), st.randoms(use_true_random=False))
def test_k10_permuting_the_models_permutes_the_coefficients(case: tuple[Tensor, Tensor], random: object) -> None:
    outputs, labels = case
    order = list(range(len(outputs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for weigh in (margin_weights, lambda o, y: equations(o, y).solve()):
        torch.testing.assert_close(weigh(outputs[order], labels), weigh(outputs, labels)[order], rtol=1e-6, atol=1e-6)


@given(cases())
def test_k12_margin_weights_are_not_negative_and_add_up_to_one(case: tuple[Tensor, Tensor]) -> None:
    weights = margin_weights(*case)
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(dim=0), torch.ones(weights.shape[1], dtype=torch.float64))


def test_labels_that_do_not_count_are_in_no_fit_and_have_even_weights() -> None:
    labels, counted = torch.tensor([0, -100, 2, 7]), torch.tensor([True, False, True, False])
    fit = NormalEquations(3)
    fit.add(F, labels, counted)
    rest = equations(F[:, counted], Y[counted])
    assert torch.equal(fit.products, rest.products)
    assert torch.equal(fit.targets, rest.targets)
    weights = margin_weights(F, labels, counted)
    torch.testing.assert_close(weights[:, counted], margin_weights(F[:, counted], Y[counted]))
    torch.testing.assert_close(weights[:, ~counted], torch.full((3, 2), 1 / 3, dtype=torch.float64))


def test_coefficients_of_no_sample_are_even() -> None:
    for non_negative in (False, True):
        assert NormalEquations(4).solve(non_negative=non_negative).tolist() == [0.25] * 4


@pytest.mark.parametrize("rule", ["margin", "regression"])
@pytest.mark.parametrize("target", [-100, 3])
def test_a_target_that_is_no_class_of_the_models_is_told(rule: str, target: int) -> None:
    labels = Y.clone()
    labels[1] = target
    said = f"a target is {target}, and the model has the classes 0 to 2: if the loss ignores it, let it say so"
    with pytest.raises(ConfigError, match=said):
        relabelled(F, labels, rule)
    torch.testing.assert_close(relabelled(F, labels, "simple"), F.mean(dim=0))


def test_where_every_model_is_wrong_all_count_the_same() -> None:
    outputs = torch.tensor([[[0.1, 0.9]], [[0.4, 0.6]]], dtype=torch.float64)
    assert margin_weights(outputs, torch.tensor([0])).tolist() == [[0.5], [0.5]]


@given(cases(), st.booleans())
def test_sums_over_data_sets_are_the_equations_of_all_of_them(case: tuple[Tensor, Tensor], non_negative: bool) -> None:
    outputs, labels = case
    half = len(labels) // 2
    joined = equations(outputs[:, :half], labels[:half])
    joined.join(equations(outputs[:, half:], labels[half:]))
    whole = equations(outputs, labels)
    torch.testing.assert_close(joined.products, whole.products)
    torch.testing.assert_close(joined.targets, whole.targets)


def test_negative_sums_are_clipped_and_the_rest_is_made_a_distribution() -> None:
    sums = torch.tensor([[-0.5, 1.5, 0.5], [-1.0, -1.0, 0.0]])
    assert as_distribution(sums).tolist() == [[0.0, 0.75, 0.25], pytest.approx([1 / 3] * 3)]
    ensemble = Ensemble(models(F), [-1.0, 0.0, 1.0])(torch.arange(4))
    assert bool(ensemble.isfinite().all())
    torch.testing.assert_close(ensemble.exp(), as_distribution(F[2] - F[0]), rtol=1e-6, atol=1e-30)


def test_an_ensemble_is_a_module_that_can_be_trained_and_saved() -> None:
    ensemble = Ensemble([nn.Linear(2, 3), nn.Linear(2, 3)])
    assert sorted(ensemble.state_dict()) == [
        "members.0.bias", "members.0.weight", "members.1.bias", "members.1.weight", "weights",
    ]  # fmt: skip
    ensemble(torch.ones(1, 2)).sum().backward()
    assert all(parameter.grad is not None for parameter in ensemble.parameters())
