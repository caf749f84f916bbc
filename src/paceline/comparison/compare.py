"""Several strategies compared on a task of your own, from Python."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

from paceline.comparison.jobs import outcomes_of, watched
from paceline.comparison.plan import Job, Plan
from paceline.comparison.pool import usable_cores
from paceline.comparison.results import Comparison, comparison_of
from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import as_kind, as_path, nearest, shown
from paceline.data.partition import deal
from paceline.engine.arguments import check_arguments, strategy_for, whole
from paceline.engine.limits import target_of
from paceline.engine.spec import RunSpec
from paceline.fleets.base import Fleet
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.learning.optimizers import takes_names
from paceline.learning.task import Task
from paceline.randomness import stream
from paceline.storage.description import describe, spell
from paceline.storage.run_directory import RunDirectory, check_new
from paceline.strategies.names import choice_of, parse_strategy
from paceline.strategies.synchronous import Synchronous

MakeTask = Callable[[int], Task]
MakeAnyOptimizer = Callable[..., Optimizer]
# arguments of ``train`` that several runs cannot share
OF_ONE_RUN = ("checkpoint", "resume", "tensorboard", "callbacks")
CHOSEN = ("task", "strategy", "fleet", "optimizer", "seed")  # arguments of a run that have their own name here


@dataclass(frozen=True)
class WithRate:
    """An optimizer that is made with a given learning rate."""

    make: MakeAnyOptimizer
    lr: float

    def __call__(self, parameters: Iterable[Parameter]) -> Optimizer:
        return self.make(parameters, self.lr)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the user's function: by the name of its first argument it may ask for names of parameters."""
        return inspect.signature(self.make)


@dataclass(frozen=True)
class FromArguments:
    """Runs as Python describes them."""

    task: Task | MakeTask
    strategies: Sequence[Strategy]
    fleet: Fleet
    optimizer: MakeAnyOptimizer
    rates: Sequence[float]
    seeds: Sequence[int]
    others: Mapping[str, Any]

    def check(self) -> Task:
        first = self.seeds[0]
        task = self._task(first)
        for strategy in range(len(self.strategies)):
            for lr in self.rates or (None,):
                spec = self._spec(task, Job(strategy, lr, first))
        for seed in self.seeds:
            deal(
                spec.partition, task.training_samples(), self.fleet.workers, spec.batch_size, stream(seed, "partition")
            )
        for lr in self.rates or (None,):
            self._check_optimizer(task, lr)
        return task

    def prepare(self, job: Job) -> tuple[Task, RunSpec]:
        task = self._task(job.seed)
        return task, self._spec(task, job)

    def place(self, _: Job, path: Path) -> RunDirectory:
        return RunDirectory(path)

    def _task(self, seed: int) -> Task:
        if isinstance(self.task, Task):
            return self.task
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: object = self.task(seed)
        if not isinstance(made, Task):
            raise ConfigError(f"task= made {shown(made)} of the seed {seed}, and not a paceline.Task")
        return made

    def _spec(self, task: Task, job: Job) -> RunSpec:
        optimizer = self.optimizer if job.lr is None else WithRate(self.optimizer, job.lr)
        strategy = self.strategies[job.strategy]
        return RunSpec.of(
            task, strategy=strategy, fleet=self.fleet, optimizer=optimizer, seed=job.seed, **self.others
        )  # fmt: skip

    def _check_optimizer(self, task: Task, lr: float | None) -> None:
        given = () if lr is None else (lr,)
        try:
            named = takes_names(self.optimizer)
            self.optimizer(list(task.model.named_parameters() if named else task.model.parameters()), *given)
        except TypeError as error:
            wanted = "parameters" if lr is None else "parameters, lr"
            example = f"optimizer=lambda {wanted}: torch.optim.SGD(parameters, lr={'0.1' if lr is None else 'lr'})"
            raise ConfigError(f"optimizer= cannot be called with {wanted} ({error}): give {example}") from None


