"""Gradients that stay on their machines, without a network: sums by machine, shards, losses, checkpoints."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Event, Joined, Step, Ticket
from paceline.data.samples import TensorSamples
from paceline.fleets.processes.inline import ProcessInlineWorker, inline_on, opened_on
from paceline.fleets.processes.places import Places
from paceline.learning.arena.arena import Layout, Slot
from paceline.learning.contributions import SharedContributions
from paceline.learning.gradients.distributed import DistributedGradients, MemoryMachine
from paceline.learning.gradients.server import GradientServer
from paceline.learning.gradients.sharded import ShardedGradients, range_of
from paceline.learning.gradients.sharding import (
    Bounds,
    ParameterShard,
    ShardSettings,
    Squares,
    block_of,
    bounds_of,
    norm_of,
    squares,
)
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import SampleLoss
from paceline.learning.model_state import ModelState
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import Workload, workload_of
from paceline.storage.checkpoint import read_checkpoint, write_checkpoint
from paceline.trace.format import MachineWorkers, NonFinite
from support.digits import digits_task

SLOW = pl.delays.LogNormal(1.0, 0.4)
RULES = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.FastestK(3),
    pl.LiveCompensation(3, blocks=4),
    pl.Grouped([[0, 1, 2], [3, 4]]),
]
OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
MIXED = [[0, 3], [1], [2, 4]]
ALONE = [[0], [1], [2], [3], [4]]
TOGETHER = [[0, 1, 2, 3, 4]]


class Net(nn.Module):
    """Two types of numbers, batch normalisation, and a head that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(64, 33), nn.BatchNorm1d(33)
        self.last = nn.Linear(33, 10).double()
        self.unused = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(inputs.float()))).double())
        return out


class PieceMachine(MemoryMachine):
    """A machine in memory that hands out ranges, as agents do."""

    bounds: Sequence[Bounds] = ()

    def ask_pieces(self, parts: Any, ends: Sequence[int]) -> tuple[Sequence[Any], Callable[[], Sequence[Any]]]:
        vectors, found = self.ask(parts, ends)()
        return [range_of(vectors, each) for each in self.bounds], lambda: found

    def deliver_pieces(self, slot: int, pieces: Sequence[Any], model: Slot) -> None:
        own = self.arena[slot]
        for piece, each in zip(pieces, self.bounds, strict=True):
            for to, values in zip(range_of(own.vectors, each), piece, strict=True):
                to.copy_(values)
        for buffer, values in zip(own.buffers, model.buffers, strict=True):
            buffer.copy_(values)


