"""The contract of every rule, alone and where it makes sense inside groups."""

import pytest

import paceline as pl
from paceline.core.coordinator import Strategy
from paceline.testing import StrategyContract

GROUPS = [[0, 3], [1, 2, 4]]
RULES: list[Strategy] = [
    pl.AdaptiveQuorum(quorum=1, patience=1, burn_in=1),
    pl.AdaptiveQuorum(quorum=2, step=2, patience=1, burn_in=0, largest=4),
    pl.Anytime(seconds=2.0, blocks=3),
    pl.BoundedStaleness(slack=0),
    pl.BoundedStaleness(slack=2),
    pl.Buffered(size=1),
    pl.Buffered(size=3),
    pl.StalenessAware(size=2),
    pl.DelayAdaptive(),
    pl.Rescaled(),
    pl.Ringmaster(threshold=1),
    pl.Ringmaster(threshold=3),
    pl.Ringmaster(threshold=3, stop=False),
    pl.Rennala(batch=1),
    pl.Rennala(batch=6),
    pl.Malenia(batch=3),
    pl.Malenia(batch=12),
    pl.NewestOfEach(),
    pl.QuorumGrace(quorum=3, grace=0.0),
    pl.QuorumGrace(quorum=2, grace=1.5),
    pl.Replicated([[0], [1], [2], [3], [4]]),
    pl.Grouped(GROUPS, inside=pl.Anytime(seconds=1.5, blocks=2)),
    pl.Grouped(GROUPS, inside=pl.BoundedStaleness(slack=1)),
    pl.Grouped(GROUPS, inside=pl.StalenessAware(size=2)),
    pl.Grouped(GROUPS, inside=pl.Rescaled()),
    pl.Grouped(GROUPS, inside=pl.Ringmaster(threshold=2)),
    pl.Grouped(GROUPS, inside=pl.Malenia(batch=5)),
    pl.Grouped(GROUPS, inside=pl.NewestOfEach()),
    pl.Grouped(GROUPS, inside=pl.QuorumGrace(quorum=1, grace=1.0)),
    pl.Regrouped(tolerance=0.4, margin=0.1, window=1, inside=pl.Ringmaster(threshold=2)),
    pl.Regrouped(tolerance=0.4, margin=0.1, window=1, inside=pl.BoundedStaleness(slack=1)),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_keeps_the_contract(rule: Strategy) -> None:
    contract = StrategyContract()
    contract.strategy = rule
    contract.patience = 16  # a batch of 12 gradients by a single worker
    contract.check_all()


class TestReplicated(StrategyContract):
    strategy = pl.Replicated([[0, 1], [2, 3], [4, 5]])
    workers = 6
