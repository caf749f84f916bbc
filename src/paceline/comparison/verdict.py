"""The result of a comparison in a few sentences."""

import math
from collections.abc import Sequence

from paceline.comparison.jobs import Comparison, Entry

NOTABLE_WASTE = 0.1
UNHEARD = 0.5  # times 1 / workers: a worker whose share in the updates is smaller is named


def verdict(comparison: Comparison) -> list[str]:
    """Which strategy wins and why, what the others cost, and how certain that is."""
    entries = comparison.entries
    if not entries:
        return []
    winner, synchronous = entries[0], comparison.entry("synchronous")
    sentences = [_winner(winner, synchronous, comparison)]
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
    return [*sentences, *_doubts(comparison)]


def _winner(winner: Entry, synchronous: Entry | None, comparison: Comparison) -> str:
    target, seeds = winner.target, len(winner.outcomes)
    if target is None:
        return f"{winner.label} ends with the lowest loss, {winner.loss:.3f}. Set a target to compare times."
    if not math.isfinite(winner.time):
        return (
            f"No strategy reaches {target:.1%} with most of the {seeds} seeds; {winner.label} ends with the lowest "
            f"loss, {winner.loss:.3f}. Give [stop] more time, or choose a lower target."
        )
    text = f"{winner.label} wins: it reaches {target:.1%} accuracy after {winner.time:.1f} s"
    text += " in the median" if seeds > 1 else ""
    if synchronous is None or synchronous is winner:
        return text + "."
    if not math.isfinite(synchronous.time):
        return text + f"; {synchronous.label} does not reach it."
    return (
        text
        + f", {synchronous.time / winner.time:.1f} times as fast as {synchronous.label} ({synchronous.time:.1f} s)."
    )


def _why(winner: Entry, synchronous: Entry) -> str:
    more = _rate(winner) / _rate(synchronous)
    text = f"It makes {more:.1f} updates in the time of one of {synchronous.label}, whose {_idle_words(synchronous)}"
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


def _doubts(comparison: Comparison) -> list[str]:
    doubts = []
    entries, tune = comparison.entries, comparison.config.tune
    if len(entries) > 1 and len(entries[0].outcomes) > 1 and math.isfinite(entries[1].time):
        first, second = entries[0], entries[1]
        if max(first.times) >= min(second.times):
            doubts.append(
                f"The times of {first.label} and {second.label} overlap between seeds: "
                "more seeds (--seeds 10) would separate them better."
            )
    if tune is not None and len(tune.lr) > 2:
        edge = [each.label for each in entries if each.lr in (tune.lr[0], tune.lr[-1])]
        if edge:
            doubts.append(f"The best learning rate of {', '.join(edge)} is at the edge of the grid: try a wider one.")
    return doubts


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