class MemoryShards:
    """The shards of a server in this process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._shards: list[ParameterShard] = []

    def begin(self, settings: Sequence[ShardSettings], model: Slot, bounds: Sequence[Bounds]) -> None:
        every = zip(settings, bounds, strict=True)
        self._shards = [ParameterShard(each, range_of(model.vectors, own)) for each, own in every]

    def add(self, partials: Sequence[Any]) -> Sequence[Squares]:
        return [shard.add([pieces[number] for pieces in partials]) for number, shard in enumerate(self._shards)]

    def step(
        self, groups: Sequence[Mapping[str, Any]], scale: float | None, unused: Collection[int], check: bool
    ) -> bool:
        finite = [shard.step(groups, scale, unused, check=check) for shard in self._shards]
        return all(finite)

    def weights(self) -> Sequence[Any]:
        return [[value.clone() for value in shard.values] for shard in self._shards]

    def fetch(self, model: Slot, bounds: Sequence[Bounds]) -> None:
        for shard, each in zip(self._shards, bounds, strict=True):
            for own, value in zip(range_of(model.vectors, each), shard.values, strict=True):
                own.copy_(value)

    def optimizer_state(self) -> Sequence[Mapping[int, Mapping[str, Any]]]:
        return [shard.optimizer_state() for shard in self._shards]

    def restore(self, model: Slot, bounds: Sequence[Bounds], state: Mapping[int, Mapping[str, Any]]) -> None:
        for shard, each in zip(self._shards, bounds, strict=True):
            shard.restore(range_of(model.vectors, each), state)


class Group:
    """Simulated events; what arrives is computed on its machine. ``after`` is asked after each event."""

    def __init__(self, workers: Any, inline: ProcessInlineWorker, after: Callable[[Event], None]) -> None:
        self._workers, self.inline, self._after = workers, inline, after
        self.about = workers.about
        self.start, self.recall, self.wake_at = workers.start, workers.recall, workers.wake_at

    def wait(self) -> Sequence[Event]:
        events: Sequence[Event] = self._workers.wait()
        for event in events:
            if isinstance(event, Arrived):
                self.inline.hand_in(event.ticket, event.done)
            elif isinstance(event, Joined):
                self.inline.join(event.worker)
            self._after(event)
        return events

    def halt(self, ticket: Ticket) -> None:
        self.inline.halt(ticket)
        self._workers.halt(ticket)

    def close(self) -> None:
        self.inline.close()


@dataclass(frozen=True)
class OnMachines:
    """Simulated workers on machines in memory, with a server of so many shards."""

    machines: Sequence[Sequence[int]]
    shards: int = field(default=1, repr=False)
    after: Callable[[DistributedGradients, Event], None] = field(default=lambda held, event: None, repr=False)
    threads: int = 1
    wire_dtype: torch.dtype | None = None

    @property
    def workers(self) -> int:
        return sum(map(len, self.machines))

    def launch(self, workload: Workload, seed: int) -> tuple[Group, SharedContributions]:
        placed = MachineWorkers(tuple(map(tuple, self.machines)))
        inline, held = inline_on(self, placed, workload, seed)  # type: ignore[arg-type]
        assert isinstance(held, DistributedGradients)
        if self.shards > 1:
            inline, held = self._sharded(workload, seed)
        events = pl.SimulatedFleet(SLOW, workers=self.workers).open(seed)
        return Group(events, inline, lambda event: self.after(held, event)), held

    def _sharded(self, workload: Workload, seed: int) -> tuple[ProcessInlineWorker, ShardedGradients]:
        state = workload.state
        state.swap_in(state.copy())
        layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged))
        made = [PieceMachine.in_memory(each, layout) for each in self.machines]
        pieces = []
        for machine in made:
            own = PieceMachine(machine.workers, machine.arena)
            own.bounds = bounds_of(layout, self.shards)
            pieces.append(own)
        held = ShardedGradients(state, layout, workload.logged, pieces, MemoryShards(self.shards))
        places = Places()
        return ProcessInlineWorker(self, opened_on(pieces, workload, places), held, seed, places=places), held  # type: ignore[arg-type]


def train(
    strategy: pl.strategy.Strategy, fleet: Any, optimizer: str = "momentum", updates: int = 8, **options: Any
) -> pl.Run:
    task = options.pop("task", None) or replace(digits_task(Net()), evaluate=lambda model: {"loss": 0.0})
    return pl.train(
        task, strategy=strategy, fleet=fleet, optimizer=OPTIMIZERS[optimizer], stop=pl.Stop(updates=updates),
        batch_size=16, progress=False, **options,
    )  # fmt: skip


def same(one: pl.Run, other: pl.Run) -> bool:
    states = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@settings(max_examples=8, deadline=None)
@given(
    strategy=st.sampled_from(RULES),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    machines=st.sampled_from([MIXED, ALONE, TOGETHER]),
    clip_norm=st.sampled_from([None, 0.5]),
)
def test_the_number_of_shards_changes_no_bit(
    strategy: pl.strategy.Strategy, optimizer: str, machines: Sequence[Sequence[int]], clip_norm: float | None
) -> None:
    one, two, four = (
        train(strategy, OnMachines(machines, shards), optimizer, clip_norm=clip_norm) for shards in (1, 2, 4)
    )
    assert same(one, two)
    assert same(one, four)


@pytest.mark.parametrize("strategy", [*RULES[:3], pl.LiveCompensation(3, recall=False, blocks=1)], ids=repr)
def test_machines_change_no_more_than_the_last_digits(strategy: pl.strategy.Strategy) -> None:
    """Against the simulator's own gradients, each computed by itself (and not in blocks, for batch normalisation)."""
    plain = train(strategy, pl.SimulatedFleet(SLOW, workers=5, evaluation="exact"))
    for machines in (MIXED, TOGETHER):
        found = train(strategy, OnMachines(machines))
        for (name, one), other in zip(plain.model.state_dict().items(), found.model.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, msg=name)


def test_a_sum_is_added_up_in_the_order_of_machines() -> None:
    layout = Layout([torch.zeros(5)], [], samples=1)
    machines = [MemoryMachine.in_memory(workers, layout) for workers in ([0, 2], [1])]
    values = [0.1, 0.7, 1e7]
    for worker, machine, row in ((0, 0, 0), (2, 0, 1), (1, 1, 0)):
        first = 2 + len(machines[machine].workers)
        machines[machine].arena[first + row].vectors[0].fill_(values[worker])
    third = float(Fraction(1, 3))
    partial = [m.sum(parts)[0] for m, parts in zip(machines, [((0, third), (1, third)), ((0, third),)], strict=True)]
    by_hand = torch.tensor(values[0]) * third + torch.tensor(values[2]) * third
    assert torch.allclose(partial[0], by_hand.expand(5))
    assert torch.equal((partial[0] + partial[1])[:1], (partial[0][:1] + torch.tensor([values[1]]) * third))


