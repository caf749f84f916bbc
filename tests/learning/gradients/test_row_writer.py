"""Gradients of a large model are written to the row as they come: the same bits as all at once."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline.data.samples import TensorSamples
from paceline.learning.arena.arena import Layout, ParameterArena, Report, Slot
from paceline.learning.gradients.placement import RowWriter
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import SampleLoss


class Words(nn.Module):
    """An embedding, a matrix that is used twice, statistics, and a parameter that is never used."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, sparse=sparse)
        self.twice = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, words: Tensor) -> Tensor:
        outputs: Tensor = self.twice(self.norm(self.twice(self.words(words)).relu()))
        return outputs


def loss_of_all(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of no single sample."""
    return cross_entropy(outputs, targets) * outputs.std()


def computed(loss: Callable[..., Tensor], units: int, *, sparse: bool, in_place: bool) -> tuple[Slot, int, Report]:
    torch.manual_seed(0)
    model = Words(sparse=sparse)
    parameters = list(model.parameters())
    layout = Layout(parameters, list(model.buffers()), 12)
    arena = ParameterArena(layout, torch.zeros(2 * layout.stride, dtype=torch.uint8))
    source, row = arena[0], arena[0 if in_place else 1]
    for values, parameter in zip(source.parameters, parameters, strict=True):
        values.copy_(parameter.data)
    if not in_place:
        row.vectors[0].fill_(7.0)  # of a former ticket
    samples = TensorSamples(torch.arange(12) % 7, torch.arange(12) % 4)
    work = GradientWork(model, parameters, samples, SampleLoss(loss, samples))
    done, report = work.compute(source, row, np.arange(12), units=units, seed=0, go_on=lambda block: True)
    return row, done, report


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0, 4.0])), loss_of_all])
def test_the_row_is_the_same(
    loss: Callable[..., Tensor], units: int, sparse: bool, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks too, and where the weights lie in the row itself, which must not be written before the end."""
    plain, *told = computed(loss, units, sparse=sparse, in_place=in_place)
    monkeypatch.setattr(RowWriter, "of", RowWriter)
    written, *also_told = computed(loss, units, sparse=sparse, in_place=in_place)
    assert told == also_told
    assert all(map(torch.equal, plain.parameters, written.parameters))
    assert all(map(torch.equal, plain.buffers, written.buffers))
    assert plain.unused.tolist() == written.unused.tolist()
    assert plain.unused.sum() == 1
    assert torch.equal(plain.losses, written.losses)


def test_hooks_of_parameters_see_whole_gradients() -> None:
    """So their gradients are not taken away from them."""
    parameters = list(nn.Linear(3, 3).parameters())
    assert RowWriter.of(parameters) is None
    assert RowWriter.of(parameters, least=1) is not None
    hooked = list(nn.Linear(3, 3).parameters())
    hooked[0].register_post_accumulate_grad_hook(lambda parameter: None)  # type: ignore[no-untyped-call]
    assert RowWriter.of(hooked, least=1) is None
