"""The strategies that have a name: what the command line calls them, the rule in a sentence, the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

from paceline.core.coordinator import Strategy
from paceline.strategies.adacomm import AdaComm
from paceline.strategies.adaptive_quorum import AdaptiveQuorum
from paceline.strategies.advised import Advised
from paceline.strategies.anytime import Anytime
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.bounded_staleness import BoundedStaleness
from paceline.strategies.buffered import Buffered, StalenessAware
from paceline.strategies.delay_adaptive import DelayAdaptive
from paceline.strategies.ensemble_compression import EnsembleCompression, FinalEnsemble
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.model_rules import BMUF, DecoupledDiLoCo, DiLoCo, FedBuff, PostLocalSGD, SlowMo
from paceline.strategies.newest_of_each import NewestOfEach
from paceline.strategies.pulling import EASGD, FedAsync
from paceline.strategies.quorum_grace import QuorumGrace
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.rennala import Malenia, Rennala
from paceline.strategies.replicated import Replicated
from paceline.strategies.rescaled import Rescaled
from paceline.strategies.ringmaster import Ringmaster
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.unequal_batches import UnequalBatches

GROUPED = {"groups": Sequence[Sequence[int]], "tolerance": float, "inside": Strategy}
EC_DNN = "Sun & Liu, EC-DNN: a new method for parallel training of deep neural networks"


@dataclass(frozen=True)
class Named:
    """A strategy as people call it."""

    kind: Callable[..., Strategy]
    names: tuple[str, ...]  # the first is the one that is shown
    acronyms: str
    rule: str
    paper: str
    example: str
    preset: tuple[tuple[str, Any], ...] = ()  # options that the name stands for

    @property
    def options(self) -> dict[str, Any]:
        """What can be chosen: each option's type."""
        if self.kind is Grouped:
            return GROUPED
        hints, chosen = get_type_hints(self.kind), dict(self.preset)
        return {name: hints[name] for name in signature(self.kind).parameters if name not in chosen}

    @property
    def required(self) -> list[str]:
        """Options without a default; groups can be formed by speed."""
        parameters = signature(self.kind).parameters.values()
        return [each.name for each in parameters if each.default is Parameter.empty and self.kind is not Grouped]


