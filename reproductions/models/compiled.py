r"""LeNet whose convolutions are compiled on this machine: two to three times as fast on one core, the same network.

For campaigns, which train LeNet for hours. ``pooled.cpp`` has one operation,

$$y = \max\bigl(0, \max_{2 \times 2}(w * x + b)\bigr),$$

a convolution of 5 by 5, the largest of each 2 by 2, and ReLU. Parameters, their names and first values are those of
``paceline``'s LeNet; sums are rounded otherwise, as they are by torch on another processor. Without a compiler
(``c++``) the network is torch's own, and a line on stderr says so.
"""

import ctypes
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from paceline.config.named_tasks import lenet as plain_lenet
from reproductions.datasets.cifar import ChannelsLast

SOURCE = Path(__file__).with_name("pooled.cpp")
COMMAND = ("c++", "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
KERNEL = 5
SHAPES = {"colours": (3, 32, 32), "grey": (1, 32, 32), "second": (14, 14, 6)}  # what each layer takes


def lenet(dropout: float = 0.0, colours: int = 3, pixels: int = 32) -> nn.Sequential:
    """How pictures are laid out, and LeNet-5 for ten classes; its weights are drawn from torch's generator."""
    plain = plain_lenet(dropout, colours=colours, pixels=pixels)
    if library() is None:
        return nn.Sequential(ChannelsLast(), plain)
    first, second = plain[0], plain[3]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    plain[0], plain[3] = Pooled(first, "grey" if colours == 1 else "colours"), Pooled(second, "second")
    for place in (1, 2, 4, 5):
        plain[place] = nn.Identity()  # which it does itself; the names of parameters stay
    return nn.Sequential(nn.Identity(), plain)


@cache
def library() -> ctypes.CDLL | None:
    """Compiled in two seconds, once a process."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "pooled.so"
        try:
            subprocess.run([*COMMAND, "-o", str(made), str(SOURCE)], check=True, capture_output=True, text=True)
        except OSError as error:
            print(f"no compiler, so LeNet takes two to three times as long: {error}", file=sys.stderr)
            return None
        except subprocess.CalledProcessError as error:
            print(f"LeNet could not be compiled and takes two to three times as long: {error.stderr}", file=sys.stderr)
            return None
        return ctypes.CDLL(str(made))


class Pooled(nn.Module):
    """A convolution, pooling and ReLU as one; it takes over the parameters of the convolution.

    Pictures come by number, colour, row and column to the first layer, which is ``grey`` or of ``colours``; the
    ``second`` takes what the first gives: by number, row, column and channel.
    """

    def __init__(self, convolution: nn.Conv2d, layer: str) -> None:
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self.layer, self.padding = layer, int(convolution.padding[0])

    def forward(self, pictures: Tensor) -> Tensor:
        if self.padding:
            pictures = pad(pictures, [self.padding] * 4)
        outputs: Tensor = _Pooled.apply(pictures, self.weight, self.bias, self.layer)  # type: ignore[no-untyped-call]
        return outputs if self.layer != "second" else outputs.permute(0, 3, 1, 2)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pictures: Tensor, weight: Tensor, bias: Tensor, layer: str) -> Tensor:
        pictures, weight, bias = pictures.contiguous(), weight.contiguous(), bias.contiguous()
        side = (pictures.shape[2] - KERNEL + 1) // 2
        outputs = torch.empty(len(pictures), side, side, len(weight))
        largest = torch.empty_like(outputs, dtype=torch.uint8)
        _call("forward", layer, pictures, weight, bias, outputs, largest)
        ctx.save_for_backward(pictures, weight, largest)
        ctx.layer = layer
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        pictures, weight, largest = ctx.saved_tensors
        if ctx.needs_input_grad[0] and ctx.layer != "second":
            raise NotImplementedError("the first layer has no gradient for its pictures")
        of_weight, of_bias = torch.empty_like(weight), weight.new_empty(len(weight))
        of_pictures = torch.empty_like(pictures) if ctx.layer == "second" else None
        given = (pictures, weight, largest, gradient.contiguous(), of_weight, of_bias, of_pictures)
        _call("backward", ctx.layer, *given)
        return of_pictures, of_weight, of_bias, None


def _call(direction: str, layer: str, pictures: Tensor, *others: Tensor | None) -> None:
    compiled = library()
    assert compiled is not None
    if pictures.dtype != torch.float32 or pictures.shape[1:] != SHAPES[layer]:
        raise ValueError(f"compiled for float32 of {SHAPES[layer]}, not for {pictures.dtype} of {pictures.shape[1:]}")
    given = [None if tensor is None else ctypes.c_void_p(tensor.data_ptr()) for tensor in (pictures, *others)]
    compiled[f"{direction}_{layer}"](ctypes.c_int64(len(pictures)), *given)
