"""LeNet with compiled convolutions is torch's LeNet: outputs, gradients, names and first weights."""

import shutil
import subprocess

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline.config.named_tasks import lenet as plain_lenet
from reproductions.datasets.cifar import ChannelsLast
from reproductions.models import compiled
from reproductions.models.compiled import lenet, library

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
SHAPES = [(3, 32), (1, 28)]


def both(colours: int, pixels: int, dropout: float = 0.0) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    plain = plain_lenet(dropout, colours=colours, pixels=pixels)
    torch.manual_seed(3)
    return plain, lenet(dropout, colours, pixels)


def batch(colours: int, pixels: int, count: int = 37) -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    return torch.randn(count, colours, pixels, pixels), torch.randint(10, (count,))


@needs_compiler
@pytest.mark.parametrize(("colours", "pixels"), SHAPES)
def test_outputs_and_gradients_are_those_of_torch(colours: int, pixels: int) -> None:
    plain, own = both(colours, pixels)
    inputs, labels = batch(colours, pixels)
    for network in (plain, own):
        torch.autograd.backward(cross_entropy(network(inputs), labels))
    torch.testing.assert_close(own(inputs), plain(inputs), rtol=1e-5, atol=1e-6)
    for expected, parameter in zip(plain.parameters(), own.parameters(), strict=True):
        assert expected.grad is not None
        largest = float(expected.grad.abs().max())
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-5 * largest)


@needs_compiler
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pictures_may_be_laid_out_either_way(layout: torch.memory_format) -> None:
    plain, own = both(3, 32)
    inputs, _ = batch(3, 32)
    torch.testing.assert_close(own(inputs.contiguous(memory_format=layout)), plain(inputs), rtol=1e-5, atol=1e-6)


@needs_compiler
def test_the_first_of_equal_pixels_has_the_gradient_as_in_torch() -> None:
    """Constant pictures: all four of each pooling are the same."""
    plain, own = both(3, 32)
    inputs, labels = torch.full((5, 3, 32, 32), 0.7), torch.arange(5)
    for network in (plain, own):
        torch.autograd.backward(cross_entropy(network(inputs), labels))
    for expected, parameter in zip(plain.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-6)


@needs_compiler
def test_what_is_not_a_number_stays_to_be_seen() -> None:
    _, own = both(3, 32)
    inputs, _ = batch(3, 32, 2)
    inputs[1, 0, 5, 5] = float("nan")
    outputs = own(inputs)
    assert outputs[0].isfinite().all()
    assert outputs[1].isnan().all()


@needs_compiler
def test_names_and_first_weights_are_those_of_the_plain_network() -> None:
    plain, own = both(3, 32, dropout=0.25)
    expected = {f"1.{name}": value for name, value in plain.state_dict().items()}
    assert list(own.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in own.state_dict().items())


@needs_compiler
def test_a_gradient_of_pictures_is_refused() -> None:
    _, own = both(3, 32)
    inputs, labels = batch(3, 32, 2)
    with pytest.raises(NotImplementedError, match="no gradient for its pictures"):
        torch.autograd.backward(cross_entropy(own(inputs.requires_grad_()), labels))


@needs_compiler
@pytest.mark.parametrize("inputs", [torch.zeros(2, 3, 28, 28), torch.zeros(2, 3, 32, 32, dtype=torch.float64)])
def test_other_sizes_and_numbers_are_refused(inputs: Tensor) -> None:
    with pytest.raises(ValueError, match=r"compiled for float32 of \(3, 32, 32\), not for"):
        lenet()(inputs)


def test_without_a_compiler_it_is_torchs_own_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_: object, **__: object) -> None:
        raise FileNotFoundError("c++")

    monkeypatch.setattr(subprocess, "run", none)
    monkeypatch.setattr(compiled, "library", library.__wrapped__)
    own = lenet()
    assert "no compiler" in capsys.readouterr().err
    assert isinstance(own[0], ChannelsLast)
    assert [type(layer) for layer in own[1].children()] == [type(layer) for layer in plain_lenet()]
