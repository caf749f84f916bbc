"""What an ensemble adds to the loss of a member: known values, and which samples it concerns."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from paceline.learning.models.compression import Distillation, Diversity, soft_labels

Z = torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64)
YBAR = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
FIRST = np.array([0])


def test_the_compression_loss_and_its_gradient_of_the_specification() -> None:
    outputs = Z.clone().requires_grad_()
    addition = Distillation(0.4, soft_labels(FIRST, YBAR, of=1))
    loss = cross_entropy(outputs, torch.tensor([0])) + addition(outputs, FIRST)
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert loss.item() == pytest.approx(0.85064835, abs=1e-8)
    assert gradient[0].tolist() == pytest.approx([-0.26866266, 0.22261986, 0.04604280], abs=1e-8)


def both(labels: Tensor) -> list[Distillation | Diversity]:
    known = soft_labels(np.array([2, 5]), labels, of=8)
    return [Distillation(0.4, known), Diversity(0.6, known), Diversity(0.6, known, squared=True)]


def test_samples_without_a_label_add_nothing_but_count_in_the_mean() -> None:
    labels = torch.softmax(torch.arange(6.0, dtype=torch.float64).reshape(2, 3), dim=1)
    outputs = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for addition in both(labels):
        whole = addition(outputs, np.array([5, 0, 2, 1]))
        alone = [addition(outputs[i : i + 1], np.array([sample])) for i, sample in ((0, 5), (2, 2))]
        torch.testing.assert_close(whole, (alone[0] + alone[1]) / 4)
        assert float(addition(outputs, np.array([0, 1, 3, 4]))) == 0


def test_diversity_is_the_negative_distance_of_the_outputs() -> None:
    centres = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    distance = (torch.softmax(Z, dim=1) - centres[:1]).norm()
    for addition, expected in zip(both(centres)[1:], (-0.6 * distance, -0.6 * distance**2), strict=True):
        torch.testing.assert_close(addition(Z, np.array([2])), expected)


@pytest.mark.parametrize("squared", [False, True])
def test_the_gradient_of_a_distance_of_zero_is_finite(squared: bool) -> None:
    outputs = Z.clone().requires_grad_()
    centres = soft_labels(FIRST, torch.softmax(Z, dim=1), of=1)
    (gradient,) = torch.autograd.grad(Diversity(0.6, centres, squared)(outputs, FIRST), outputs)
    assert bool(gradient.isfinite().all())


def test_diversity_drives_the_outputs_away() -> None:
    centres = soft_labels(FIRST, YBAR, of=1)
    outputs = Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Diversity(0.6, centres)(outputs, FIRST), outputs)
    further = torch.softmax(Z - 0.1 * gradient, dim=1) - YBAR
    assert float(further.norm()) > float((torch.softmax(Z, dim=1) - YBAR).norm())
