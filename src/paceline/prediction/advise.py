"""What to do with a fleet: a rule, a learning rate, what is to be gained by them, and what would change that."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import as_kind, as_path, shown
from paceline.data.partition import Equal, Partition
from paceline.engine.arguments import BATCH_SIZE, batch_size_of, check_arguments, strategy_for, whole
from paceline.engine.limits import Target, target_of
from paceline.fleets.base import Fleet
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.prediction.advice import Advice, Question
from paceline.prediction.answer import answer
from paceline.prediction.pace import Case
from paceline.prediction.predict import Descent, descent_of
from paceline.prediction.progress import Worth
from paceline.prediction.search import Contest
from paceline.prediction.times import Recorded, recorded_times
from paceline.prediction.trials import Trials
from paceline.storage.reading import read_run
from paceline.strategies.synchronous import Synchronous

if TYPE_CHECKING:
    from paceline.learning.optimizers import MakeOptimizer
    from paceline.learning.task import Task


def advise(
    task: "Task | None" = None,
    *,
    fleet: Fleet | None = None,
    recording: Path | str | None = None,
    optimizer: "MakeOptimizer | None" = None,
    batch_size: int | Sequence[int] | None = None,
    partition: Partition = Equal(),
    strategy: Strategy | str = Synchronous(),
    target: float | None = None,
    metric: str | None = None,
    below: float | None = None,
    above: float | None = None,
    budget: float | None = None,
    prices: Sequence[float] | None = None,
    curvature: float | None = None,
    noise: float | None = None,
    trials: bool | None = None,
    seconds: float = 60.0,
    seed: int = 0,
) -> Advice:
    """Which rule is the best for this fleet and task, and what is it worth? Your model stays as it is.

    task        its curvature and its gradient noise are measured at the initial weights; without one only speed counts
    fleet       a simulated one, whose delays are known; a real one is profiled first, for so many ``seconds``
    recording   instead of a fleet: the directory of a run, of a profile, or one that ``paceline.record`` wrote
    optimizer   from parameters to a torch optimizer: its momentum and learning rate count
    strategy    what is done now
    target      an accuracy; or ``metric`` with ``below`` or ``above``: when is it reached? By trials, or by the
                recorded run, which has to have reached it
    budget      seconds that there are
    prices      of a second of each worker: then the cheapest for the same progress is the best, of those that are as
                soon as what is done now
    curvature   and ``noise`` (the noise scale, in samples), if they are known
    trials      try the best rules in short trainings on simulated workers of these speeds; by default with a task and
                an optimizer. Without them, theory decides

    The result has ``strategy``, ``learning_rate``, ``gain``, ``interval``, ``reason`` and ``candidates``.
    """
    if task is not None:
        check_arguments(task=task)
    descent, lr = (Descent(), None) if task is None or optimizer is None else _optimizer(optimizer, task)
    worth = (
        None
        if task is None or descent is None
        else worth_of(task, descent, lr, curvature=curvature, noise=noise, seed=whole("seed", seed))
    )
    return answer(
        question_of(
            task, fleet=fleet, recording=recording, worth=worth, batch_size=batch_size, partition=partition,
            strategy=strategy, target=target_of(target, metric, below, above), budget=budget, prices=prices,
            seconds=seconds, seed=seed, optimizer=optimizer, learning_rate=lr, trials=trials,
        )
    )  # fmt: skip


def question_of(
    task: "Task | None",
    *,
    fleet: Fleet | None,
    recording: Path | str | None,
    worth: Worth | None,
    batch_size: int | Sequence[int] | None = None,
    partition: Partition = Equal(),
    strategy: Strategy | str = Synchronous(),
    target: Target | None = None,
    budget: float | None = None,
    prices: Sequence[float] | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    optimizer: "MakeOptimizer | None" = None,
    learning_rate: float | None = None,
    trials: bool | None = None,
) -> Question:
    """What ``advise`` is asked, checked; real workers are profiled here."""
    if (fleet is None) == (recording is None):
        raise ConfigError("advise() needs workers: give either fleet= or recording=, the directory of a run")
    if budget is not None and not (_is_number(budget) and 0 < budget < math.inf):
        raise ConfigError(f"budget={shown(budget)} is not possible: seconds, more than 0")
    may_try = task is not None and optimizer is not None and learning_rate is not None and trials is not False
    if trials and not may_try:
        raise ConfigError("trials train: give a task and an optimizer with a learning rate, or leave trials= out")
    if target is not None and recording is None and not may_try:
        raise ConfigError(
            f"when {target.words} is reached is not known here: give a task and an optimizer, or the directory of a "
            "run that reached it"
        )
    reached, recorded, message = None, None, 0
    if recording is not None:
        recorded, reached = _read(as_path("recording", recording), batch_size, target, may_try=may_try)
    elif not isinstance(fleet, SimulatedFleet):
        check_prices(() if prices is None else prices, getattr(fleet, "workers", 0))
        recorded = _profiled(task, fleet=fleet, seconds=seconds, batch_size=batch_size, partition=partition, seed=seed)
    if recorded is not None:
        fleet = recorded.fleet()
        batch_size = recorded.batch_size if batch_size is None else batch_size
    elif task is not None:
        from paceline.learning.model_state import message_bytes

        message = message_bytes(task.model)
    assert isinstance(fleet, SimulatedFleet)
    size = BATCH_SIZE if batch_size is None and task is not None else batch_size
    size = None if size is None else batch_size_of(size, fleet.workers)
    priced = check_prices(fleet.worker_prices if prices is None else prices, fleet.workers)
    case = Case(fleet, size, message, recorded is None, seed)
    contest = Contest(case, worth, recorded, prices=priced)
    now, unlike = strategy_for(strategy, fleet, size), not isinstance(partition, Equal)
    tries = None
    if may_try and task is not None and optimizer is not None and learning_rate is not None:
        tries = Trials(task, optimizer, case, partition, learning_rate, target if reached is None else None)
    return Question(contest, now, unlike, priced, budget, target, reached, notes_of(worth, recorded), tries)


def _read(path: Path, batch_size: object, goal: Target | None, *, may_try: bool) -> tuple[Recorded, float | None]:
    saved = read_run(path)
    size = batch_size if isinstance(batch_size, int) else saved.config.get("batch_size")
    recorded = recorded_times(saved.trace, size if isinstance(size, int) else None)
    if goal is None:
        return recorded, None
    reached = next((row.seconds for row in saved.rows if goal.reached(row)), None)
    if reached is None and not may_try:
        raise ConfigError(
            f"no candidate can be said to reach {goal.words}: {path} never did; ask for what it reached, or give a run "
            "that did"
        )
    return recorded, reached


def _profiled(task: "Task | None", *, fleet: Fleet | None, seconds: float, **settings: Any) -> Recorded:
    check_arguments(fleet=fleet, seconds=seconds)
    if task is None or fleet is None:
        raise ConfigError("real workers are measured at work: give a task, or recording=, the directory of a run")
    from paceline.prediction.profile import profile

    size = settings["batch_size"] = BATCH_SIZE if settings["batch_size"] is None else settings["batch_size"]
    found = profile(task, fleet=fleet, seconds=seconds, **settings)
    return recorded_times(found.trace, size if isinstance(size, int) else None)


def _optimizer(optimizer: "MakeOptimizer", task: "Task") -> tuple[Descent | None, float]:
    """What an optimizer does with a gradient, as far as theory reaches, and its learning rate."""
    from paceline.learning.optimizers import takes_names

    named = takes_names(optimizer)
    made = optimizer(list(task.model.named_parameters() if named else task.model.parameters()))
    return descent_of(type(made).__name__, made.defaults), float(made.defaults.get("lr", math.nan))


def worth_of(
    task: "Task",
    descent: Descent,
    lr: float | None = None,
    *,
    curvature: float | None = None,
    noise: float | None = None,
    seed: int = 0,
) -> Worth | None:
    """Measure what an update is worth on a task; None if its loss does not bend upwards anywhere."""
    from paceline.learning.curvature import Effort
    from paceline.learning.curvature import curvature as find_curvature
    from paceline.learning.noise_scale import noise_scale

    if curvature is None:
        curvature = find_curvature(task, Effort(samples=512, products=30, tolerance=0.01), seed=seed).value
        if not curvature > 0:
            return None
    return Worth(curvature, noise_scale(task, seed=seed).value if noise is None else noise, descent, lr)


def check_prices(prices: Sequence[float], workers: int) -> Sequence[float]:
    """One price for each worker, or none at all."""
    listed = isinstance(prices, Sequence) and not isinstance(prices, str)
    if not listed or not all(_is_number(price) for price in prices):
        raise ConfigError(f"prices={shown(prices)} are none: give a list with the price of a second of each worker")
    if prices and len(prices) != workers:
        raise ConfigError(f"{len(prices)} prices for {workers} workers: name the price of a second of each of them")
    if not all(0 <= price < math.inf for price in prices):
        raise ConfigError(f"prices={shown(list(prices))} are not possible: numbers of at least 0")
    return prices


def _is_number(given: object) -> bool:
    try:
        as_kind(given, (float,))
    except TypeError:
        return False
    return True


def notes_of(worth: Worth | None, recorded: Recorded | None) -> list[str]:
    """What the numbers rest on, in words."""
    found = list(recorded.notes) if recorded is not None else []
    if recorded is not None and recorded.transfers:
        most = max(recorded.transfers, key=lambda worker: recorded.transfers[worker])
        found.append(
            f"Of a round trip up to {recorded.transfers[most]:.3g} s (worker {most}, median) are no computing; a "
            "smaller mini-batch is taken not to shorten them."
        )
    if worth is not None:
        found.append(
            f"Measured at the initial weights: curvature {worth.curvature:.3g}, noise scale {worth.noise:.3g} samples."
        )
    return found
