"""What is compared: which runs there are, and how each is made, from a TOML file or from Python."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.config.file import Config, config_table
from paceline.core.errors import ConfigError
from paceline.core.fields import nearest
from paceline.engine.limits import Target
from paceline.fleets.simulated.fleet import SimulatedFleet

if TYPE_CHECKING:
    from paceline.engine.spec import RunSpec
    from paceline.learning.task import Task
    from paceline.look import Rule
    from paceline.storage.run_directory import RunDirectory

LONGEST_NAME = 80  # of a run's directory


class Job(NamedTuple):
    """One run to do: the index of a strategy of the plan, a learning rate (None: as configured), a seed."""

    strategy: int
    lr: float | None
    seed: int


class RunSource(Protocol):
    """Makes the runs of a plan. It is sent to the processes that do them."""

    def check(self) -> "Task":
        """Refuse, before anything is run or written, what could not be run; return the task of the first seed."""
        ...

    def prepare(self, job: Job, /) -> "tuple[Task, RunSpec]":
        """The task of one run, and everything else that its result depends on."""
        ...

    def place(self, job: Job, path: Path, /) -> "RunDirectory":
        """The directory of one run."""
        ...


@dataclass(frozen=True)
class Plan:
    """Several strategies on the same fleet, data and seeds, each with its best learning rate.

    about      data, model and number of workers, in words
    labels     of the strategies, and ``texts``: the same with their full names
    rules      the strategies themselves, for the colours of figures
    workers    the size of the fleet
    reference  the strategy that the others are compared with: the synchronous one, if there is one
    rates      learning rates to try; empty: the optimizer has its own
    settings   all of it as plain values, for JSON
    directory  where run directories are kept, if they are
    """

    source: RunSource
    about: str
    labels: Sequence[str]
    texts: Sequence[str]
    rules: "Sequence[Rule]"
    workers: int
    reference: int | None
    rates: Sequence[float]
    seeds: Sequence[int]
    target: Target | None
    settings: Mapping[str, Any]
    simulated: bool = True
    directory: Path | None = None

    @property
    def jobs(self) -> list[Job]:
        """All runs. Strategies alternate, so that the estimate of the remaining time is good."""
        rates: Sequence[float | None] = self.rates or (None,)
        strategies = range(len(self.labels))
        return [Job(strategy, lr, seed) for seed in self.seeds for lr in rates for strategy in strategies]

    @property
    def title(self) -> str:
        seeds = f"{len(self.seeds)} seeds, medians (range)" if len(self.seeds) > 1 else "one seed"
        return f"{self.about}, {seeds}"

    @property
    def words(self) -> list[str]:
        """How legends call the strategies: a label that somebody gave stays as it is."""
        from paceline.strategies.words import in_words

        return [in_words(label, self.workers) for label in self.labels]

    def name(self, job: Job) -> str:
        """The name of a run's directory."""
        label = re.sub(r"[^\w.=,+-]+", "-", self.labels[job.strategy]).strip("-")[:LONGEST_NAME]
        return "-".join([label, *([] if job.lr is None else [f"lr{job.lr:g}"]), f"seed{job.seed}"])

    def check(self) -> None:
        """Refuse what could not be run, and a target that no evaluation can tell of."""
        task = self.source.check()
        if self.target is None or self.target.metric == "loss":
            return
        from paceline.learning.generators import own_generators
        from paceline.learning.task import said_in_one_line

        with said_in_one_line(task), own_generators(self.seeds[0]):
            known = task.evaluator()(task.model)
        if self.target.metric not in known:
            name = self.target.metric
            raise ConfigError(f"{self.target.words} can never be reached: no evaluation returns {name!r}: "
                              f"{nearest(name, known)}")  # fmt: skip


@dataclass(frozen=True)
class FromConfig:
    """Runs as a TOML file describes them."""

    config: Config

    def check(self) -> "Task":
        from paceline.config.experiment import check

        return check(self.config)

    def prepare(self, job: Job) -> "tuple[Task, RunSpec]":
        from paceline.config.experiment import prepared

        return prepared(self.config, self.config.strategies[job.strategy], job.seed, job.lr)

    def place(self, job: Job, path: Path) -> "RunDirectory":
        from paceline.config.experiment import place_of

        return place_of(self.config, self.config.strategies[job.strategy], job.seed, job.lr, path)


def plan_of(config: Config, directory: Path | None = None) -> Plan:
    """The comparison that a TOML file describes."""
    names = [choice.name for choice in config.strategies]
    return Plan(
        source=FromConfig(config),
        about=f"{config.task.label}, {config.fleet.workers} workers",
        labels=[choice.short for choice in config.strategies],
        texts=[choice.text for choice in config.strategies],
        rules=config.strategies,
        workers=config.fleet.workers,
        reference=names.index("synchronous") if "synchronous" in names else None,
        rates=config.tune.lr if config.tune else (),
        seeds=config.seeds,
        target=config.goal,
        settings=config_table(config),
        simulated=isinstance(config.fleet, SimulatedFleet),
        directory=directory,
    )