class ByHand:
    """A server whose tickets are given out and handed in by the test: two updates, the first keeps its tickets."""

    def __init__(self, fleet: OnMachines) -> None:
        task = digits_task(Net())
        shards = list(np.arange(100).reshape(5, -1))
        recipe = Recipe(OPTIMIZERS["adam"], clip_norm=0.5)
        workload = replace(workload_of(task, shards, 8), recipe=recipe)
        group, held = fleet.launch(workload, 0)
        self.inline, self.held = group.inline, held
        self.batches = pl.Shuffled().open(shards, 8, 0)
        self.server = GradientServer(workload.state, recipe, self.batches, held, 5)

    def first(self) -> None:
        for serial in range(5):
            self.server.start(Ticket(serial, serial, 0))
            self.inline.hand_in(Ticket(serial, serial, 0), 1)
        used = [Ticket(serial, serial, 0) for serial in range(3)]
        self.server.step(Step(dict.fromkeys(used, Fraction(1, 3)), tuple(used)))

    def second(self) -> dict[str, Tensor]:
        every = [Ticket(serial, serial, 0) for serial in range(5)]
        self.server.step(Step(dict.fromkeys(every, Fraction(1, 5))))
        self.server.start(Ticket(5, 4, 2))
        self.inline.hand_in(Ticket(5, 4, 2), 1)
        self.server.step(Step({Ticket(5, 4, 2): Fraction(1)}))
        return {name: value.clone() for name, value in self.server.model.state_dict().items()}


