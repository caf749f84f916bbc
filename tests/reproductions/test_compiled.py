"""Compiled LeNet is torch's LeNet: outputs, gradients, dropout, names and first weights."""

import copy
import shutil
import subprocess
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline.config.named_tasks import lenet as plain_lenet
from reproductions.datasets.cifar import ChannelsLast
from reproductions.models import compiled
from reproductions.models.compiled import HIDDEN, drawn_masks, lenet, library

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


def assert_same_gradients(own: nn.Module, expected: nn.Module) -> None:
    for parameter, other in zip(own.parameters(), expected.parameters(), strict=True):
        assert other.grad is not None
        largest = float(other.grad.abs().max())
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5 * largest)


def with_masks(plain: nn.Module, inputs: Tensor, masks: Tensor) -> Tensor:
    """The outputs of torch's network with these masks of dropout."""
    assert isinstance(plain, nn.Sequential)
    left = [masks[:, :120], masks[:, 120:]]
    for layer in plain:
        inputs = inputs * left.pop(0) if isinstance(layer, nn.Dropout) else layer(inputs)
    return inputs


@needs_compiler
@pytest.mark.parametrize("count", [1, 5, 16, 37])
@pytest.mark.parametrize(("colours", "pixels"), [*SHAPES, (1, 32), (3, 28)])
def test_outputs_and_gradients_are_those_of_torch(colours: int, pixels: int, count: int) -> None:
    plain, own = both(colours, pixels)
    inputs, labels = batch(colours, pixels, count)
    for network in (plain, own):
        torch.autograd.backward(cross_entropy(network(inputs), labels))
    torch.testing.assert_close(own(inputs), plain(inputs), rtol=1e-5, atol=1e-6)
    assert_same_gradients(own, plain)


@needs_compiler
def test_processors_with_narrow_vectors_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, own = both(3, 32)
    monkeypatch.setattr(compiled, "COMMAND", [part for part in compiled.COMMAND if part != "-march=native"])
    monkeypatch.setattr(compiled, "library", cache(library.__wrapped__))
    inputs, labels = batch(3, 32)
    for network in (plain, own):
        torch.autograd.backward(cross_entropy(network(inputs), labels))
    torch.testing.assert_close(own(inputs), plain(inputs), rtol=1e-5, atol=1e-6)
    assert_same_gradients(own, plain)


@needs_compiler
@pytest.mark.parametrize(("colours", "pixels"), SHAPES)
def test_dropout_has_the_outputs_and_gradients_of_torch(
    colours: int, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, own = both(colours, pixels, 0.25)
    inputs, labels = batch(colours, pixels)
    masks = drawn_masks(len(inputs), 0.25)
    monkeypatch.setattr(compiled, "drawn_masks", lambda *_: masks)
    outputs, expected = own(inputs), with_masks(plain, inputs, masks)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(outputs, own.eval()(inputs), atol=1e-3)
    for each in (outputs, expected):
        torch.autograd.backward(cross_entropy(each, labels))
    assert_same_gradients(own, plain)


@needs_compiler
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_dropout_leaves_units_out_independently(share: float) -> None:
    torch.manual_seed(5)
    masks = drawn_masks(2000, share)
    assert masks.shape == (2000, HIDDEN)
    out = masks == 0
    torch.testing.assert_close(masks[~out], torch.full_like(masks[~out], 1 / (1 - share)))
    again = drawn_masks(2000, share) == 0
    assert float(out.float().mean()) == pytest.approx(share, abs=0.004)  # about five standard deviations
    for one, other in ((out[:, 1:], out[:, :-1]), (out[1:], out[:-1]), (out, again)):
        assert float((one & other).float().mean()) == pytest.approx(share**2, abs=0.004)
    assert float((out.float().mean(0) - share).abs().max()) < 5 * (share * (1 - share) / 2000) ** 0.5


@needs_compiler
def test_dropout_follows_torchs_generator() -> None:
    _, own = both(3, 32, 0.25)
    inputs, _ = batch(3, 32)
    state = torch.get_rng_state()
    first, second = own(inputs), own(inputs)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(own(inputs), first)
    assert torch.equal(own(inputs), second)


@needs_compiler
@pytest.mark.parametrize(("dropout", "training"), [(0.25, False), (0.0, True)])
def test_without_dropout_no_random_number_is_drawn(dropout: float, training: bool) -> None:
    plain, own = both(3, 32, dropout)
    inputs, _ = batch(3, 32)
    state = torch.get_rng_state()
    torch.testing.assert_close(own.train(training)(inputs), plain.eval()(inputs), rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), state)


@needs_compiler
def test_without_gradients_the_outputs_are_the_same() -> None:
    _, own = both(3, 32)
    inputs, _ = batch(3, 32)
    expected = own(inputs)
    with torch.no_grad():
        assert torch.equal(own(inputs), expected)
    outputs = own.requires_grad_(False)(inputs)
    assert torch.equal(outputs, expected)
    assert not outputs.requires_grad


@needs_compiler
def test_some_parameters_may_be_frozen_and_losses_be_those_of_single_pictures() -> None:
    plain, own = both(3, 32)
    inputs, labels = batch(3, 32)
    for network in (plain, own):
        frozen, *others = network.parameters()
        frozen.requires_grad_(False)
        losses = cross_entropy(network(inputs), labels, reduction="none")
        torch.autograd.backward((losses * torch.linspace(0, 1, len(labels))).sum())
        assert frozen.grad is None
        assert all(each.grad is not None for each in others)
        frozen.grad = torch.zeros_like(frozen)
    assert_same_gradients(own, plain)


@needs_compiler
def test_a_copy_has_weights_of_its_own_and_weights_may_move() -> None:
    plain, own = both(3, 32)
    inputs, _ = batch(3, 32)
    other = copy.deepcopy(own)
    before = own(inputs)
    for parameter in own.parameters():
        parameter.data = parameter.data * 0.9
    for parameter in plain.parameters():
        parameter.data = parameter.data * 0.9
    assert torch.equal(other(inputs), before)
    torch.testing.assert_close(own(inputs), plain(inputs), rtol=1e-5, atol=1e-6)


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
    with pytest.raises(ValueError, match=r"of \(3, 32, 32\) and parameters of torch.float64"):
        lenet().double()(torch.zeros(2, 3, 32, 32))
    with pytest.raises(ValueError, match="1 or 3 colours, not of 2"):
        lenet(colours=2)


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
