"""Strategies from texts and tables: how the command line and a TOML file spell them.

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
    diloco:every=16,outer_lr=0.7,waits=asgd      an outer optimizer on the server, nobody waits

``inside`` and ``waits`` come last: the rest of the text is the inner strategy. In TOML the same is a table, these
tables of their own and ``groups`` a list of lists or "labels", or simply the same text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Any, get_type_hints

from paceline.core.codec import MOST_WORKERS
from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import as_table, as_written, described, read_value, refuse_unknown
from paceline.strategies.catalogue import BY_NAME, GROUPED, STRATEGIES, Named
from paceline.strategies.grouped import Grouped, groups_by_label, groups_by_speed

TOLERANCE = 0.25
DEEPEST = 8  # rules inside rules
LABELS = "labels"  # as groups: those of the fleet


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
    """What the command line calls a strategy: its name, and the options that are not as usual; None if it has none.

    Of several names, the one that leaves the fewest options to tell.
    """
    found = [choice for named in STRATEGIES if (choice := _as_named(strategy, named)) is not None]
    return min(found, key=lambda choice: choice.text.count("="), default=None)


def _as_named(strategy: Strategy, named: Named) -> StrategyChoice | None:
    if isinstance(named.kind, type):
        if named.kind is not type(strategy) or any(getattr(strategy, k) != value for k, value in named.preset):
            return None
    elif not _is_made_by(strategy, named.kind):
        return None
    options: dict[str, Any] = {}
    for name, parameter in signature(named.kind).parameters.items():
        value = _option(strategy, name)
        if name in dict(named.preset) or value == parameter.default:
            continue
        if callable(getattr(value, "decide", None)):
            value = choice_of(value)
        if value is None:
            return None
        options[name] = value
    last = {name: value for name, value in options.items() if isinstance(value, StrategyChoice)}
    return StrategyChoice(named.names[0], {**{n: v for n, v in options.items() if n not in last}, **last})


def _is_made_by(strategy: Strategy, make: Callable[..., Strategy]) -> bool:
    """Does a function that makes strategies of one kind make this one, of the values that can be read from it?"""
    if get_type_hints(make)["return"] is not type(strategy):
        return False
    try:
        return make(**{name: _option(strategy, name) for name in signature(make).parameters}) == strategy
    except (AttributeError, ConfigError):
        return False


def _option(strategy: Strategy, name: str) -> Any:
    """An option by its name: a field of the strategy, of the rule that it waits by, or of its outer optimizer."""
    if hasattr(strategy, name):
        return getattr(strategy, name)
    if name.startswith("outer_") or name == "nesterov":
        return getattr(getattr(strategy, "outer", None), name.removeprefix("outer_"))
    return getattr(getattr(strategy, "waits", None), name)


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


def _nearest(name: str) -> str:
    """The end of a sentence about a name that is not known. There are too many names to list them all."""
    close = get_close_matches(name.strip().lower(), BY_NAME, n=1, cutoff=0.5)
    meant = f"did you mean {close[0]!r}? " if close else ""
    first = ", ".join(each.names[0] for each in STRATEGIES[:6])
    return f"{meant}(paceline strategies lists all names: {first}, ...)"


def _choice(name: str, options: dict[str, Any], where: str, depth: int = 0) -> StrategyChoice:
    named = BY_NAME.get(name.strip().lower())
    if named is None:
        prefix = "" if where == f"strategy {as_written(name)}" else f"{where}: "  # it names nothing else
        raise ConfigError(f"{prefix}unknown strategy {as_written(name)}: {_nearest(name)}")
    hints = named.options
    if options and not hints:
        raise ConfigError(f"{where}: {named.names[1]} has no options: leave {next(iter(options))} out")
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
