"""The result of a comparison in a few sentences."""

import math
from collections.abc import Sequence

from paceline.comparison.paired import Interval
from paceline.comparison.results import BOUND_ASSUMES, Comparison, Entry

NOTABLE_WASTE = 0.1
UNHEARD = 0.5  # times 1 / workers: a worker whose share in the updates is smaller is named


def verdict(comparison: Comparison) -> list[str]:
    """Which strategy wins and why, how certain that is, and what the others cost."""
    entries = comparison.entries
    if not entries:
        return []
    winner, synchronous = entries[0], comparison.reference
    sentences = [_winner(winner, synchronous, entries[1:]), *_chance(winner, entries[1:], synchronous)]
    if math.isfinite(winner.time):
        if synchronous is not None and synchronous is not winner:
            sentences.append(_why(winner, synchronous))
        elif synchronous is winner:
            sentences.append(_waiting(winner))
    wasteful = max(entries, key=_waste)
    if _waste(wasteful) >= NOTABLE_WASTE:
        sentences.append(_price_of_dropping(wasteful, winner))
    stalest = max(entries, key=_staleness)
    if _staleness(stalest) >= 1 and stalest is not winner and winner.lr is not None and stalest.lr is not None:
        sentences.append(_price_of_staleness(stalest, winner))
    return [*sentences, *_bound(comparison), *_edges(comparison)]


def _bound(comparison: Comparison) -> list[str]:
    """How far the first is from what is possible, and what that takes for granted."""
    winner, reference, bound = comparison.entries[0], comparison.reference, comparison.bound
    if bound is None or reference is None or not math.isfinite(winner.time):
        return []
    who = f"the {bound.workers} fastest workers" if bound.workers > 1 else "the fastest worker alone"
    if bound.workers == len(reference.outcomes[0].measures.workers):
        who = "all workers"
    return [
        f"The lower bound of theory is {bound.seconds:.1f} s, with {who}; {winner.label} takes "
        f"{winner.time / bound.seconds:.1f} times as long. {BOUND_ASSUMES.format(reference=reference.label)}"
    ]


def _winner(winner: Entry, synchronous: Entry | None, others: Sequence[Entry]) -> str:
    target, seeds = winner.target, len(winner.outcomes)
    end = f"ends with {_end(winner)}"
    if target is None:
        return f"{winner.label} {end}. Set a target to compare times."
    if not math.isfinite(winner.time):
        return (
            f"No strategy reaches {target.words} with most of the {seeds} seeds; {winner.label} {end}. Give it "
            "more time, or choose an easier target."
        )
    alike = any(winner.told_apart(other) is False for other in others)
    text = f"{winner.label} {'comes first' if alike else 'wins'}: it reaches {target.words} after {winner.time:.1f} s"
    text += " in the median" if seeds > 1 else ""
    if synchronous is None or synchronous is winner:
        return text + "."
    if not math.isfinite(synchronous.time):
        return text + f"; {synchronous.label} does not reach it."
    found = winner.against(synchronous)
    if found is None:
        times = f"{synchronous.time / winner.time:.1f} times as fast as {synchronous.label} ({synchronous.time:.1f} s)"
        return f"{text}, {times}."
    return f"{text}, {found.mean:.1f} times as fast as {synchronous.label} ({synchronous.time:.1f} s; {_range(found)})."


def _end(entry: Entry) -> str:
    if entry.target is not None and not math.isfinite(entry.loss):
        return f"{entry.target.metric} at {entry.final(entry.target.metric):.4g}, the best"
    return f"the lowest loss, {entry.loss:.3f}"


def _chance(winner: Entry, others: Sequence[Entry], synchronous: Entry | None) -> list[str]:
    """Which of the others the first one cannot be told apart from, seed by seed."""
    if not others:
        return []
    seeds = len(winner.outcomes)
    if seeds < 2:
        return ["One seed: nothing can be said about chance. Compare with several seeds."]
    pairs = [(other, winner.against(other)) for other in others]
    alike = [(other, found) for other, found in pairs if winner.told_apart(other) is False]
    sentences = [
        f"{winner.label} and {other.label} cannot be told apart with these {found.seeds} seeds: "
        f"{_compared(winner, found)}{_missed(other)}. More seeds may tell."
        for other, found in alike
        if found is not None
    ]
    if not alike and (nearest := next(((o, found) for o, found in pairs if found is not None), None)) is not None:
        other, found = nearest
        said = other is synchronous and math.isfinite(winner.time)  # in the first sentence
        next_one = "" if said else f": the next, {other.label}, {_takes(winner, found)}{_missed(other)}"
        sentences.append(f"This is more than chance explains, seed by seed{next_one}.")
    return sentences


