"""A model's weights and buffers as something that can be put aside and put back without copying."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of a model at one version."""

    parameters: list[Tensor]
    buffers: list[Tensor]


class ModelState:
    """The trained parameters and the buffers of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.buffers = list(model.buffers())

    @property
    def message_bytes(self) -> int:
        """What is sent when a worker downloads the model, or hands in a gradient and its float buffers."""
        tensors = self.parameters + [buffer for buffer in self.buffers if buffer.is_floating_point()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def parameters_data(self) -> list[Tensor]:
        return [parameter.data for parameter in self.parameters]

    def view(self) -> Snapshot:
        """The present values themselves: they change when the model does."""
        return Snapshot(self.parameters_data(), [buffer.data for buffer in self.buffers])

    def copy(self) -> Snapshot:
        """The present values, to keep."""
        with torch.no_grad():
            return Snapshot([p.detach().clone() for p in self.parameters], [b.detach().clone() for b in self.buffers])

    def swap_in(self, snapshot: Snapshot) -> None:
        """Let the model have the values of a snapshot: pointers move, nothing is copied."""
        for parameter, value in zip(self.parameters, snapshot.parameters, strict=True):
            parameter.data = value
        for buffer, value in zip(self.buffers, snapshot.buffers, strict=True):
            buffer.data = value

    def lend_buffers(self) -> list[Tensor]:
        """Let a pass work on a copy of the buffers. Returns the originals."""
        before = [buffer.data for buffer in self.buffers]
        for buffer in self.buffers:
            buffer.data = buffer.data.clone()
        return before

    def take_buffers_back(self, before: list[Tensor]) -> list[Tensor]:
        """Put the originals back. Returns what the pass made of its copies."""
        own = [buffer.data for buffer in self.buffers]
        for buffer, value in zip(self.buffers, before, strict=True):
            buffer.data = value
        return own

    def average_buffers(self, contributed: list[list[Tensor]]) -> None:
        """Float buffers become the mean of the contributors', whole numbers (counters) the largest."""
        for buffer, *own in zip(self.buffers, *contributed, strict=True):
            if not all(torch.equal(value, buffer) for value in own):
                stacked = torch.stack(own)
                buffer.data = stacked.mean(dim=0) if buffer.is_floating_point() else stacked.amax(dim=0)

    def gradients(self) -> list[Tensor]:
        """The gradients that backward passes left, zero where a parameter had no part in them."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def all_finite(tensors: list[Tensor]) -> tuple[bool, float]:
    """Whether every element is finite, and the common 2-norm (which may overflow where all elements are finite)."""
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))) if tensors else 0.0
    if norm < float("inf"):
        return True, norm
    return all(bool(tensor.isfinite().all()) for tensor in tensors), norm


def mixes_samples(model: nn.Module) -> bool:
    """Must a mini-batch be passed through the model by itself?

    So it must where outputs depend on the other samples of the batch (batch normalisation), and where a pass may change
    float buffers.
    """
    return any(buffer.is_floating_point() for buffer in model.buffers()) or any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()
    )
