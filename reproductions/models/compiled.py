"""LeNet that is compiled on this machine: several times as fast on one core as torch's, the same network.

For campaigns, which train LeNet for hours. ``lenet.cpp`` and ``layers.h`` have the whole network as one operation,
forwards and backwards. Parameters, their names and first values are those of ``paceline``'s LeNet; sums are rounded
otherwise, as they are by torch on another processor. Masks of dropout are others than torch's, of the same
distribution. Without a compiler (``c++``) the network is torch's own, and a line on stderr says so.
"""

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from paceline.config.named_tasks import lenet as plain_lenet
from reproductions.datasets.cifar import ChannelsLast

SOURCE = Path(__file__).with_name("lenet.cpp")
# without predictive commoning, which keeps pixels for the next row in registers that the sums need
COMMAND = ("c++", "-O3", "-march=native", "-fno-predictive-commoning", "-std=c++17", "-shared", "-fPIC")
COLOURS = (1, 3)  # of the pictures that it is compiled for
PIXELS = 32  # with their border
HIDDEN = 120 + 84  # units that dropout may leave out
CLASSES = 10
PARAMETERS = 10


def lenet(dropout: float = 0.0, colours: int = 3, pixels: int = 32) -> nn.Sequential:
    """How pictures are laid out, and LeNet-5 for ten classes; its weights are drawn from torch's generator."""
    plain = plain_lenet(dropout, colours=colours, pixels=pixels)
    if library() is None:
        return nn.Sequential(ChannelsLast(), plain)
    return nn.Sequential(nn.Identity(), LeNet(plain, dropout, (colours, pixels, pixels)))


@cache
def library() -> ctypes.CDLL | None:
    """Compiled in three seconds, once a process."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "lenet.so"
        try:
            subprocess.run([*COMMAND, "-o", str(made), str(SOURCE)], check=True, capture_output=True, text=True)
        except OSError as error:
            print(f"no compiler, so LeNet takes several times as long: {error}", file=sys.stderr)
            return None
        except subprocess.CalledProcessError as error:
            print(f"LeNet could not be compiled and takes several times as long: {error.stderr}", file=sys.stderr)
            return None
        compiled = ctypes.CDLL(str(made))
    number, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
    compiled.room.argtypes, compiled.room.restype = [number], number
    compiled.draw.argtypes = [number, ctypes.c_uint64, real, pointer]
    compiled.forward.argtypes = [number, number, number, pointer, pointer, pointer, number, pointer, pointer]
    compiled.backward.argtypes = [number, number, number, pointer, pointer, real, pointer, pointer, pointer]
    return compiled


class LeNet(nn.Module):
    """The layers of torch's LeNet, of which it takes over the parameters, as one operation.

    It calls no layer by itself, and so no hooks of layers. Pictures come by number, colour, row and column.
    """

    def __init__(self, plain: nn.Sequential, dropout: float, shape: tuple[int, int, int]) -> None:
        super().__init__()
        if shape[0] not in COLOURS:
            raise ValueError(f"compiled for pictures of 1 or 3 colours, not of {shape[0]}")
        for name, layer in plain.named_children():
            self.add_module(name, layer)
        self.dropout, self.shape = dropout, shape

    def forward(self, pictures: Tensor) -> Tensor:
        layers = [each for each in self._modules.values() if isinstance(each, nn.Conv2d | nn.Linear)]
        parameters = [each for layer in layers for each in (layer.weight, layer.bias) if each is not None]
        if pictures.shape[1:] != self.shape or any(each.dtype != torch.float32 for each in (pictures, *parameters)):
            other = f"{pictures.dtype} of {tuple(pictures.shape[1:])} and parameters of {parameters[0].dtype}"
            raise ValueError(f"compiled for float32 of {self.shape}, not for {other}")
        share = self.dropout if self.training else 0.0
        masks = drawn_masks(len(pictures), share) if share else None
        keeps = torch.is_grad_enabled() and any(each.requires_grad for each in (pictures, *parameters))
        given = (pictures, masks, 1 / (1 - share), keeps, *parameters)
        outputs: Tensor = _LeNet.apply(*given)  # type: ignore[no-untyped-call]
        return outputs


def drawn_masks(pictures: int, share: float) -> Tensor:
    """What dropout multiplies each hidden unit of each picture by, drawn from a number of torch's generator."""
    masks = torch.empty(pictures, HIDDEN)
    _compiled().draw(pictures, int(torch.randint(2**63 - 1, ())), share, masks.data_ptr())
    return masks


class _LeNet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pictures: Tensor, masks: Tensor | None, scale: float, keeps: bool, *parameters: Tensor
    ) -> Tensor:
        pictures, parameters = pictures.contiguous(), tuple(each.contiguous() for each in parameters)
        compiled = _compiled()
        blocks = torch.empty(compiled.room(len(pictures) if keeps else 1), dtype=torch.uint8)
        outputs = torch.empty(len(pictures), CLASSES)
        drawn = None if masks is None else masks.data_ptr()
        given = (*_described(pictures), _addresses(parameters), drawn, keeps, blocks.data_ptr(), outputs.data_ptr())
        compiled.forward(*given)
        ctx.save_for_backward(pictures, blocks, *parameters)
        ctx.scale = scale
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[0]:
            raise NotImplementedError("the network has no gradient for its pictures")
        pictures, blocks, *parameters = ctx.saved_tensors
        gradient, found = gradient.contiguous(), [torch.empty_like(each) for each in parameters]
        given = (_addresses(parameters), ctx.scale, blocks.data_ptr(), gradient.data_ptr(), _addresses(found))
        _compiled().backward(*_described(pictures), *given)
        return None, None, None, None, *found


def _compiled() -> ctypes.CDLL:
    compiled = library()
    assert compiled is not None
    return compiled


def _described(pictures: Tensor) -> tuple[int, int, int, int]:
    """How many colours and pictures there are, how wide their border is to be, and where they are."""
    count, colours, side, _ = pictures.shape
    return colours, count, (PIXELS - side) // 2, pictures.data_ptr()


def _addresses(tensors: Iterable[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * PARAMETERS)(*[each.data_ptr() for each in tensors])
