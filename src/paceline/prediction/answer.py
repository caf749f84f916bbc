"""From a question to an answer: candidates are ranked, the best tried, one is chosen, and what would change that."""

import math
from collections.abc import Sequence
from dataclasses import replace

from paceline.core.errors import ConfigError
from paceline.prediction.advice import Advice, Candidate, Question, Texts
from paceline.prediction.candidates import Option, options
from paceline.prediction.pace import Pace
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
    widened,
)
from paceline.prediction.trials import ROUNDS_TO_TARGET, Tried
from paceline.strategies.traits import deals_sizes

FINALISTS = 4  # that are drawn again, besides what is done now


def answer(question: Question) -> Advice:
    """Look at all candidates, draw the best of them again, choose, and find what would change the choice."""
    contest = question.contest
    if contest.case.fleet.workers < 2:
        raise ConfigError("a fleet of one worker waits for nobody: there is nothing to advise")
    every = options(contest.case, question.now, contest.prices)
    if question.unlike:  # sizes that change deal samples anew, so that nobody could keep data of its own
        every = [each for each in every if each.strategy is question.now or not deals_sizes(each.strategy)]
    if every[0].hands_in_models:  # nothing here tells what a step of their average is worth
        contest = replace(contest, worth=None, models=True)
        question = replace(question, contest=contest)
    paces = contest.paces(every)
    ranked = contest.ordered(every, paces)
    near = ranked
    if contest.worth is None:  # of the fastest the least stale are looked at again
        least = contest.points(paces[ranked[0].label], ranked[0]) / TIE
        near = [each for each in ranked if contest.points(paces[each.label], each) > least]
        near.sort(key=lambda each: round(paces[each.label].mean_staleness, 1))
    tried = _tried(question, every[0], ranked, paces)
    first = [each.option for each in sorted(tried.values(), key=lambda each: -each.gain)] or near
    finalists = [every[0], *(each for each in first[: FINALISTS + 1] if each is not every[0])]
    if tried:
        chosen, alike = _choose_tried(contest, tried, paces)
        finalists += [chosen] * (chosen not in finalists)  # its interval is told
        drawn = contest.drawn(finalists, paces)
    else:
        drawn = contest.drawn(finalists, paces)
        chosen, alike = _choose(contest, every, finalists, paces, drawn)
    found = _candidates(question, ranked, every[0], paces, drawn, tried=tried)
    best = next(each for each in found if each.label == chosen.label)
    assert best.gain is not None
    assert best.interval is not None
    mind = _mind(contest, every, chosen, paces, finalists)
    question = replace(question, notes=[*question.notes, *(question.trials.notes if question.trials else ())])
    texts = Texts(question, best, every[0].label, alike, found)
    return Advice(
        chosen.strategy, chosen.without, best.learning_rate, best.gain, best.interval, texts.reason(paces), found,
        (texts.do(), texts.expected(), mind), every[0].label, tuple(question.notes), chosen.label,
    )  # fmt: skip


def _choose(
    contest: Contest, every: Sequence[Option], finalists: Sequence[Option], paces: dict[str, Pace], drawn: Speeds
) -> tuple[Option, list[Option]]:
    """The best; of those that cannot be told from it what is done now, or else the least stale."""
    points = {each.label: contest.points(paces[each.label], each) for each in finalists}
    now = contest.ranked(paces[every[0].label], every[0])
    soon = [each for each in finalists if not contest.prices or contest.ranked(paces[each.label], each) >= now / TELL]
    best = max(soon, key=lambda each: points[each.label])
    alike = []
    for each in soon:
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


def _tried(question: Question, now: Option, ranked: Sequence[Option], paces: dict[str, Pace]) -> dict[str, Tried]:
    """What came of trials, by rule: of what is done now, of unequal mini-batches, and of the best of each other kind.

    Those are neither stale nor noisier than ``Synchronous``: they are tried, whatever theory says.
    """
    trials, worth = question.trials, question.contest.worth
    if trials is None or now.hands_in_models:
        return {}
    own, first = paces[now.label], dict[tuple[object, ...], Option]()
    for option in sorted(ranked, key=lambda each: bool(each.without) or not deals_sizes(each.strategy)):
        if option is not now and not option.hands_in_models and (option.without == () or question.prices):
            first.setdefault((type(option.strategy), bool(option.without)), option)
    rates = {option.label: (trials.learning_rate, trials.learning_rate) for option in first.values()}
    if worth is not None:
        rates = {
            option.label: (worth.learning_rate(pace, own), worth.largest(pace, own))
            for option in first.values()
            if (pace := paces[option.label])
        }
    found = trials.compare([now, *first.values()], rates, own.updates_per_second.value)
    if trials.target is not None and all(each.seconds == math.inf for each in found):
        seconds = ROUNDS_TO_TARGET / own.updates_per_second.value
        raise ConfigError(
            f"no candidate reaches {trials.target.words} in {seconds:,.4g} s, {ROUNDS_TO_TARGET} updates of "
            f"{now.label}: ask for less"
        )
    return {each.option.label: each for each in found}


def _choose_tried(contest: Contest, tried: dict[str, Tried], paces: dict[str, Pace]) -> tuple[Option, list[Option]]:
    """The best in trials; of those that cannot be told from it what is done now, or else the least stale."""
    slow = 1 / TIE if contest.prices else 0.0  # with prices, the cheapest of those that are as soon as now
    points = {label: each.gain / contest.share(each.option) for label, each in tried.items() if each.gain >= slow}
    best = max(points.values())
    alike = [each.option for label, each in tried.items() if points.get(label) and best / points[label] < TIE]
    now = next(iter(tried.values())).option
    if now in alike:
        return now, alike
    return min(alike, key=lambda each: round(paces[each.label].mean_staleness, 1)), alike


def _candidates(
    question: Question,
    ranked: Sequence[Option],
    now: Option,
    paces: dict[str, Pace],
    drawn: Speeds,
    *,
    tried: dict[str, Tried],
) -> tuple[Candidate, ...]:
    contest, own = question.contest, paces[now.label]
    base = contest.ranked(own, now)
    found = []
    for option in ranked:
        pace, rank = paces[option.label], contest.ranked(paces[option.label], option)
        gain = rank / base if math.isfinite(rank) else None
        trial, basis = tried.get(option.label), "theory" if contest.worth is not None else "samples"
        if trial is not None:
            gain, basis = trial.gain, "trial"
        around = None
        if gain and option.label in drawn:
            around = interval(drawn[option.label], drawn[now.label], gain)
            around = around if option is now else widened(around, gain, basis)
        worth = contest.worth if gain is not None else None
        rate = None if worth is None else worth.learning_rate(pace, own)
        found.append(
            Candidate(
                option.label, option.strategy, option.without, pace, gain, around,
                rate if trial is None else trial.learning_rate, None if worth is None else worth.limit(pace),
                contest.share(option) / gain if question.prices and gain else None, basis,
                None if trial is None or not math.isfinite(trial.seconds) else trial.seconds,
            )
        )  # fmt: skip
    order = {"trial": 0, "theory": 1, "samples": 1}
    found.sort(key=lambda each: (order[each.basis], each.price if each.price is not None else -(each.gain or -1.0)))
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
