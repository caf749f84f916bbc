"""Rules by name inside other rules, and the name of a rule."""

import pytest

import paceline
from paceline.core.coordinator import Strategy
from paceline.strategies.catalogue import STRATEGIES
from paceline.strategies.names import choice_of, parse_strategy

GROUPS = [[0, 1], [2, 3]]


def test_the_rule_inside_may_be_a_name() -> None:
    grouped = paceline.Grouped(GROUPS, inside="k-sgd:quorum=1")
    assert grouped == paceline.Grouped(GROUPS, inside=paceline.FastestK(1))
    regrouped = paceline.Regrouped(inside="asgd")
    assert regrouped.inside == paceline.Asynchronous()
    averaging = paceline.ModelAveraging(4, waits="k-sgd:quorum=2")
    assert averaging.waits == paceline.FastestK(2)
    ensemble = paceline.EnsembleCompression(4, waits="ssgd")
    assert ensemble.waits == paceline.Synchronous()


@pytest.mark.parametrize(
    ("text", "said"),
    [("lgcc", "did you mean 'lgc'"), ("gsgd", "groups need at least one worker each"), ("lgc", "quorum is missing")],
)
def test_a_name_that_means_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(paceline.ConfigError, match=said):
        paceline.Grouped(GROUPS, inside=text)


@pytest.mark.parametrize("text", [named.example for named in STRATEGIES if "measured" not in named.example])
def test_a_strategy_is_called_what_it_is_made_of(text: str) -> None:
    asked = parse_strategy(text)
    made = asked.strategy([1.0] * 16)
    found = choice_of(made)
    assert found is not None
    assert found.strategy([1.0] * 16) == made
    assert found.named is asked.named or text.startswith("e-dnn")  # a shorter name for the same


def test_options_that_are_as_usual_are_left_out() -> None:
    def short(strategy: Strategy) -> str | None:
        return None if (found := choice_of(strategy)) is None else found.short

    assert short(paceline.LiveCompensation(5, blocks=2)) == "lgc:quorum=5,blocks=2"
    inside = paceline.LiveCompensation(2, blocks=2)
    assert short(paceline.Grouped(GROUPS, inside=inside)) == "gsgd:groups=0-1/2-3,inside=lgc:quorum=2,blocks=2"
    assert short(paceline.EnsembleCompression(8, weights="margin")) == "ec-dnn-m:every=8"


class OwnRule:
    def decide(self, ledger: object) -> list[object]:
        return []


def test_a_rule_of_ones_own_has_no_name() -> None:
    assert choice_of(OwnRule()) is None  # type: ignore[arg-type]
    assert choice_of(paceline.Grouped(GROUPS, inside=OwnRule())) is None  # type: ignore[arg-type]
