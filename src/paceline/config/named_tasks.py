"""Data sets and models by their names in a TOML file.

Pictures stay bytes, a quarter of the memory of floats: the first layer of a model for them makes numbers of them.
"""

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from paceline.config.tasks import TEST_SHARE, TaskChoice
from paceline.core.errors import ConfigError
from paceline.learning.task import Task

if TYPE_CHECKING:
    from paceline.data.images import Labelled

Pair = tuple[Tensor, Tensor]
# means and deviations of the training pictures' colours, from 0 to 1
COLOURS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


def make_named(choice: TaskChoice) -> Task:
    """The data and a new model, its weights drawn from torch's generator."""
    train, test = _digits(choice.test_share or TEST_SHARE) if choice.data == "digits" else _pictures(choice)
    model = _model(choice, train[0], int(train[1].max()) + 1)
    return Task(model=model, loss=nn.functional.cross_entropy, train=train, test=test)


@cache
def _digits(test_share: float) -> tuple[Pair, Pair]:
    """Handwritten digits, 8 by 8 pixels from 0 to 1; the test set is the same whatever the seed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ConfigError("the data set \"digits\" needs scikit-learn: pip install 'paceline[demo]'") from None

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs = torch.from_numpy((pixels[order] / 16).astype(np.float32))
    targets = torch.from_numpy(labels[order].astype(np.int64))
    tests = max(1, round(test_share * len(labels)))
    return (inputs[tests:], targets[tests:]), (inputs[:tests], targets[:tests])


@cache
def _pictures(choice: TaskChoice) -> tuple[Pair, Pair]:
    """MNIST or CIFAR-10, split as published: bytes by picture, colour, row and column."""
    from paceline.data.images import read_cifar10, read_mnist

    try:
        read = read_mnist(choice.directory) if choice.data == "mnist" else read_cifar10(choice.directory)
    except ConfigError as error:
        raise ConfigError(f"task: {error}") from None
    return _tensors(read.train), _tensors(read.test)


def _tensors(labelled: "Labelled") -> Pair:
    images = torch.from_numpy(labelled.images)
    return images if images.dim() == 4 else images.unsqueeze(1), torch.from_numpy(labelled.labels)


def _model(choice: TaskChoice, inputs: Tensor, classes: int) -> nn.Module:
    if choice.data == "digits":
        return _dense(choice, inputs.shape[1], classes)
    standard = Standardized(*COLOURS[choice.data])
    if choice.model == "lenet":
        return nn.Sequential(standard, lenet(classes=classes, colours=inputs.shape[1], pixels=inputs.shape[2]))
    return nn.Sequential(standard, nn.Flatten(), _dense(choice, inputs[0].numel(), classes))


def _dense(choice: TaskChoice, inputs: int, classes: int) -> nn.Module:
    return mlp(inputs, classes, choice.hidden) if choice.model == "mlp" else nn.Linear(inputs, classes)


class Standardized(nn.Module):
    """Makes numbers of mean 0 and deviation 1 of bytes, for each colour. It has no parameters and no buffers."""

    def __init__(self, means: tuple[float, ...], deviations: tuple[float, ...]) -> None:
        super().__init__()
        self.means, self.deviations = means, deviations

    def forward(self, pictures: Tensor) -> Tensor:
        def column(values: tuple[float, ...]) -> Tensor:
            return torch.tensor(values, device=pictures.device)[:, None, None] * 255

        return (pictures - column(self.means)) / column(self.deviations)


def mlp(inputs: int, classes: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Fully connected layers with ReLU between them."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def lenet(dropout: float = 0.0, classes: int = 10, colours: int = 3, pixels: int = 32) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling: 62,006 parameters for 10 classes and pictures of 3 by 32 by 32.

    Pictures of 28 by 28 get a border of two pixels. ``dropout`` is the share that is left out behind each of the two
    hidden fully connected layers. The largest of four is taken before ReLU: the same outputs and gradients, bit for
    bit, in a fifth less time.

    LeCun et al., *Gradient-Based Learning Applied to Document Recognition*, 1998, in the form usual for CIFAR-10.
    """
    if pixels not in (28, 32):
        raise ConfigError(f"a lenet does not fit pictures of {pixels} pixels: 28 or 32")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} is not possible: from 0, and less than 1")
    if classes < 1:
        raise ConfigError(f"{classes} classes are not possible: at least 1")
    rest = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(
        *(nn.Conv2d(colours, 6, 5, padding=(32 - pixels) // 2), nn.MaxPool2d(2), nn.ReLU()),  # 6 x 14 x 14
        *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),  # 16 x 5 x 5
        nn.Flatten(),
        *(nn.Linear(16 * 5 * 5, 120), nn.ReLU(), *rest),
        *(nn.Linear(120, 84), nn.ReLU(), *rest),
        nn.Linear(84, classes),
    )
