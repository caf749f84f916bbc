"""What a rule may say of itself besides ``decide``, by attributes or methods that it need not have.

    weight_sum          a text: what the weights of an update add up to, where that is not 1 ("at most 1"). A learning
                        rate then means something else than in other rules, and is to be tuned for itself
    reports             the names of numbers that learning has to tell of each update (``core.messages.REPORTS``); they
                        come to the rule by ``ledger.report``. Such a rule needs a model: ``simulate`` refuses it
    unsettled(workers)  how many contributions of one worker the rule may leave unsettled at once, the one that is
                        being computed among them; by default no more than 8. Real workers have memory for so many
    held(workers)       how many contributions of all workers together, where that is less than the above for each
    replicas            groups of workers that compute the same mini-batches
    gradients_only      a text: why the rule is for gradients, and cannot be the one by which workers hand in models
    rounds_of_its_own   a text: why the rule has no common rounds of all workers, so that it cannot be inside a rule
                        that needs them
    whole_fleet         a text: why the rule cannot be inside ``Grouped``, where it would see a part of the fleet
    deals_sizes         a text: why the rule has to be around all workers. It decides ``Resize``, and has ``total``, the
                        samples of an update, and ``blocks``, which divide every size; ``most_samples``, if it has
                        them, are the most that all mini-batches together may have, by default the total

``aggregation``, what becomes of models, is described in ``strategies.aggregation``.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeGuard

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.messages import REPORTS, Groups


class DealsSizes(Strategy, Protocol):
    """A rule that changes the sizes of mini-batches."""

    @property
    def total(self) -> int: ...

    @property
    def blocks(self) -> int: ...


UNSETTLED = 8  # contributions of one worker, where a rule does not say


def with_inner(strategy: Strategy) -> Iterator[Strategy]:
    """A rule, the one inside it or that it waits by, and so on to the innermost."""
    inner: Strategy | None = strategy
    while inner is not None:
        yield inner
        inner = getattr(inner, "inside", None) or getattr(inner, "waits", None)


def said(strategy: Strategy, name: str) -> str:
    """What a rule says by an attribute that is a text; nothing if it says nothing."""
    text = getattr(strategy, name, "")
    return text if isinstance(text, str) else ""


def deals_sizes(strategy: object) -> "TypeGuard[DealsSizes]":
    """Does a rule change the sizes of mini-batches?"""
    return bool(getattr(strategy, "deals_sizes", ""))


def most_samples(strategy: object) -> int | None:
    """The most samples that the mini-batches of all workers together may have, of a rule that deals sizes."""
    if not deals_sizes(strategy):
        return None
    return int(getattr(strategy, "most_samples", strategy.total))


def weight_sum(strategy: object) -> str:
    """What the weights of an update add up to."""
    told = getattr(strategy, "weight_sum", "1")
    return told if isinstance(told, str) else "1"  # of a class whose settings decide: as a rule 1


def reports_of(strategy: Strategy) -> tuple[str, ...]:
    """The numbers of each update that a rule, or one inside it, asks for."""
    names = dict.fromkeys(name for each in with_inner(strategy) for name in getattr(each, "reports", ()))
    if unknown := [name for name in names if name not in REPORTS]:
        raise ConfigError(
            f"{type(strategy).__name__}.reports asks for {unknown[0]!r}, which learning does not tell: one of "
            f"{', '.join(REPORTS)}"
        )
    return tuple(names)


def check_without_model(strategy: Strategy) -> None:
    """Refuse a rule that goes by numbers of a model's training, where there is none."""
    for each in with_inner(strategy):
        if names := getattr(each, "reports", ()):
            raise ConfigError(
                f"{type(each).__name__} goes by numbers that learning tells after each update ({', '.join(names)}), "
                "and without a model there are none: use train(), or a rule that needs none, such as FastestK"
            )


def unsettled_of(strategy: Strategy, workers: int) -> int:
    """How many contributions of one worker may be unsettled at once."""
    return max([UNSETTLED, *_asked(strategy, "unsettled", workers)])


def held_of(strategy: Strategy, workers: int) -> int:
    """How many contributions of all workers may be unsettled at once, as far as a rule says; else one of each."""
    return max([workers, *_asked(strategy, "held", workers)])


def _asked(strategy: Strategy, name: str, workers: int) -> Iterator[int]:
    for each in with_inner(strategy):
        told: Callable[[int], int] | None = getattr(each, name, None)
        if callable(told):
            yield told(workers)


def replicas_of(strategy: Strategy) -> Groups:
    """Groups of workers that compute the same mini-batches; none where all compute their own."""
    groups: Groups = getattr(strategy, "replicas", ())
    return groups


def check_inside(inner: Strategy, around: str) -> None:
    """Refuse a rule inside one that shows it parts of the fleet, if it says that it needs the whole."""
    for each in with_inner(inner):
        if why := said(each, "whole_fleet"):
            raise ConfigError(f"{around} cannot have {type(each).__name__} inside: {why}; choose Synchronous")