def _compared(winner: Entry, found: Interval) -> str:
    if math.isfinite(winner.time):
        return f"the second takes {found.mean:.2f} times as long, {_range(found)}"
    return f"the second's loss is larger by {found.mean:.3g}, {_range(found, 3, general=True)}"


def _takes(winner: Entry, found: Interval) -> str:
    if math.isfinite(winner.time):
        return f"takes {found.mean:.2f} times as long ({_range(found)})"
    return f"ends with a loss that is larger by {found.mean:.3g} ({_range(found, 3, general=True)})"


def _range(found: Interval, digits: int = 2, *, general: bool = False) -> str:
    kind = "g" if general else "f"
    return f"95% interval over {found.seeds} seeds {found.low:.{digits}{kind}} to {found.high:.{digits}{kind}}"


def _missed(entry: Entry) -> str:
    if entry.target is None or not entry.missed:
        return ""
    return f"; with {entry.missed} of {len(entry.times)} seeds it does not reach the target"


def _why(winner: Entry, synchronous: Entry) -> str:
    more = _rate(winner) / _rate(synchronous)
    text = f"{winner.label} makes {more:.1f} updates in the time of one of {synchronous.label}, whose "
    text += _idle_words(synchronous)
    stale = _staleness(winner)
    if stale >= 0.05:
        text += f"; the price is gradients that are {stale:.1f} updates old on average"
        text += (
            f", and a learning rate of {winner.lr:g} against {synchronous.lr:g}"
            if _smaller_lr(winner, synchronous)
            else ""
        )
    return text + "."


def _waiting(entry: Entry) -> str:
    return (
        f"Waiting pays off here, although its {_idle_words(entry)}: "
        "no gradient is stale, and all workers count equally."
    )


def _idle_words(entry: Entry) -> str:
    idle = entry.middle(lambda each: each.measures.idle_share)
    counts: dict[int, int] = {}
    for outcome in entry.outcomes:
        for each in outcome.measures.workers:
            counts[each.worker] = counts.get(each.worker, 0) + each.waited_for
    last = sorted(counts, key=lambda worker: -counts[worker])[:2]
    rounds = sum(counts.values())
    text = f"workers wait {idle:.0%} of their time"
    if len(last) < 2 or not rounds:
        return text
    share = sum(counts[worker] for worker in last) / rounds
    return f"{text}, in {share:.0%} of the rounds for worker {last[0]} or {last[1]}"


def _price_of_dropping(entry: Entry, winner: Entry) -> str:
    text = f"{entry.label} throws away {_waste(entry):.0%} of the computation"
    influence: dict[int, float] = {}
    for outcome in entry.outcomes:
        for each in outcome.measures.workers:
            influence[each.worker] = influence.get(each.worker, 0.0) + each.influence
    fair, whole = 1 / len(influence), sum(influence.values()) or 1.0
    unheard = [worker for worker, each in influence.items() if each / whole < UNHEARD * fair]
    if unheard:
        share = sum(influence[worker] for worker in unheard) / whole
        text += f": {_listed(unheard)} make up {share:.0%} of the updates instead of {len(unheard) * fair:.0%}"
    if entry is not winner and math.isfinite(entry.accuracy) and entry.accuracy < winner.accuracy - 0.005:
        text += f", and it ends at {entry.accuracy:.1%} where {winner.label} ends at {winner.accuracy:.1%}"
    return text + "."


def _price_of_staleness(entry: Entry, winner: Entry) -> str:
    text = (
        f"{entry.label} makes {_rate(entry) / _rate(winner):.1f} updates for one of {winner.label}, but its gradients "
    )
    text += f"are {_staleness(entry):.1f} updates old on average"
    if _smaller_lr(entry, winner):
        text += f", so that its best learning rate is {entry.lr:g} instead of {winner.lr:g}"
    return text + "."


def _edges(comparison: Comparison) -> list[str]:
    rates = comparison.plan.rates
    edge = [each.label for each in comparison.entries if len(rates) > 2 and each.lr in (rates[0], rates[-1])]
    return [f"The best learning rate of {', '.join(edge)} is at the edge of the grid: try a wider one."] if edge else []


def _rate(entry: Entry) -> float:
    return max(1e-12, entry.middle(lambda each: each.measures.updates / max(each.measures.seconds, 1e-12)))


def _staleness(entry: Entry) -> float:
    return entry.middle(lambda each: each.measures.mean_staleness)


def _waste(entry: Entry) -> float:
    return entry.middle(lambda each: each.measures.wasted_share)


def _smaller_lr(entry: Entry, other: Entry) -> bool:
    return entry.lr is not None and other.lr is not None and entry.lr < other.lr


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"workers {numbers[0]} to {numbers[-1]}"
    return f"worker{'s' * (len(numbers) > 1)} " + ", ".join(map(str, numbers))
