"""Data sets and models by their names: their shapes, and what does not fit."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from paceline.config.experiment import make_task
from paceline.config.named_tasks import Standardized, lenet
from paceline.config.tasks import TaskChoice, read_task
from paceline.core.errors import ConfigError
from paceline.data.images import MNIST_FILES
from support.idx import idx

DATA = os.environ.get("PACELINE_DATA")


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Forty pictures to train on and ten to test on, each of one grey that tells its class."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for (images, labels), count in zip(MNIST_FILES, (40, 10), strict=True):
        classes = (np.arange(count) % 10).astype(np.uint8)
        (folder / images).write_bytes(idx(np.repeat(classes * 20, 784).reshape(count, 28, 28)))
        (folder / labels).write_bytes(idx(classes))
    return tmp_path


@pytest.mark.parametrize(
    ("model", "parameters"),
    [({"model": "linear"}, 7850), ({"model": "mlp", "hidden": [4]}, 3190), ({"model": "lenet"}, 61706)],
)  # fmt: skip
def test_mnist_stays_bytes_and_fits_every_model(mnist: Path, model: dict[str, object], parameters: int) -> None:
    task = make_task(read_task({"data": "mnist", "directory": "mnist", **model}, mnist), seed=0)
    inputs, targets = task.training_samples().fetch(np.arange(10))
    assert (inputs.dtype, inputs.shape, targets.tolist()) == (torch.uint8, (10, 1, 28, 28), [*range(10)])
    assert sum(each.numel() for each in task.model.parameters()) == parameters
    assert not list(task.model.buffers())  # workers' mini-batches may be fused
    assert task.model(inputs).shape == (10, 10)
    assert task.evaluator()(task.model)["loss"] == pytest.approx(2.3, abs=0.5)


def test_colours_have_mean_0_and_deviation_1() -> None:
    standard = Standardized((0.5, 0.0), (0.25, 1.0))
    pictures = torch.tensor([[[[255]], [[51]]]], dtype=torch.uint8)
    assert standard(pictures).flatten().tolist() == pytest.approx([2.0, 0.2])


def test_lenet_takes_pictures_of_28_and_32_pixels() -> None:
    assert lenet(colours=1, pixels=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert lenet()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ConfigError, match="pictures of 8 pixels: 28 or 32"):
        lenet(pixels=8)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"data": "mnist", "model": "lenet"}, "task: mnist is read from its files: give their place, as in directory"),
        ({"data": "digits", "model": "lenet"}, "a lenet does not fit pictures of 8 by 8 pixels"),
        ({"data": "digits", "model": "linear", "directory": "x"}, "digits come with scikit-learn: leave directory="),
        ({"data": "mnist", "model": "linear", "directory": "x", "test_share": 0.1}, "mnist has a test set of its own"),
        ({"data": "mnist", "model": "lenet", "hidden": [3], "directory": "x"}, "a lenet has its own layers"),
        ({"data": "minst", "model": "linear"}, "task.data: 'minst' is unknown: did you mean 'mnist'?"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(section: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_task(section, None)
    assert said in str(caught.value)


def test_missing_files_are_named_with_how_to_get_them(tmp_path: Path) -> None:
    section = read_task({"data": "cifar10", "model": "lenet", "directory": "data"}, tmp_path)
    with pytest.raises(ConfigError) as caught:
        make_task(section, 0)
    folder = tmp_path / "data"
    assert (
        str(caught.value)
        == f"task: there is no cifar10 in {folder}: python -m reproductions fetch cifar10 --to {folder}"
    )


@pytest.mark.skipif(not DATA, reason="needs real data: make test DATA=DIR")
def test_cifar10_from_its_directory() -> None:
    task = make_task(TaskChoice("cifar10", "lenet", directory=DATA), 0)
    inputs, _ = task.training_samples().fetch(np.arange(500))
    assert (len(task.training_samples()), inputs.dtype, inputs.shape[1:]) == (50_000, torch.uint8, (3, 32, 32))
    numbers = task.model[0](inputs)  # type: ignore[index]
    assert numbers.mean((0, 2, 3)).abs().max() < 0.1
    assert sum(each.numel() for each in task.model.parameters()) == 62_006


def test_the_largest_of_four_before_relu_has_the_bits_of_after_it() -> None:
    torch.manual_seed(0)
    model = lenet()
    layers = list(model)
    for place in (1, 4):
        layers[place], layers[place + 1] = layers[place + 1], layers[place]
    usual = torch.nn.Sequential(*layers)  # convolution, ReLU, pooling; the same parameters
    assert [type(layer).__name__ for layer in layers[:3]] == ["Conv2d", "ReLU", "MaxPool2d"]
    pictures, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    found = []
    for network in (model, usual):
        outputs = network(pictures)
        found.append([outputs, *torch.autograd.grad(cross_entropy(outputs, labels), list(model.parameters()))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