def compare(
    task: Task | MakeTask,
    *,
    strategies: Sequence[Strategy | str] | Mapping[str, Strategy | str],
    fleet: Fleet,
    optimizer: MakeAnyOptimizer,
    learning_rates: Sequence[float] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    target: float | None = None,
    metric: str | None = None,
    below: float | None = None,
    above: float | None = None,
    directory: Path | str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    **as_in_train: Any,
) -> Comparison:
    """Train ``task`` under several strategies, with the same seeds, and tell which is the fastest, and why.

    task            a ``Task``, or a function from a seed to one: then each seed has first weights of its own. Torch is
                    seeded before each call
    strategies      strategies or their names, as in ``"lgc:quorum=5,blocks=4"``; a mapping gives them labels
    optimizer       from parameters to a torch optimizer; with ``learning_rates``, from parameters and a learning rate
    learning_rates  each strategy is trained with each of them, and shown with its best
    seeds           with the same seed all strategies have the same mini-batches and the same delays: they are compared
                    in pairs
    target          the accuracy whose time is compared; or ``metric`` with ``below`` or ``above``, as in
                    ``metric="perplexity", below=20.0``. By default that of ``stop``
    directory       keep a run directory for each run in there
    jobs            runs at a time, each in a process of its own; by default one per core for simulated workers, and one
                    for real ones, whose times others would disturb
    progress        False: show nothing on the way
    as_in_train     ``stop``, ``batch_size``, ``partition`` and other arguments of ``train``, but not those that belong
                    to one run: ``callbacks``, ``checkpoint``, ``resume``, ``tensorboard``. A callback keeps what it saw
                    of its run, and the runs here are made at the same time, in several processes

    The result has a ``table``, a ``verdict``, ``plot()`` and ``report(path)``; ``print`` shows the first two.
    """
    check_arguments(fleet=fleet)
    others = _others(as_in_train)
    labelled = _labelled(strategies, fleet)
    rates = _rates(learning_rates)
    chosen = _seeds(seeds)
    if not isinstance(task, Task) and not callable(task):
        check_arguments(task=task)
    place = None if directory is None else as_path("directory", directory)
    if place is not None:
        check_new(place)
    rules = list(labelled.values())
    plan = Plan(
        source=FromArguments(task, rules, fleet, optimizer, rates, chosen, others),
        about=f"{_name(task)}, {fleet.workers} workers",
        labels=list(labelled),
        texts=list(labelled),
        rules=rules,
        workers=fleet.workers,
        reference=next((i for i, rule in enumerate(rules) if isinstance(rule, Synchronous)), None),
        rates=rates,
        seeds=chosen,
        target=target_of(target, metric, below, above, others.get("stop")),
        settings={
            "strategy": list(labelled),
            "fleet": describe(fleet),
            "learning_rates": list(rates),
            "seeds": list(chosen),
            **{name: describe(value) for name, value in others.items()},
        },
        simulated=isinstance(fleet, SimulatedFleet),
        directory=place,
    )
    processes = min(_processes(jobs, plan), len(plan.jobs))
    outcomes = outcomes_of(plan, plan.jobs, processes)
    return comparison_of(plan, list(outcomes if progress is False else watched(outcomes, len(plan.jobs), processes)))


def _others(given: Mapping[str, Any]) -> Mapping[str, Any]:
    known = [name for name in inspect.signature(RunSpec.of).parameters if name not in CHOSEN]
    for name in given:
        if name in OF_ONE_RUN:
            raise ConfigError(f"compare() makes several runs, which cannot share {name}=: give it to paceline.train")
        if name not in known:
            raise ConfigError(f"compare() has no argument {name!r}: {nearest(name, known)}")
    return given


def _labelled(strategies: Sequence[Strategy | str] | Mapping[str, Strategy | str], fleet: Fleet) -> dict[str, Strategy]:
    """The strategies by their labels: the short name on the command line, or what is given."""
    if isinstance(strategies, str) or not isinstance(strategies, Sequence | Mapping) or not strategies:
        raise ConfigError(f'strategies={shown(strategies)}: give a list of them, such as ["ssgd", "asgd"]')
    pairs = strategies.items() if isinstance(strategies, Mapping) else [(None, each) for each in strategies]
    labelled: dict[str, Strategy] = {}
    for label, each in pairs:
        rule = strategy_for(each, fleet)
        name = label or _label(each)
        if name in labelled:
            raise ConfigError(f"strategies: {name} is given twice")
        labelled[name] = rule
    return labelled


def _label(strategy: Strategy | str) -> str:
    choice = parse_strategy(strategy) if isinstance(strategy, str) else choice_of(strategy)
    return spell(describe(strategy)) if choice is None else choice.short


def _rates(rates: Sequence[float] | None) -> tuple[float, ...]:
    if rates is None:
        return ()
    try:
        values = sorted({float(as_kind(rate, (float,))) for rate in rates})
    except TypeError:
        values = []
    if not values or not all(0 < rate < float("inf") for rate in values):
        raise ConfigError(f"learning_rates={shown(rates)}: give positive numbers, such as [0.1, 0.3, 1.0]")
    return tuple(values)


def _seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ConfigError(f"seeds={shown(seeds)}: give different whole numbers, such as [0, 1, 2]")
    chosen = tuple(whole("seed", seed) for seed in seeds)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(f"seeds={shown(seeds)}: give different whole numbers, such as [0, 1, 2]")
    return chosen


def _processes(jobs: int | None, plan: Plan) -> int:
    if jobs is None:
        return usable_cores() if plan.simulated else 1
    try:
        number = int(as_kind(jobs, (int,)))
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"jobs={shown(jobs)} is not possible: a whole number from 1, how many runs at a time")
    return number


def _name(task: Task | MakeTask) -> str:
    if isinstance(task, Task):
        return type(task.model).__name__
    name: str = getattr(task, "__name__", type(task).__name__)
    return "task" if name == "<lambda>" else name
