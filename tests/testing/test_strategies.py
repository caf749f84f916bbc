"""Every shipped strategy keeps the contract, alone and inside groups."""

from dataclasses import replace

import pytest

from paceline.core.coordinator import Strategy
from paceline.strategies.adacomm import AdaComm
from paceline.strategies.aggregation import OuterSGD
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.ensemble_compression import EnsembleCompression, FinalEnsemble
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.model_rules import DecoupledDiLoCo, DiLoCo, FedBuff
from paceline.strategies.pulling import EASGD, FedAsync
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.synchronous import Synchronous
from paceline.testing import StrategyContract

PAIR_AND_THREE = [[0, 3], [1, 2, 4]]
SINGLETONS = [[0], [1], [2], [3], [4]]
LGC = LiveCompensation(quorum=2, blocks=3)

REGROUPED = Regrouped(tolerance=0.4, margin=0.1, window=1)  # so that every second look forms other groups

STRATEGIES: list[Strategy] = [
    Synchronous(),
    Asynchronous(),
    FastestK(quorum=3),
    FastestK(quorum=1),
    FastestK(quorum=3, stop_late=False),
    FastestK(quorum=2, warm_up=2),
    FastestK(quorum=2, stop_late=False, warm_up=1),
    LiveCompensation(quorum=3, blocks=4),
    LiveCompensation(quorum=3, blocks=4, recall=False),
    LiveCompensation(quorum=2, blocks=2, scale=False),
    LiveCompensation(quorum=2, blocks=3, warm_up=2),
    LiveCompensation(quorum=1, recall=False, scale=False, warm_up=1),
    Grouped(PAIR_AND_THREE),
    Grouped(PAIR_AND_THREE, inside=LGC),
    Grouped(PAIR_AND_THREE, inside=LiveCompensation(quorum=2, recall=False)),
    Grouped(PAIR_AND_THREE, inside=FastestK(quorum=2)),
    Grouped(PAIR_AND_THREE, inside=FastestK(quorum=2, stop_late=False)),
    Grouped(PAIR_AND_THREE, inside=Asynchronous()),
    Grouped([[0, 1, 2, 3, 4]], inside=LGC),
    Grouped(SINGLETONS),
    Grouped(SINGLETONS, inside=LGC),
    Grouped([[0, 1, 2], [3, 4]], inside=Grouped([[0], [1, 2], [3, 4]], inside=LGC)),
    Grouped([[0], [1]], inside=Grouped([[0, 1], [2, 3]], inside=Grouped([[2], [3]]))),
    REGROUPED,
    replace(REGROUPED, groups=SINGLETONS, window=2),
    replace(REGROUPED, inside=LGC),
    replace(REGROUPED, groups=PAIR_AND_THREE, inside=FastestK(quorum=2)),
    Grouped(PAIR_AND_THREE, inside=REGROUPED),
    replace(REGROUPED, inside=replace(REGROUPED, tolerance=0.2, inside=LGC)),
    ModelAveraging(every=3),
    ModelAveraging(every=3, steps=7),
    ModelAveraging(every=3, waits=Asynchronous()),
    ModelAveraging(every=3, waits=FastestK(quorum=3, stop_late=False)),
    ModelAveraging(every=3, waits=REGROUPED),
    ModelAveraging(every=3, waits=Grouped(PAIR_AND_THREE, inside=FastestK(quorum=2))),
    ModelAveraging(every=3, waits=FastestK(quorum=3), weights="tokens", warm_up=2),
    ModelAveraging(every=3, waits=Grouped(PAIR_AND_THREE), weights="tokens", outer=OuterSGD()),
    DiLoCo(every=4, waits=Asynchronous(), weights="age"),
    ModelAveraging(every=6, waits=Asynchronous(), by_speed=True),
    ModelAveraging(every=6, by_speed=True, weights="tokens"),
    AdaComm(every=6, interval=2),
    AdaComm(every=6, waits=Grouped(PAIR_AND_THREE)),
    FedBuff(every=2, size=3),
    DecoupledDiLoCo(every=2, quorum=3, grace=0.5, by_speed=True),
    FedAsync(every=2),
    FedAsync(every=2, waits=Grouped(PAIR_AND_THREE)),
    EASGD(every=2),
    EASGD(every=2, waits=Synchronous()),
    EnsembleCompression(every=4, compression_steps=1),
    EnsembleCompression(every=4, steps=9, waits=FastestK(quorum=3)),
    FinalEnsemble(steps=5),
]


@pytest.mark.parametrize("rule", STRATEGIES, ids=repr)
def test_a_rule_keeps_the_contract(rule: Strategy) -> None:
    contract = StrategyContract()
    contract.strategy = rule
    contract.check_all()
