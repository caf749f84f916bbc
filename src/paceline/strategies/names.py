"""The strategies by name: what the command line and a TOML file call them, the rule in a sentence, the paper.

On the command line a strategy is ``name:option=value,option=value``::

    ssgd    asgd    k-sgd:quorum=7    lgc:quorum=7,blocks=4,recall=false
    gsgd                                  groups of like speed, formed with a tolerance of 0.25
    gsgd:tolerance=0.5                    the same, coarser
    gsgd:groups=0-3/4-7/8-15              groups by hand
    gsgd:groups=labels                    a group for each label of the fleet's workers
    gsgd-measured                         groups by measured speed, formed anew when speeds change
    gsgd-measured:groups=labels,window=15 the same, the groups to begin with by labels
    gsgd:tolerance=0.5,inside=lgc:quorum=3,blocks=4     another rule inside the groups
    unequal:total=128                     mini-batches by measured speed, 128 samples an update
    buffered:size=8    ringmaster:threshold=16,stop=false    replicated:groups=0-1/2-3/4-5
    unequal:total=128,margin=0.2,inside=k-sgd:quorum=7   the same, another rule inside
    ma:every=16    ec-dnn-s:every=500,relabel=0.5    e-dnn:steps=2000
    ma:every=16,waits=k-sgd:quorum=6      models of the fastest six are averaged

``inside`` and ``waits`` come last: the rest of the text is the inner strategy. In TOML the same is a table, these
tables of their own and ``groups`` a list of lists or "labels", or simply the same text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

from paceline.core.codec import MOST_WORKERS
from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import as_table, as_written, described, nearest, read_value, refuse_unknown
from paceline.strategies.adaptive_quorum import AdaptiveQuorum
from paceline.strategies.anytime import Anytime
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.bounded_staleness import BoundedStaleness
from paceline.strategies.buffered import Buffered, StalenessAware
from paceline.strategies.delay_adaptive import DelayAdaptive
from paceline.strategies.ensemble_compression import EnsembleCompression, FinalEnsemble
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped, groups_by_label, groups_by_speed
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.newest_of_each import NewestOfEach
from paceline.strategies.quorum_grace import QuorumGrace
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.rennala import Malenia, Rennala
from paceline.strategies.replicated import Replicated
from paceline.strategies.rescaled import Rescaled
from paceline.strategies.ringmaster import Ringmaster
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.unequal_batches import UnequalBatches

TOLERANCE = 0.25
DEEPEST = 8  # rules inside rules
LABELS = "labels"  # as groups: those of the fleet
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
        f"{EC_DNN}, Eq. (1)", "ma:every=16",
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


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy that was asked for: its name and options, not yet fitted to a fleet."""

    name: str
    options: Mapping[str, Any]

    @property
    def named(self) -> Named:
        return BY_NAME[self.name]

    @property
    def text(self) -> str:
        """The choice as the command line spells it."""
        return self._spelled(0)

    @property
    def short(self) -> str:
        """The same with the acronym."""
        return self._spelled(1)

    def _spelled(self, alias: int) -> str:
        pairs = self.options.items()
        options = ",".join(
            f"{name}={value._spelled(alias) if isinstance(value, StrategyChoice) else spelled(value)}"
            for name, value in pairs
        )
        name = self.named.names[alias]
        return f"{name}:{options}" if options else name

    def table(self) -> dict[str, Any]:
        """The choice as a TOML file spells it."""
        options = {k: v.table() if isinstance(v, StrategyChoice) else v for k, v in self.options.items()}
        return {"name": self.name, **options}

    def strategy(self, durations: Sequence[float], labels: Sequence[str] = ()) -> Strategy:
        """The strategy itself. Groups that were not given are formed by the workers' typical durations, or labels."""
        options: dict[str, Any] = {
            name: value.strategy(durations, labels) if isinstance(value, StrategyChoice) else value
            for name, value in (*self.named.preset, *self.options.items())
        }
        try:
            if options.get("groups") == LABELS:
                if not labels:
                    raise ConfigError("the fleet has no labels to form groups by: leave groups out, or name workers")
                options["groups"] = groups_by_label(labels)
            if self.named.kind is Grouped:
                tolerance = options.pop("tolerance", TOLERANCE)
                options["groups"] = options.get("groups") or groups_by_speed(durations, tolerance)
            return self.named.kind(**options)
        except ConfigError as error:
            raise ConfigError(f"strategy {self.short!r}: {error}") from None