HAND_IN_GRADIENTS = (
    Named(
        Synchronous, ("synchronous", "ssgd", "full-sgd", "sync"), "SSGD, Full-SGD",
        "everybody waits for everybody: one update from the mean of all gradients",
        "Gao & Chen, Group SGD, Eq. (2); Xu, Live Gradient Compensation, Eq. (3)", "ssgd",
    ),
    Named(
        Asynchronous, ("asynchronous", "asgd", "async"), "ASGD",
        "nobody waits: each gradient is an update as it arrives, however old its model is by then",
        "Gao & Chen, Group SGD, Eq. (3)", "asgd",
    ),
    Named(
        FastestK, ("fastest-k", "k-sgd", "ksgd"), "K-SGD, backup workers",
        "wait for the first quorum gradients of a round; stop the late workers and drop their work",
        "Xu, Live Gradient Compensation, Sec. I; Chen et al., Revisiting Distributed Synchronous SGD", "k-sgd:quorum=7",
    ),
    Named(
        LiveCompensation, ("live-compensation", "lgc", "lgc-sgd"), "LGC-SGD",
        "wait for the first quorum; late workers hand in the blocks they have, which count one update later",
        "Xu, Live Gradient Compensation for Evading Stragglers, Alg. 1", "lgc:quorum=7,blocks=4",
    ),
    Named(
        Grouped, ("grouped", "gsgd", "group-sgd"), "GSGD",
        "wait inside groups of like speed, not between them; any strategy can be the rule inside a group",
        "Gao & Chen, Group SGD: a tradeoff between straggler and staleness, Alg. 3.1", "gsgd:groups=0-3/4-7/8-15",
    ),
    Named(
        Regrouped, ("regrouped", "gsgd-measured", "adaptive-gsgd"), "GSGD, adaptive",
        "the same with groups by measured speed, formed anew when speeds change by more than a margin",
        "Gao & Chen, Group SGD, Alg. 3.1; the criterion is Paceline's own", "gsgd-measured:tolerance=0.5,margin=0.2",
    ),
    Named(
        UnequalBatches, ("unequal-batches", "unequal"), "unequal mini-batches",
        "mini-batches by measured speed, so that all hand in together; one update from the mean over all samples",
        "the criterion is Paceline's own", "unequal:total=128",
    ),
    Named(
        Advised, ("advised", "auto"), "chooses by itself",
        "measure the workers, choose between ssgd, unequal and k-sgd, say why, and choose anew when speeds change",
        "the criterion is Paceline's own", "advised:total=128",
    ),
    Named(
        QuorumGrace, ("quorum-grace", "grace"), "quorum and grace window",
        "wait for a quorum, then so many seconds for more; late ones count in the next update",
        "Douillard et al., Decoupled DiLoCo (its waiting)", "quorum-grace:quorum=8,grace=0.5",
    ),
    Named(
        AdaptiveQuorum, ("adaptive-quorum", "adaptive-k"), "adaptive fastest-k",
        "as fastest-k, with a quorum that is raised when successive gradients point against each other",
        "Kas Hanna et al., Adaptive Distributed Stochastic Gradient Descent", "adaptive-quorum:quorum=2",
    ),
    Named(
        Anytime, ("anytime", "anytime-minibatch"), "Anytime Minibatch",
        "rounds of so many seconds; each worker counts by the samples that it has done by then",
        "Ferdinand et al., Anytime Minibatch", "anytime:seconds=1.0,blocks=8",
    ),
    Named(
        Replicated, ("replicated", "gradient-coding"), "gradient coding, fractional repetition",
        "workers of a group compute the same mini-batches; the first answer of each group counts",
        "Tandon et al., Gradient Coding", "replicated:groups=0-1/2-3",
    ),
    Named(
        Buffered, ("buffered", "softsync", "k-batch-async"), "softsync, K-batch-async, FedBuff on gradients",
        "nobody waits: every size gradients, however old, their mean is an update",
        "Zhang et al., Staleness-aware Async-SGD; Nguyen et al., FedBuff", "buffered:size=8",
    ),
    Named(
        StalenessAware, ("staleness-aware", "sasgd"), "staleness-aware ASGD",
        "as buffered, each gradient divided by its staleness",
        "Zhang et al., Staleness-aware Async-SGD", "staleness-aware:size=8",
    ),
    Named(
        BoundedStaleness, ("bounded-staleness", "ssp"), "SSP",
        "each gradient is an update; who is more than slack pieces ahead of the slowest waits",
        "Ho et al., Stale Synchronous Parallel Parameter Server", "bounded-staleness:slack=3",
    ),
    Named(
        DelayAdaptive, ("delay-adaptive", "delay-adaptive-asgd"), "delay-adaptive ASGD",
        "each gradient is an update; one older than the number of workers counts less",
        "Koloskova et al., Sharper Convergence Guarantees; Mishchenko et al.", "delay-adaptive",
    ),
    Named(
        Ringmaster, ("ringmaster", "ringmaster-asgd"), "Ringmaster ASGD",
        "each gradient younger than threshold is an update; older work is stopped and dropped",
        "Maranjyan et al., Ringmaster ASGD, Algs. 4, 5", "ringmaster:threshold=16",
    ),
    Named(
        Rennala, ("rennala", "rennala-sgd"), "Rennala SGD",
        "all compute at the same weights, as often as they can, until batch gradients are there",
        "Tyurin & Richtárik, Optimal Time Complexities", "rennala:batch=32",
    ),
    Named(
        Malenia, ("malenia", "malenia-sgd"), "Malenia SGD",
        "the same, every worker counting alike however many gradients it has handed in",
        "Tyurin & Richtárik, Optimal Time Complexities", "malenia:batch=32",
    ),
    Named(
        Rescaled, ("rescaled", "rescaled-asgd"), "Rescaled ASGD",
        "each gradient is an update, weighed by the time that it took: all workers count alike",
        "Mahran et al., Rescaled Asynchronous SGD", "rescaled",
    ),
    Named(
        NewestOfEach, ("newest-of-each", "iag", "mifa"), "IAG, MIFA",
        "keep the newest gradient of each worker; on each arrival step along the mean of all",
        "Blatt et al., IAG; Gu et al., MIFA", "newest-of-each",
    ),
)  # fmt: skip
HAND_IN_MODELS = (
    Named(
        ModelAveraging, ("model-averaging", "ma", "ma-dnn", "local-sgd"), "MA-DNN, local SGD",
        "every worker trains a model of its own; every so many steps their parameters are averaged",
        f"{EC_DNN}, Eq. (1)", "ma:every=16", (("outer", None), ("warm_up", 0)),
    ),
    Named(
        PostLocalSGD, ("post-local-sgd", "post-local"), "post-local SGD",
        "one local step before each of the first warm_up averages, then every so many",
        "Lin et al., Don't use large mini-batches, use local SGD, 2020", "post-local:every=16,warm_up=200",
    ),
    Named(
        DiLoCo, ("distributed-low-communication", "diloco"), "DiLoCo",
        "what the models moved is a gradient for Nesterov's momentum on the server",
        "Douillard et al., DiLoCo, 2023, Alg. 1", "diloco:every=16,outer_lr=0.7,outer_momentum=0.9",
    ),
    Named(
        BMUF, ("block-momentum", "bmuf"), "BMUF",
        "the averages have a momentum, unless given of 1 - 1/workers",
        "Chen & Huo, Scalable training of deep learning machines, 2016", "bmuf:every=16,outer_momentum=0.875",
    ),
    Named(
        SlowMo, ("slow-momentum", "slowmo"), "SlowMo",
        "the averages have a momentum, whatever optimizer the workers have",
        "Wang et al., SlowMo, 2020, Alg. 1", "slowmo:every=16,outer_momentum=0.5",
    ),
    Named(
        DecoupledDiLoCo, ("decoupled-diloco", "ddiloco"), "Decoupled DiLoCo",
        "as diloco, with a quorum and so many seconds of grace; models weigh by their tokens",
        "Douillard et al., Decoupled DiLoCo, 2026", "decoupled-diloco:every=16,quorum=6,grace=0.5",
    ),
    Named(
        FedBuff, ("buffered-models", "fedbuff"), "FedBuff",
        "nobody waits: what every size models have learnt is added up, the older the less",
        "Nguyen et al., Buffered asynchronous aggregation, 2022", "fedbuff:every=16,size=8",
    ),
    Named(
        AdaComm, ("adaptive-communication", "adacomm"), "AdaComm",
        "models are averaged the more often the lower the training loss",
        "Wang & Joshi, Adaptive communication strategies, 2019", "adacomm:every=16,interval=10",
    ),
    Named(
        FedAsync, ("mixed-models", "fedasync"), "FedAsync",
        "each model is mixed into the server's as it arrives, the less the older it is",
        "Xie et al., Asynchronous federated optimization, 2019, Alg. 1", "fedasync:every=16,mixing=0.6",
    ),
    Named(
        EASGD, ("elastic-averaging", "easgd"), "EASGD",
        "an elastic force between the server's model and each worker's, which continues from its own",
        "Zhang et al., Deep learning with elastic averaging SGD, 2015, Alg. 1", "easgd:every=16",
    ),
    Named(
        EnsembleCompression, ("ensemble-compression", "ec-dnn-s", "ec-dnn"), "EC-DNN-S",
        "the models' outputs are averaged, not their parameters, and distilled back into each model",
        f"{EC_DNN}, Alg. 1, Eq. (5)", "ec-dnn-s:every=500", (("weights", "simple"),),
    ),
    Named(
        EnsembleCompression, ("ec-regression", "ec-dnn-r"), "EC-DNN-R",
        "the same, the outputs weighed by least squares on the labels",
        f"{EC_DNN}, Eq. (7)", "ec-dnn-r:every=500,pooled=true", (("weights", "regression"),),
    ),
    Named(
        EnsembleCompression, ("ec-margin", "ec-dnn-m"), "EC-DNN-M",
        "the same, the outputs weighed sample by sample, by how sure each model is of the right class",
        f"{EC_DNN}, Eq. (8)", "ec-dnn-m:every=500", (("weights", "margin"),),
    ),
    Named(
        FinalEnsemble, ("final-ensemble", "e-dnn"), "E-DNN; S-DNN on one worker",
        "the models are trained apart; their outputs are averaged once, at the end",
        f"{EC_DNN}, Sec. 4.2", "e-dnn:steps=2000",
    ),
)  # fmt: skip
STRATEGIES = (*HAND_IN_GRADIENTS, *HAND_IN_MODELS)
BY_NAME = {name: named for named in STRATEGIES for name in named.names}
