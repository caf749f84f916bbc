"""The largest curvature, against dense Hessians and closed forms; and what the search leaves as it was."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.learning.curvature import Curvature, Effort, curvature
from support.digits import digits, digits_task
from support.quadratic import quadratic

PRECISE = Effort(samples=10_000, products=200, tolerance=1e-8)


def seeded(make: "type[nn.Module] | Any", *arguments: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(*arguments)


def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10)).double()


def dense(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The whole Hessian of the mean cross-entropy, in eval mode."""
    model.eval()
    named = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [p.numel() for p in named.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = zip(named.items(), torch.split(flat, sizes), strict=True)
        parameters = {name: piece.view(p.shape) for (name, p), piece in pieces}
        return cross_entropy(functional_call(model, parameters, (inputs,)), targets)

    found = hessian(loss, torch.cat([p.flatten() for p in named.values()]))  # type: ignore[no-untyped-call]
    model.train()
    assert isinstance(found, Tensor)
    return found


def largest(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def test_a_neural_network_against_its_dense_hessian() -> None:
    model = small_net()
    inputs, targets = (each[:200] for each in digits()[0])
    task = pl.Task(model, cross_entropy, (inputs, targets))
    found = curvature(task, PRECISE)
    assert found.value == pytest.approx(largest(dense(model, inputs, targets)), rel=1e-6)
    assert (found.converged, found.samples) == (True, 200)
    assert found.products < 100


def test_softmax_regression_from_zero_has_a_closed_form() -> None:
    r"""At w = 0 the Hessian is (I - 11'/10)/10 times X'X/n, so the largest eigenvalue is that of X'X/n over 10."""
    model = nn.Linear(64, 10, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    (inputs, _), _ = digits()
    exact = largest(inputs.T @ inputs / len(inputs)) / 10
    found = curvature(digits_task(model), PRECISE)
    assert found.value == pytest.approx(exact, rel=1e-7)
    assert found.samples == 1500  # in two pieces
    assert found.value <= exact * (1 + 1e-12)


def test_a_parabola_is_found_in_one_product() -> None:
    found = curvature(quadratic(b=[1.0, 2.0], a=[3.0, 5.0]))
    assert (found.value, found.error, found.products) == (4.0, 0.0, 1)


def test_the_error_bounds_the_distance_to_an_eigenvalue() -> None:
    """After every product: from below, and with an eigenvalue within the error."""
    model = small_net()
    inputs, targets = (each[:100] for each in digits()[0])
    eigenvalues = torch.linalg.eigvalsh(dense(model, inputs, targets)).numpy()
    seen: list[Curvature] = []
    curvature(pl.Task(model, cross_entropy, (inputs, targets)), PRECISE, progress=seen.append)
    assert [found.products for found in seen] == list(range(1, len(seen) + 1))
    for found in seen:
        assert found.value <= eigenvalues[-1] + 1e-9
        assert np.abs(eigenvalues - found.value).min() <= found.error + 1e-9
    assert (np.diff([found.value for found in seen]) > -1e-12).all()


class Noisy(nn.Module):
    """Batch normalisation and dropout, both of which act otherwise while training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 6), nn.BatchNorm1d(6)
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(6, 10)
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.dropout(self.norm(torch.tanh(self.first(inputs)))))  # type: ignore[no-any-return]


def test_dropout_and_batch_normalisation_are_looked_at_in_eval_mode() -> None:
    model = seeded(Noisy).double()
    model.get_submodule("dropout").eval()  # a mixture of modes, to come back as it was
    state = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, targets = (each[:150] for each in digits()[0])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = curvature(pl.Task(model, cross_entropy, (inputs, targets)), PRECISE)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert (model.training, model.get_submodule("dropout").training) == (True, False)
    assert all(p.grad is None for p in model.parameters())
    del model.frozen  # does not count: leave it out of the dense one too
    assert found.value == pytest.approx(largest(dense(model, inputs, targets)), rel=1e-6)


def test_effort_is_bounded() -> None:
    task = digits_task(small_net())
    few = curvature(task, Effort(samples=32, products=3, tolerance=1e-12))
    assert (few.products, few.samples, few.converged) == (3, 32, False)
    assert curvature(task, Effort(seconds=1e-9, tolerance=1e-12)).products == 1
    assert curvature(task, Effort(tolerance=0.5)).products < 10


def test_the_same_seed_gives_the_same_number_and_the_model_can_be_another() -> None:
    task, effort = digits_task(), Effort(samples=64)
    assert curvature(task, effort) == curvature(task, effort)
    assert curvature(task, effort) != curvature(task, effort, seed=1)
    certain = nn.Linear(64, 10, dtype=torch.float64)
    with torch.no_grad():
        certain.weight.mul_(100.0)
    assert curvature(task, effort, model=certain).value < curvature(task, effort).value / 2  # saturated: hardly bends


def test_single_precision_and_datasets_will_do() -> None:
    inputs, targets = digits()[0]
    dataset = torch.utils.data.TensorDataset(inputs.float(), targets)
    task = pl.Task(seeded(nn.Linear, 64, 10), cross_entropy, dataset)
    exact = curvature(pl.Task(seeded(nn.Linear, 64, 10).double(), cross_entropy, (inputs, targets)), PRECISE).value
    assert curvature(task, Effort(samples=10_000)).value == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("name", ["samples", "products", "tolerance", "seconds"])
def test_no_effort_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0 cannot be found: more than 0"):
        curvature(digits_task(), Effort()._replace(**{name: 0}))


def test_what_has_no_curvature_says_so() -> None:
    model = nn.Linear(64, 10, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(1e308)
    with pytest.raises(ConfigError, match="not finite: the loss overflows"):
        curvature(digits_task(model))
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameters that are trained"):
        curvature(digits_task(model))
    linear = pl.Task(nn.Linear(2, 1), lambda outputs, targets: outputs.mean(), (torch.ones(4, 2), torch.ones(4)))
    assert curvature(linear).value == 0.0
    assert math.isinf(Effort().seconds)


class ObservesMembership(nn.Module):
    """Attention over the rows of an image, through torch's fused function or the bare kernel behind it."""

    def __init__(self, kernel: bool) -> None:
        super().__init__()
        self.mix, self.last, self._kernel = nn.Linear(8, 8), nn.Linear(8, 10), kernel

    def forward(self, inputs: Tensor) -> Tensor:
        rows = self.mix(inputs.view(-1, 1, 8, 8))
        if self._kernel:
            mixed = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows, rows, rows)[0]
        else:
            mixed = nn.functional.scaled_dot_product_attention(rows, rows, rows)
        return self.last(mixed.mean(dim=(1, 2)))  # type: ignore[no-any-return]


def test_attention_will_do() -> None:
    inputs, targets = (each[:50] for each in digits()[0])
    model = seeded(ObservesMembership, False).double()
    found = curvature(pl.Task(model, cross_entropy, (inputs, targets)), PRECISE)
    with sdpa_kernel(SDPBackend.MATH):
        assert found.value == pytest.approx(largest(dense(model, inputs, targets)), rel=1e-6)


def test_a_model_without_second_derivatives_is_refused_in_one_line() -> None:
    inputs, targets = (each[:50] for each in digits()[0])
    with pytest.raises(ConfigError, match=r"no second derivatives: derivative for .* is not implemented"):
        curvature(pl.Task(seeded(ObservesMembership, True).double(), cross_entropy, (inputs, targets)))