def choice_of(strategy: Strategy) -> StrategyChoice | None:
    """What the command line calls a strategy: its name, and the options that are not as usual; None if it has none."""
    for named in STRATEGIES:
        if named.kind is type(strategy) and all(getattr(strategy, name) == value for name, value in named.preset):
            break
    else:
        return None
    options: dict[str, Any] = {}
    for name, parameter in signature(named.kind).parameters.items():
        value = getattr(strategy, name)
        if name in dict(named.preset) or value == parameter.default:
            continue
        if callable(getattr(value, "decide", None)):
            value = choice_of(value)
        if value is None:
            return None
        options[name] = value
    last = {name: value for name, value in options.items() if isinstance(value, StrategyChoice)}
    return StrategyChoice(named.names[0], {**{n: v for n, v in options.items() if n not in last}, **last})


def parse_strategy(text: str, depth: int = 0) -> StrategyChoice:
    """Read ``lgc:quorum=7,blocks=4`` as the command line spells it; ``depth`` strategies are around it already."""
    _check_depth(depth)
    where = f"strategy {as_written(text)}"
    name, _, rest = text.strip().partition(":")
    options: dict[str, Any] = {}
    while rest:
        option, equals, value = rest.partition("=")
        if option not in ("inside", "waits"):
            piece, _, rest = rest.partition(",")
            option, equals, value = piece.partition("=")
        else:
            piece, rest = rest, ""
        if not equals or not value:
            raise ConfigError(f"{where}: {as_written(piece)} is not an option: write name:option=value,option=value")
        if option in options:
            raise ConfigError(f"{where}: {option} is given twice")
        options[option] = _read_text(option, value, where)
    return _choice(name, options, where, depth)


def read_strategy(value: Any, where: str, depth: int = 0) -> StrategyChoice:
    """Read a strategy from TOML: a table with a name and options, or a text as on the command line."""
    _check_depth(depth)
    if isinstance(value, str):
        return parse_strategy(value, depth)
    table = dict(as_table(value, where))
    if not isinstance(name := table.pop("name", None), str):
        raise ConfigError(f'{where}: a strategy needs a name, such as name = "lgc", not {as_written(name)}')
    return _choice(name, table, where, depth)


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise ConfigError(f"strategy: rules inside rules are nested deeper than {DEEPEST}: leave some of them out")


def _choice(name: str, options: dict[str, Any], where: str, depth: int = 0) -> StrategyChoice:
    named = BY_NAME.get(name.strip().lower())
    if named is None:
        raise ConfigError(f"{where}: unknown strategy {as_written(name)}: {nearest(name, BY_NAME)}")
    hints = named.options
    refuse_unknown(options, hints, where)
    if named.kind is Grouped and "groups" in options and "tolerance" in options:
        raise ConfigError(f"{where}: give either groups or a tolerance to form them with, not both")
    for option in named.required:
        if option not in options:
            raise ConfigError(f"{where}: {option} is missing: give {described(hints[option])}, as in {named.example}")
    read = {option: _read(hints[option], value, f"{where}: {option}", depth) for option, value in options.items()}
    last = {option: value for option, value in read.items() if isinstance(value, StrategyChoice)}
    return StrategyChoice(named.names[0], {**{o: v for o, v in read.items() if o not in last}, **last})


def _read(kind: Any, value: Any, where: str, depth: int) -> Any:
    if kind == GROUPED["groups"] and value == LABELS:
        return value
    return read_strategy(value, where, depth + 1) if kind is Strategy else read_value(kind, value, where)


def _read_text(option: str, text: str, where: str) -> Any:
    if option == "groups" and text != LABELS:
        return [_workers(group, where) for group in text.split("/")]
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _workers(text: str, where: str) -> list[int]:
    """Read ``0-3`` or ``0-3+7``."""
    workers: list[int] = []
    for piece in text.split("+"):
        first, _, last = piece.partition("-")
        last = last or first
        if not all(each.isdecimal() and len(each) < 10 for each in (first, last)) or int(last) < int(first):
            raise ConfigError(f"{where}: {as_written(piece)} names no workers: write groups as 0-3/4-7/8+10+12-15")
        if int(last) >= MOST_WORKERS or len(workers) >= MOST_WORKERS:
            raise ConfigError(f"{where}: {as_written(piece)} names more workers than any fleet has ({MOST_WORKERS:,})")
        workers += range(int(first), int(last) + 1)
    return workers


def spelled(value: Any) -> str:
    """An option as the command line spells it, such as groups 0-3/4-7."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "/".join("+".join(_ranges(group)) for group in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ranges(group: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for worker in group:
        if runs and worker == runs[-1][-1] + 1:
            runs[-1].append(worker)
        else:
            runs.append([worker])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
