"""Data that are drawn at random each time; imported by worker processes, and so without scikit-learn."""

import random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Shaken(Dataset[tuple[Tensor, Tensor]]):
    """Fixed samples of two classes, each time scaled by random numbers of torch, numpy and Python."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(96, 6, generator=generator, dtype=torch.float64)
        self.labels = (self.inputs[:, 0] > 0).long()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        factor = float(np.random.rand()) * random.random() * float(torch.rand(()))
        return self.inputs[index] * factor, self.labels[index]
