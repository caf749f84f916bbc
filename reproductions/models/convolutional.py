"""The convolutional networks of the papers. Weights are drawn from torch's generator: seed it first."""

import math
from typing import Literal

from torch import nn

from paceline import ConfigError

Norm = Literal["group", "batch", "none"]
VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
GROUPS = 32  # Wu and He, Group Normalization, 2018: at full width


def nin(width: float = 1.0, dropout: float = 0.5, classes: int = 10) -> nn.Sequential:
    """Network in Network for pictures of 3 by 32 by 32: nine convolutions, the last one's means are the outputs.

    ``width`` multiplies the channels of every layer but the last, and ``dropout`` is the share that is left out behind
    each of the first two blocks. For 10 classes, full width has 966,986 parameters, ``width=1/8`` 17,058. Weights start
    as He et al., 2015, also where they are drawn anew.

    Lin, Chen and Yan, *Network in Network*, 2014, as EC-DNN trains it on CIFAR.
    """
    if not 1 / 96 <= width < math.inf:
        raise ConfigError(f"width={width} is not possible: at least 1/96, which leaves the third layer one channel")
    _check_dropout(dropout)
    _check_classes(classes)
    wide, middle, narrow = (round(channels * width) for channels in (192, 160, 96))
    return nn.Sequential(
        *_nin_block(3, (wide, middle, narrow), 5),
        *(nn.MaxPool2d(3, 2, padding=1), nn.Dropout(dropout)),
        *_nin_block(narrow, (wide, wide, wide), 5),
        *(nn.AvgPool2d(3, 2, padding=1), nn.Dropout(dropout)),
        *_nin_block(wide, (wide, wide, classes), 3)[:-1],
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def _nin_block(channels: int, following: tuple[int, int, int], size: int) -> list[nn.Module]:
    """A convolution of so many pixels, and two of single ones."""
    layers: list[nn.Module] = []
    for number, after in enumerate(following):
        pixels = 1 if number else size
        layers += [_HeConvolution(channels, after, pixels, padding=pixels // 2), nn.ReLU()]
        channels = after
    return layers


class _HeConvolution(nn.Conv2d):
    """Torch's own first weights are so small that nine layers of them let nothing through."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def vgg11(width: float = 1.0, norm: Norm = "group", classes: int = 10) -> nn.Sequential:
    """VGG-11 for pictures of 3 by 32 by 32 with a single fully connected layer and no dropout.

    ``width`` multiplies the channels of every layer. For 10 classes, full width has 9,225,610 parameters without a
    ``norm`` and 9,231,114 with one behind each convolution; ``width=1/8`` has 145,210 and 145,898.

    Xu, *Live Gradient Compensation*, Sec. III-A, after Simonyan and Zisserman, 2015, which has no norm: ours to choose,
    since a learning rate of 0.1 is doubtful without one. The norm over groups of channels treats each sample alone; the
    one over the batch makes a gradient depend on which samples are computed together, and suffers from workers whose
    data differ. Groups are as many as 32 at full width, so the channels in each are as many at any width. Weights
    start as He et al., 2015 (fan out); those of the last layer with a standard deviation of 0.01; biases at 0.
    """
    if norm not in ("group", "batch", "none"):
        raise ConfigError(f'norm={norm!r} is unknown: choose from "group", "batch", "none"')
    if not 1 / 64 <= width < math.inf:
        raise ConfigError(f"width={width} is not possible: at least 1/64, which leaves the first layer one channel")
    _check_classes(classes)
    layers: list[nn.Module] = []
    channels = 3
    for layer in VGG11:
        if isinstance(layer, int):
            following = round(layer * width)
            layers += [nn.Conv2d(channels, following, 3, padding=1), *_norm(norm, following, width), nn.ReLU()]
            channels = following
        else:
            layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))
    for module in model:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


def _norm(norm: Norm, channels: int, width: float) -> list[nn.Module]:
    if norm == "group":
        return [nn.GroupNorm(math.gcd(channels, max(1, round(GROUPS * width))), channels)]
    return [nn.BatchNorm2d(channels)] if norm == "batch" else []


def _check_classes(classes: int) -> None:
    if classes < 1:
        raise ConfigError(f"{classes} classes are not possible: at least 1")


def _check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} is not possible: from 0, and less than 1")
