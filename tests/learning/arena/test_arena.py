"""Slots for whole models in one memory, and blobs beside them."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from paceline.fleets.processes.memory import SharedMemory
from paceline.learning.arena.arena import ALIGNMENT, Layout, ParameterArena
from paceline.learning.arena.blobs import APART, Blobs

SAMPLES = 5


def mixed() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).double())
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.fill_(number + 0.5)
    return model


def arena_of(model: nn.Module, slots: int) -> ParameterArena:
    layout = Layout(list(model.parameters()), list(model.buffers()), SAMPLES)
    return ParameterArena(layout, torch.zeros(slots * layout.stride, dtype=torch.uint8))


def test_a_slot_has_a_place_for_every_parameter_buffer_and_loss() -> None:
    model = mixed()
    arena = arena_of(model, 3)
    slot = arena[1]
    assert [each.shape for each in slot.parameters] == [each.shape for each in model.parameters()]
    assert [each.dtype for each in slot.parameters] == [each.dtype for each in model.parameters()]
    assert [(each.shape, each.dtype) for each in slot.buffers] == [(each.shape, each.dtype) for each in model.buffers()]
    assert len(slot.losses) == SAMPLES
    for own, parameter in zip(slot.parameters, model.parameters(), strict=True):
        own.copy_(parameter.data)
    slot.buffers[2].fill_(7)
    slot.losses.fill_(0.25)
    slot.unused.fill_(1)
    for own, parameter in zip(slot.parameters, model.parameters(), strict=True):  # nothing wrote over anything else
        assert torch.equal(own, parameter.data)
    assert int(slot.buffers[2]) == 7
    assert not any(arena.bytes(other).any() for other in (0, 2))


def test_slots_begin_at_cache_lines_and_do_not_all_share_the_same_sets() -> None:
    layout = arena_of(mixed(), 1).layout
    assert layout.stride % ALIGNMENT == 0
    assert layout.stride // ALIGNMENT % 2 == 1
    assert all(place.begin % ALIGNMENT == 0 for place in (*layout.vectors, *layout.buffers, layout.losses))


def test_one_matrix_of_each_type_has_a_row_for_each_slot() -> None:
    model = mixed()
    arena = arena_of(model, 4)
    for number in range(4):
        for vector in arena[number].vectors:
            vector.fill_(number)
    floats, doubles = arena.matrices(1)
    assert (floats.dtype, doubles.dtype) == (torch.float32, torch.float64)
    assert floats[:, 0].tolist() == doubles[:, -1].tolist() == [1, 2, 3]


def test_a_slot_takes_the_weights_and_buffers_of_another() -> None:
    arena = arena_of(mixed(), 2)
    for vector in arena[0].vectors:
        vector.fill_(1.5)
    arena[0].buffers[0].fill_(3.0)
    arena[0].losses.fill_(9.0)
    arena[1].take(arena[0])
    assert all((vector == 1.5).all() for vector in arena[1].vectors)
    assert (arena[1].buffers[0] == 3.0).all()
    assert not arena[1].losses.any()


def test_a_report_sums_the_losses_and_measures_the_gradient() -> None:
    slot = arena_of(nn.Linear(2, 1, bias=False), 1)[0]
    slot.vectors[0].copy_(torch.tensor([3.0, 4.0]))
    slot.losses.copy_(torch.arange(5.0))
    assert slot.report(3) == (3, 3.0, 5.0, 3, 0)
    assert slot.report(1, 8.0, unused=2) == (1, 0.0, 5.0, 8.0, 2)


def test_a_blob_comes_back_as_it_was_put() -> None:
    blobs = Blobs()
    try:
        content = {"tensor": torch.arange(6.0).view(2, 3), "array": np.arange(3), "function": lambda value: value + 1}
        blobs.put(2, 17, content)
        found = blobs.get(2, 17)
        assert torch.equal(found["tensor"], content["tensor"])  # type: ignore[arg-type]
        assert found["array"].tolist() == [0, 1, 2]
        assert found["function"](1) == 2
        assert blobs.get(2, 16) is None  # another number
        assert blobs.get(3, 17) is None  # another slot
    finally:
        blobs.close()


def test_a_blob_goes_from_one_file_to_another() -> None:
    one, other = Blobs(), Blobs()
    try:
        one.put(0, 4, ["content"])
        packed = one.packed(0, 4)
        assert packed is not None
        other.put_packed(5, 4, packed)
        assert other.get(5, 4) == ["content"]
    finally:
        one.close()
        other.close()


def test_whoever_reads_a_blob_that_is_being_replaced_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs()
    try:
        blobs.put(1, 1, "first")
        read = os.preadv

        def replaced(*arguments: object) -> int:
            monkeypatch.undo()
            blobs.put(1, 2, "second")
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "preadv", replaced)
        assert blobs.packed(1, 1) is None
        assert blobs.get(1, 2) == "second"
    finally:
        blobs.close()


def test_blobs_take_the_memory_of_what_is_written_only() -> None:
    blobs = Blobs()
    try:
        blobs.put(50, 0, bytes(1000))
        found = os.fstat(blobs.descriptor)
        assert found.st_size > 50 * APART
        assert found.st_blocks * 512 < 1 << 20
    finally:
        blobs.close()


def test_memory_of_large_slots_is_given_back() -> None:
    """And that of the others stays as it is."""
    layout = Layout([torch.zeros(1 << 19)], [], SAMPLES)
    memory = SharedMemory(3 * layout.stride)
    arena = ParameterArena(layout, memory.tensor())
    for number in range(3):
        arena[number].vectors[0].fill_(1.0)
    before = os.stat(memory.descriptor).st_blocks
    arena.release([1])
    assert os.stat(memory.descriptor).st_blocks < 0.7 * before
    assert [int(arena[number].vectors[0].sum()) == 1 << 19 for number in range(3)] == [True, False, True]
    os.close(memory.descriptor)