@pytest.mark.parametrize(("shards", "others"), [(1, 3), (3, 1), (2, 4)])
def test_a_checkpoint_of_any_number_of_shards_is_read_with_any_other(shards: int, others: int, tmp_path: Path) -> None:
    """With gradients that were handed in and are not used yet, and some that are kept."""
    one, other = ByHand(OnMachines(MIXED, shards)), ByHand(OnMachines(MIXED, others))
    one.first()
    write_checkpoint(tmp_path / "checkpoint", {"server": one.server.state(), "held": one.held.state()})  # type: ignore[attr-defined]
    state = read_checkpoint(tmp_path / "checkpoint")
    other.server.restore(state["server"])
    other.held.restore(state["held"])  # type: ignore[attr-defined]
    for parts in (one, other):
        parts.batches = pl.Shuffled().open(list(np.arange(100).reshape(5, -1)), 8, 1)
        parts.server._batches = parts.batches
    ours, theirs = one.second(), other.second()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class Branching(nn.Module):
    """The second layer is used only by samples that are above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rare = nn.Linear(1, 2), nn.Linear(1, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.always(inputs)
        return outputs + self.rare(inputs) if (inputs > 0).any() else outputs


def test_a_gradient_that_follows_one_without_some_parameters_in_its_slot_has_them() -> None:
    """A slot marks what is missing only where something is: the marks of a former ticket mean nothing."""
    samples = TensorSamples(torch.tensor([[-1.0], [-2.0], [1.0], [2.0]]), torch.tensor([0, 1, 0, 1]))
    model, loss = Branching(), SampleLoss(cross_entropy, samples)
    layout = Layout(list(model.parameters()), [], 2)
    machine = MemoryMachine.in_memory([0], layout)
    held = DistributedGradients(ModelState(model), layout, (), [machine])
    worker = Branching()
    work = GradientWork(worker, list(worker.parameters()), samples, loss)
    unused = []
    for serial, batch in enumerate(([0, 1], [2, 3])):
        ticket = Ticket(serial, 0, serial)
        held.promise(ticket, (np.array(batch),), serial)
        source, slot = held.promised(ticket).source, held.promised(ticket).slot
        row = machine.arena[slot]
        _, report = work.compute(machine.arena[source], row, np.array(batch), units=1, seed=0, go_on=lambda _: True)
        held.hand_in(ticket, report)
        if serial:
            assert held.state()["rows"].popitem()[1]["unused"] == []
        unused.append(list(held.evaluate({ticket: Fraction(1)}, ()).unused))
        held.settle([ticket])
        held.before_update()
    assert unused == [[2, 3], []]


def test_work_that_was_running_when_workers_came_to_other_machines_frees_no_slot_of_another() -> None:
    """A run that was resumed elsewhere: tickets of before are halted when others have slots there already."""
    workload = workload_of(digits_task(Net()), list(np.arange(60).reshape(3, -1)), 8)
    worker, held = inline_on(pl.RayFleet(3), MachineWorkers(((0, 2), (1,)), -1), workload, 0)
    running = [Ticket(serial, serial, 0) for serial in range(3)]
    for ticket in running:
        held.promise(ticket, (np.arange(8),), 0)
    worker.place(MachineWorkers(((0,), (1, 2)), -1))
    later = [Ticket(3 + each, each, 0) for each in range(3)]
    for ticket in later:
        held.promise(ticket, (np.arange(8),), 1)
    held.settle(running)
    again = [Ticket(6 + each, each, 0) for each in range(3)]
    for ticket in again:
        held.promise(ticket, (np.arange(8),), 2)
    for workers in ((0,), (1, 2)):
        slots = [held.promised(ticket).slot for ticket in (*later, *again) if ticket.worker in workers]
        assert len({*slots}) == len(slots) == 2 * len(workers)


def test_what_a_lost_machine_held_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """Worker 1 is alone on its machine, and what it hands in first is lost with it."""
    lost: list[Ticket] = []

    def lose(held: DistributedGradients, event: Event) -> None:
        if isinstance(event, Arrived) and event.ticket.worker == 1 and not lost:
            lost.append(event.ticket)
            held.machine_of(1).incarnation = 1  # type: ignore[misc]

    run = train(pl.Synchronous(), OnMachines(MIXED, after=lose), "sgd", updates=3)
    assert run.ended == "updates"
    assert [fact.ticket for fact in run.trace if isinstance(fact, NonFinite)] == lost
    assert "a step leaves out worker 1: its contribution was lost with its machine" in caplog.text
    first = next(fact for fact in run.trace if isinstance(fact, Step))
    assert lost[0] in first.weights


def test_a_step_of_which_everything_is_lost_moves_nothing() -> None:
    before: list[Tensor] = []

    def lose(held: DistributedGradients, event: Event) -> None:
        if isinstance(event, Arrived):
            held.machine_of(event.ticket.worker).incarnation += 1  # type: ignore[misc]

    def evaluate(model: nn.Module) -> dict[str, float]:
        before.append(next(model.parameters()).detach().clone())
        return {"loss": 0.0}

    task = replace(digits_task(Net()), evaluate=evaluate)
    run = train(pl.Asynchronous(), OnMachines(ALONE, after=lose), "sgd", updates=3, task=task)
    assert (run.ended, run.problem) == ("updates", None)
    assert all(torch.equal(before[0], each) for each in before)


def test_half_precision_between_machines_rounds_and_no_more() -> None:
    exact = train(pl.Synchronous(), OnMachines(MIXED), "sgd")
    rounded = train(pl.Synchronous(), OnMachines(MIXED, wire_dtype=torch.bfloat16), "sgd")
    one, other = (run.model.state_dict()["first.weight"] for run in (exact, rounded))
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, rtol=0.05, atol=0.01)


@given(elements=st.integers(1, 300_000), shards=st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_ranges_are_whole_blocks_and_cover_everything(elements: int, shards: int) -> None:
    layout = Layout([torch.empty(elements, device="meta")], [], samples=1)
    if shards > elements:
        with pytest.raises(ConfigError, match=f"shards={shards} are more than the {elements} parameters"):
            bounds_of(layout, shards)
        return
    bounds = [each[0] for each in bounds_of(layout, shards)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == elements
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    assert all(begin % block_of(elements) == 0 for begin, _ in bounds)


def test_the_norm_is_that_of_the_whole_vector() -> None:
    torch.manual_seed(0)
    vector = torch.randn(100_003)
    block = block_of(len(vector))
    assert norm_of([[squares(vector, block)]]) == pytest.approx(float(vector.double().norm()), rel=1e-12)
    vector[77] = torch.inf
    assert norm_of([[squares(vector, block)]]) == float("inf")
    vector[78] = torch.nan
    assert norm_of([[squares(vector, block)]]) != norm_of([[squares(vector, block)]])


def test_an_optimizer_that_cannot_be_cut_is_refused() -> None:
    task = replace(digits_task(Net()), evaluate=lambda model: {"loss": 0.0})
    with pytest.raises(ConfigError, match="NAdam is not known to: use one of SGD, Adam, AdamW, RMSprop, Adagrad"):
        pl.train(
            task, strategy=pl.Synchronous(), fleet=OnMachines(MIXED, 2), stop=pl.Stop(updates=1), progress=False,
            optimizer=torch.optim.NAdam,
        )  # fmt: skip
