"""What timing chooses about slots (who still reads which weights) must not show in a single bit of the model."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Step, Ticket, gradient
from paceline.data.batches import Shuffled
from paceline.fleets.processes.inline import ProcessInlineWorker
from paceline.learning.arena.arena import Promise
from paceline.learning.gradients.held import MODEL_SLOTS
from paceline.learning.gradients.server import GradientServer
from paceline.learning.gradients.shared import SharedGradients, SlotSums
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import workload_of

WORKERS, SAMPLES, STEPS = 4, 64, 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [(2,), (0, 1), (1, 3), (0, 1, 3, 5), (4,), (0, 2, 4)])
def test_a_sum_is_added_in_place_and_elsewhere_with_the_same_bits(rows: Sequence[int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    for size in (5, 17, 100, 1_003, 20_011):
        matrix = torch.randn(6, size, generator=generator, dtype=dtype)
        vector = torch.randn(size, generator=generator, dtype=dtype)
        parts = tuple((row, -0.1 / (row + 3)) for row in rows)
        here, elsewhere = vector.clone(), torch.full_like(vector, torch.nan)
        SlotSums([matrix]).add(parts, [here], [here])
        SlotSums([matrix]).add(parts, [vector], [elsewhere])
        assert torch.equal(here, elsewhere)
        expected = vector.double() + sum(factor * matrix[row].double() for row, factor in parts)
        torch.testing.assert_close(here.double(), expected, rtol=1e-5, atol=1e-6)


def test_sums_of_a_model_of_several_types_of_numbers() -> None:
    """Those of half precision are summed in floats, whatever comes after them."""
    generator = torch.Generator().manual_seed(1)
    types = (torch.float16, torch.float32, torch.bfloat16, torch.float64)
    matrices = [torch.randn(6, 17, generator=generator).to(each) for each in types]
    parts = ((0, 1 / 3), (1, 0.25), (4, -1.5))
    before = [torch.randn(17, generator=generator).to(each) for each in types]
    added, written = ([torch.full_like(each, 7.0) for each in before] for _ in range(2))
    SlotSums(matrices).add(parts, before, added)
    SlotSums(matrices).write(parts, written)
    for matrix, vector, more, alone in zip(matrices, before, added, written, strict=True):
        expected = torch.zeros(17, dtype=torch.float64)
        for row, factor in parts:
            expected += factor * matrix[row].double()
        close = max(1e-6, 2 * torch.finfo(matrix.dtype).eps)
        torch.testing.assert_close(alone.double(), expected, rtol=close, atol=close)
        torch.testing.assert_close(more.double(), vector.double() + expected, rtol=close, atol=close)


class Timing:
    """Who is slow, as an update finds it: the same tickets in the same order, handed in early or late."""

    def __init__(self, source: str, *, holds_slot: bool, holds_other: bool, interrupted: bool) -> None:
        self.source = source  # what the tickets have to read because of it
        self.holds_slot, self.holds_other, self.interrupted = holds_slot, holds_other, interrupted

    def run(self, optimizer: type[torch.optim.Optimizer], batch_norm: bool, together: int) -> dict[str, Tensor]:
        torch.manual_seed(3)
        layers = [nn.Linear(9, 21), *([nn.BatchNorm1d(21)] if batch_norm else []), nn.Tanh(), nn.Linear(21, 3)]
        x, y = torch.randn(SAMPLES, 9), torch.randint(3, (SAMPLES,))
        shards = list(np.arange(SAMPLES).reshape(WORKERS, -1))
        workload = workload_of(pl.Task(nn.Sequential(*layers), cross_entropy, train=(x, y)), shards, 8)
        fleet = pl.ProcessFleet(WORKERS, threads=1)
        worker, contributions = fleet.inline(workload, seed=0)
        assert isinstance(contributions, SharedGradients)
        recipe = Recipe(lambda p: optimizer(p, lr=0.05))  # type: ignore[call-arg]
        server = GradientServer(workload.state, recipe, Shuffled().open(shards, 8, 0), contributions, WORKERS)
        serials = iter(range(1000))
        bystanders = [self._bystander(server, worker, serials, number) for number in (2, 3)]
        sources: set[str] = set()
        for update in range(STEPS):
            self._reads(contributions, bystanders)
            tickets = [Ticket(next(serials), number, update) for number in range(together)]
            for ticket in tickets:
                if self.interrupted:
                    contributions.halt(Ticket(999, ticket.worker, 0))
                server.start(ticket)
                sources.add(kind_of(contributions.promised(ticket)))
            for ticket in tickets:
                worker.hand_in(ticket, 1)
            server.step(Step({ticket: Fraction(1, together) for ticket in tickets}))
        contributions.detach()
        assert sources == {self.source}
        return {name: value.clone() for name, value in server.model.state_dict().items()}

    def _bystander(
        self, server: GradientServer, worker: ProcessInlineWorker, serials: Iterator[int], number: int
    ) -> Ticket:
        """A ticket that is never used; while it is not handed in, its worker reads the weights."""
        ticket = Ticket(next(serials), number, 0)
        server.start(ticket)
        return ticket

    def _reads(self, contributions: SharedGradients, bystanders: Sequence[Ticket]) -> None:
        reading, slot = contributions._slots._reading, contributions._slots.model_slot
        for each in reading:
            each.clear()
        if self.holds_slot:
            reading[slot].add(bystanders[0])
        if self.holds_other:
            reading[1 - slot].add(bystanders[1])


def kind_of(promise: Promise) -> str:
    return "own" if promise.source == promise.slot else "slot" if promise.source < MODEL_SLOTS else "spare"


PROMPT = Timing("slot", holds_slot=False, holds_other=False, interrupted=False)


@pytest.mark.parametrize(
    "slow",
    [
        Timing("slot", holds_slot=True, holds_other=False, interrupted=False),  # the model moves to the other slot
        Timing("own", holds_slot=False, holds_other=True, interrupted=False),  # a ticket reads a copy in its own slot
        Timing("spare", holds_slot=False, holds_other=True, interrupted=True),  # and in the spare one
    ],
    ids=["other slot", "copy in its own slot", "copy in the spare slot"],
)
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_who_still_reads_the_weights_changes_no_bit(
    optimizer: type[torch.optim.Optimizer], batch_norm: bool, together: int, slow: Timing
) -> None:
    prompt, late = (timing.run(optimizer, batch_norm, together) for timing in (PROMPT, slow))
    assert {name for name in prompt if not torch.equal(prompt[name], late[name])} == set()


def test_the_weight_of_losses_comes_back_from_a_checkpoint() -> None:
    """With class weights it is not the number of samples."""
    made = []
    for _ in range(2):
        data = torch.ones(8, 3), torch.tensor([0, 0, 0, 1] * 2)
        task = pl.Task(nn.Linear(3, 2), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0])), data)
        workload = workload_of(task, [np.arange(8)], 4)
        made.append((workload, *pl.ProcessFleet(1).inline(workload, seed=0)))
    (_, worker, gradients), (_, _, restored) = made
    assert isinstance(gradients, SharedGradients)
    assert isinstance(restored, SharedGradients)
    ticket = Ticket(0, 0, 0)
    gradients.promise(ticket, (np.arange(4),), 0)
    worker.hand_in(ticket, 1)
    restored.restore(gradients.state())
    found = [each.evaluate({ticket: Fraction(1)}, ()).passes for each in (gradients, restored)]
    for (computed,) in found:
        assert computed.loss_weight == 1.0 + 1.0 + 1.0 + 5.0
    assert found[0][0].loss_sum == found[1][0].loss_sum


def test_the_spread_of_gradients_counts_a_part_as_the_mean_of_its_samples() -> None:
    """A worker that was recalled after one of four blocks has handed in a quarter of a sum over the mini-batch."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 2), torch.randn(8, 3), torch.tensor([0, 1] * 4)
    workload = workload_of(pl.Task(model, cross_entropy, (x, y)), [np.arange(8)], 8)
    worker, gradients = pl.ProcessFleet(1).inline(workload, seed=0)
    assert isinstance(gradients, SharedGradients)
    gradients.measure_spread = True
    ticket = Ticket(0, 0, 0, gradient(4))
    gradients.promise(ticket, (np.arange(8),), 0)
    worker.hand_in(ticket, 1)
    gradients.shorten(ticket, 1)
    found = gradients.evaluate({ticket: Fraction(1, 2)}, ())
    alone = torch.autograd.grad(cross_entropy(model(x[:2]), y[:2]), list(model.parameters()))
    expected = sum(float(each.square().sum()) for each in alone)
    assert found.mean_square == pytest.approx(expected / 2, rel=1e-5)
    assert found.norm == pytest.approx(math.sqrt(expected) / 2, rel=1e-5)
