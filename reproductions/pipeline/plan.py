"""How much of a paper is run, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    data        the folder of the data sets
    quick       the reduced plan instead of the usual one
    full        the plan of the paper's own length, a campaign whose results are committed
    runs        of a campaign: how many to make before the card; None for all that are missing, 0 for none
    results     where the results of campaigns are; by default in this package
    work        keeps the result of each run, so that an interrupted reproduction continues; None keeps nothing
    processes   how many runs at a time; by default one for each core
    seed        is added to all seeds of the plan
    """

    data: Path | None = None
    quick: bool = False
    work: Path | None = None
    processes: int | None = None
    seed: int = 0
    full: bool = False
    runs: int | None = None
    results: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of a paper is run. Each paper adds what it can vary.

    name   says in the card how much it is
    seed   is added to the seeds of all runs, which count from 0 in a plan
    """

    name: str
    seed: int = 0


def search(
    rates: Sequence[float], further: Sequence[float], scores: Mapping[float, float]
) -> tuple[list[float], float | None]:
    """The learning rates to try as far as these scores call for it, and the best one once all of them have a score.

    The ``further`` ones are tried one by one, the nearest first, while the best is the smallest or largest so far.
    """
    tried = sorted(rates)
    smaller, larger = (sorted(lr for lr in further if lr < tried[0]), sorted(lr for lr in further if lr > tried[-1]))
    while all(lr in scores for lr in tried):
        best = best_learning_rate({lr: scores[lr] for lr in tried})
        if best == tried[0] and smaller:
            tried.insert(0, smaller.pop())
        elif best == tried[-1] and larger:
            tried.append(larger.pop(0))
        else:
            return tried, best
    return tried, None


def best_learning_rate(scores: Mapping[float, float]) -> float:
    """The learning rate with the lowest score, such as a loss; of equal ones the smallest."""
    return min(scores, key=lambda lr: (scores[lr], lr))
