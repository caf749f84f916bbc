"""What to do with a fleet: a rule, a learning rate, what is to be gained by them, and what would change that."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.data.partition import Equal, Partition
from paceline.engine.arguments import BATCH_SIZE, batch_size_of, check_arguments, strategy_for, whole
from paceline.engine.limits import Target, target_of
from paceline.fleets.base import Fleet
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.prediction.advice import Advice, Candidate, Question, Texts
from paceline.prediction.candidates import Option, options
from paceline.prediction.pace import Case, Pace
from paceline.prediction.predict import Descent, descent_of
from paceline.prediction.progress import Worth
from paceline.prediction.search import (
    FARTHEST,
    NOISE_RANGE,
    TELL,
    TIE,
    Contest,
    Speeds,
    best_at_noise,
    interval,
    turning_point,
)
from paceline.prediction.times import Recorded, recorded_times
from paceline.storage.reading import read_run
from paceline.strategies.synchronous import Synchronous

if TYPE_CHECKING:
    from paceline.learning.optimizers import MakeOptimizer
    from paceline.learning.task import Task

FINALISTS = 4  # that are drawn again, besides what is done now


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
    seconds: float = 60.0,
    seed: int = 0,
) -> Advice:
    """Which rule is the best for this fleet and task, and what is it worth? Nothing is trained.

    task        its curvature and its gradient noise are measured at the initial weights; without one only speed counts
    fleet       a simulated one, whose delays are known; a real one is profiled first, for so many ``seconds``
    recording   instead of a fleet: the directory of a run, of a profile, or one that ``paceline.record`` wrote
    optimizer   from parameters to a torch optimizer: its momentum and learning rate count
    strategy    what is done now
    target      an accuracy; or ``metric`` with ``below`` or ``above``: needs a recorded run that reached it
    budget      seconds that there are
    prices      of a second of each worker
    curvature   and ``noise`` (the noise scale, in samples), if they are known

    The result has ``strategy``, ``learning_rate``, ``gain``, ``interval``, ``reason`` and ``candidates``.
    """
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
            seconds=seconds, seed=seed,
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
) -> Question:
    """What ``advise`` is asked, checked; real workers are profiled here."""
    if (fleet is None) == (recording is None):
        raise ConfigError("advise() needs workers: give either fleet= or recording=, the directory of a run")
    if budget is not None and not 0 < budget < math.inf:
        raise ConfigError(f"budget={shown(budget)} is not possible: seconds, more than 0")
    if target is not None and recording is None:
        raise ConfigError(
            f"when {target.words} is reached is not known here: give the directory of a run that reached it"
        )
    reached, recorded, message = None, None, 0
    if recording is not None:
        recorded, reached = _read(Path(recording), batch_size, target)
    elif not isinstance(fleet, SimulatedFleet):
        check_prices(prices or (), getattr(fleet, "workers", 0))
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
    contest = Contest(Case(fleet, size, message, recorded is None, seed), worth, recorded)
    priced = check_prices(fleet.worker_prices if prices is None else prices, fleet.workers)
    now, unlike = strategy_for(strategy, fleet, size), not isinstance(partition, Equal)
    return Question(contest, now, unlike, priced, budget, target, reached, notes_of(worth, recorded))


def _read(path: Path, batch_size: object, goal: Target | None) -> tuple[Recorded, float | None]:
    saved = read_run(path)
    size = batch_size if isinstance(batch_size, int) else saved.config.get("batch_size")
    recorded = recorded_times(saved.trace, size if isinstance(size, int) else None)
    if goal is None:
        return recorded, None
    reached = next((row.seconds for row in saved.rows if goal.reached(row)), None)
    if reached is None:
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
    if prices and len(prices) != workers:
        raise ConfigError(f"{len(prices)} prices for {workers} workers: name the price of a second of each of them")
    if not all(0 <= price < math.inf for price in prices):
        raise ConfigError(f"prices={shown(list(prices))} are not possible: numbers of at least 0")
    return prices


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


def answer(question: Question) -> Advice:
    """Look at all candidates, draw the best of them again, choose, and find what would change the choice."""
    contest = question.contest
    if contest.case.fleet.workers < 2:
        raise ConfigError("a fleet of one worker waits for nobody: there is nothing to advise")
    every = options(contest.case, question.now)
    if every[0].hands_in_models:  # nothing here tells what a step of their average is worth
        contest = replace(contest, worth=None, models=True)
        question = replace(question, contest=contest)
    paces = contest.paces(every)
    ranked = sorted(every, key=lambda each: -contest.ranked(paces[each.label], each))
    near = ranked
    if contest.worth is None:  # of the fastest the least stale are looked at again
        least = contest.ranked(paces[ranked[0].label], ranked[0]) / TIE
        near = [each for each in ranked if contest.ranked(paces[each.label], each) > least]
        near.sort(key=lambda each: round(paces[each.label].mean_staleness, 1))
    finalists = [every[0], *(each for each in near[:FINALISTS] if each is not every[0])]
    drawn = contest.drawn(finalists, paces)
    chosen, alike = _choose(contest, every, finalists, paces, drawn)
    found = _candidates(question, ranked, every[0], paces, drawn)
    best = next(each for each in found if each.label == chosen.label)
    assert best.gain is not None
    assert best.interval is not None
    mind = _mind(contest, every, chosen, paces, finalists)
    texts = Texts(question, best, every[0].label, alike, found)
    return Advice(
        chosen.strategy, chosen.without, best.learning_rate, best.gain, best.interval, texts.reason(paces), found,
        (texts.do(), texts.expected(), mind), every[0].label, tuple(question.notes), chosen.label,
    )  # fmt: skip


def _choose(
    contest: Contest, every: Sequence[Option], finalists: Sequence[Option], paces: dict[str, Pace], drawn: Speeds
) -> tuple[Option, list[Option]]:
    """The best; of those that cannot be told from it what is done now, or else the least stale."""
    points = {each.label: contest.ranked(paces[each.label], each) for each in finalists}
    best = max(finalists, key=lambda each: points[each.label])
    alike = []
    for each in finalists:
        ahead = points[best.label] / points[each.label] if points[each.label] > 0 else math.inf
        if contest.worth is None:
            same = ahead < TIE
        else:
            same = ahead < TELL or interval(drawn[best.label], drawn[each.label], ahead)[0] <= 1
        if same:
            alike.append(each)
    if every[0] in alike:
        return every[0], alike
    return min(alike, key=lambda each: (round(paces[each.label].mean_staleness, 1), every.index(each))), alike


def _candidates(
    question: Question, ranked: Sequence[Option], now: Option, paces: dict[str, Pace], drawn: Speeds
) -> tuple[Candidate, ...]:
    contest, own = question.contest, paces[now.label]
    base = contest.ranked(own, now)
    found = []
    for option in ranked:
        pace, rank = paces[option.label], contest.ranked(paces[option.label], option)
        gain = rank / base if math.isfinite(rank) else None
        around = interval(drawn[option.label], drawn[now.label], gain) if gain and option.label in drawn else None
        price = None
        if question.prices and gain:
            kept = sum(each for worker, each in enumerate(question.prices) if worker not in option.without)
            price = kept / sum(question.prices) / gain if sum(question.prices) else None
        worth = contest.worth if gain is not None else None
        found.append(
            Candidate(
                option.label, option.strategy, option.without, pace, gain, around,
                None if worth is None else worth.learning_rate(pace, own),
                None if worth is None else worth.limit(pace), price,
            )
        )  # fmt: skip
    return tuple(found)


def _mind(
    contest: Contest, every: Sequence[Option], chosen: Option, paces: dict[str, Pace], finalists: Sequence[Option]
) -> str:
    """What would change the choice: how slow one worker is, or how noisy gradients are."""
    begin, now = "What would change my mind: ", every[0]
    worker, slowness = contest.slowness()
    stays = chosen is now
    others = finalists if not stays else [now, *_for_stragglers(every, worker)]

    def leaves(factor: float) -> bool:
        return contest.best_with(worker, factor, others) is not now

    ends = (1.0, FARTHEST) if stays else (1 / slowness, 1.0)
    if (stays or slowness > TELL) and (point := turning_point(leaves, *ends)) is not None:
        times = f"{point * slowness:.3g}"
        if not stays:
            return f"{begin}if worker {worker} were less than {times} times as slow as the rest, stay with {now.label}"
        instead = contest.best_with(worker, 1.2 * point, others)
        return f"{begin}if worker {worker} were more than {times} times as slow as the rest, use {instead.label}"
    if contest.worth is not None:
        worth = contest.worth
        for end, words in ((NOISE_RANGE, "more"), (1 / NOISE_RANGE, "less")):
            point = turning_point(lambda f: best_at_noise(f, every, paces, worth, chosen) is not chosen, 1.0, end)
            if point is not None:
                step = 1.2 if end > 1 else 1 / 1.2
                other = best_at_noise(point * step, every, paces, worth, chosen)
                return (
                    f"{begin}if the noise scale were {words} than {point * worth.noise:.2g} samples (it is "
                    f"{worth.noise:.2g}), use {other.label}"
                )
    return f"{begin}no other slowness of worker {worker} alone, as far as was looked"


def _for_stragglers(every: Sequence[Option], worker: int) -> list[Option]:
    """Rules that may help against one slow worker, of those that are at hand."""
    first: dict[type, Option] = {}
    for option in every[1:]:
        if not option.hands_in_models and option.without in ((), (worker,)):
            first.setdefault(type(option.strategy), option)
    wanted = ("UnequalBatches", "FastestK", "LiveCompensation", "Rennala")
    return [option for kind, option in first.items() if kind.__name__ in wanted]
