"""How figures and pages look: one colour for each family of rules everywhere, names in words, axes that can be read.

A figure with a line for each rule::

    from paceline import look

    for rule, style in zip(rules, look.lines(rules)):           # objects, or texts such as "k-sgd:quorum=8"
        axis.plot(xs, ys, label=look.words(rule, workers=16), **style)      # "K-SGD, 8 of 16"
    look.tidy(axis, across="seconds", up="test accuracy")       # light grid, no frame, at least three marks
    look.write(figure, path)                                    # a PNG, whole or not at all

Bars, points and cells of a map take ``look.colour(rule)``; ``look.line(rule)`` is the style of a single line. A family
is what a rule does about late workers (docs/strategies.md): rules of a family share colour and marker; in one figure
the second and third of them get another shade and other dashes. What is no rule of Paceline, such as "ddp", is dark
grey. Colours are never the only signal: every line of a figure has its own dashes, and families have markers. What
workers do in a timeline has its colours in ``KINDS``. ``SERIES`` is for lines that are no rules (learning rates,
theories). All colours can be told apart with any colour vision, and stand out from white, or from the dark ground of a
page, at 3 to 1; tests compute both.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.coordinator import Strategy
from paceline.files import write_atomically
from paceline.strategies.names import StrategyChoice
from paceline.strategies.words import choice_in, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DIM", "KINDS", "OTHER", "SERIES", "colour", "line", "lines", "series", "tidy", "words", "write"]

Rule = Strategy | StrategyChoice | str | Mapping[str, Any]
Dashes = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Family:
    """Rules that do the same about late workers: their colour on white and on dark ground, and their marker."""

    name: str
    light: str
    dark: str
    marker: str
    rules: frozenset[str]  # by the first of their names


def _family(name: str, light: str, dark: str, marker: str, rules: str = "") -> Family:
    return Family(name, light, dark, marker, frozenset(rules.split()))


FAMILIES = (
    _family("wait for all", "#005b8d", "#2f7af5", "o", "synchronous unequal-batches advised malenia"),
    _family("leave late ones out", "#b38f00", "#fadd18", "s", "fastest-k adaptive-quorum rennala replicated"),
    _family("use late work", "#16a35a", "#5ef2a0", "^", "live-compensation anytime quorum-grace"),
    _family("wait in groups", "#de6595", "#e3618a", "D", "grouped regrouped"),
    _family("do not wait", "#a05205", "#ef9a3a", "v", "asynchronous buffered bounded-staleness newest-of-each"),
    _family(
        "do not wait, weigh by age", "#6e1a10", "#f0354f", "X", "staleness-aware delay-adaptive rescaled ringmaster"
    ),
    _family(
        "average models", "#3080f5", "#84c6ff", "P",
        "model-averaging post-local-sgd distributed-low-communication block-momentum slow-momentum decoupled-diloco "
        "buffered-models adaptive-communication mixed-models elastic-averaging",
    ),
    _family("ensembles", "#4b1fd1", "#8474ba", "*", "ensemble-compression ec-regression ec-margin final-ensemble"),
)  # fmt: skip
OTHER = _family("other", "#3b3f46", "#cdd3dc", "p")
SERIES = (*(FAMILIES[place].light for place in (0, 4, 2, 3, 6, 1)), OTHER.light)
DASHES: tuple[Dashes, ...] = (
    "-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)),
    (0, (9, 2, 3, 2)),
)  # fmt: skip
SHADES = (0.0, -0.45, 0.35)  # of the first, second and third of a family in one figure: towards black, towards white
FAINT = "0.9"  # of a grid
DIM = "0.35"  # of targets and notes

# What a worker does in a timeline (paceline.trace.timeline.KINDS): its colour on white, and on dark ground.
KINDS: Mapping[str, tuple[str, str]] = {
    "compute": ("#4178be", "#5a93dd"),
    "late": ("#e8a317", "#f0b53c"),
    "dropped": ("#d1435b", "#ea5d74"),
    "relabel": ("#9a6fb0", "#b58ad0"),
    "transfer": ("#7fc4b8", "#5aa99c"),
    "wait": ("#e6e9ee", "#262d3a"),
    "pending": ("#a9bfdc", "#3f587d"),
}


def words(rule: Rule, workers: int | None = None) -> str:
    """A rule as a legend calls it, such as "K-SGD, 8 of 16"; see ``paceline.strategies.words``."""
    return in_words(rule, workers)


def family(rule: Rule) -> Family:
    """The family of a rule, or of its text on the command line; ``OTHER`` where it has no name in Paceline."""
    choice = choice_in(rule)
    return next((each for each in FAMILIES if choice is not None and choice.name in each.rules), OTHER)


def colour(rule: Rule, *, dark: bool = False) -> str:
    """The colour of a rule, the same in all figures; on dark ground another one of the same hue."""
    mine = family(rule)
    return mine.dark if dark else mine.light


def shaded(tone: str, place: int, *, dark: bool = False) -> str:
    """The colour of the ``place``-th rule of a family in one figure."""
    share = SHADES[place % len(SHADES)] * (-1 if dark else 1)
    parts = [int(tone[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [round(part + (255 - part) * share if share > 0 else part * (1 + share)) for part in parts]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def lines(rules: Sequence[Rule], *, markers: bool = True, dark: bool = False) -> list[dict[str, Any]]:
    """For each line of one figure what ``axis.plot`` takes: colour, dashes and, unless left out, a few markers."""
    styles, seen, taken = list[dict[str, Any]](), dict[str, int](), set[Dashes]()
    for number, rule in enumerate(rules):
        mine = family(rule)
        place = seen.get(mine.name, 0)
        seen[mine.name] = place + 1
        tone = shaded(mine.dark if dark else mine.light, place, dark=dark)
        own = DASHES[(*FAMILIES, OTHER).index(mine) % len(DASHES)]
        dashes = own if own not in taken else next((each for each in DASHES if each not in taken), own)
        taken.add(dashes)
        every = (0.06 + 0.02 * (number % 5), 0.22)  # of the length of the axes, so that markers do not meet
        marked = {"marker": mine.marker, "markersize": 6, "markevery": every, "markeredgecolor": "white"}
        styles.append({"color": tone, "linestyle": dashes, **(marked if markers else {})})
    return styles


def line(rule: Rule, *, markers: bool = True) -> dict[str, Any]:
    """What ``axis.plot`` takes for the only line of a rule's family in a figure."""
    return lines([rule], markers=markers)[0]


def series(number: int) -> dict[str, Any]:
    """Colour and dashes of a line that is no rule, by its place in the figure."""
    return {"color": SERIES[number % len(SERIES)], "linestyle": DASHES[number % len(DASHES)]}


def tidy(axis: Any, title: str = "", across: str = "", up: str = "", *, size: int = 11) -> None:
    """Title and labels; a light grid, no frame above and on the right, at least three marks on each axis."""
    if title:
        axis.set_title(title, fontsize=size)
    if across:
        axis.set_xlabel(across)
    if up:
        axis.set_ylabel(up)
    axis.grid(True, color=FAINT, linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    mark(axis)


def mark(axis: Any) -> None:
    """Give both axes at least three labelled marks; to be called when everything is drawn and limits are set.

    Marks that were set by hand, such as names of bars, stay as they are.
    """
    from matplotlib.ticker import FormatStrFormatter, LogFormatter, LogLocator, MaxNLocator, NullFormatter

    for side, view in ((axis.xaxis, sorted(axis.get_xlim())), (axis.yaxis, sorted(axis.get_ylim()))):
        if isinstance(locator := side.get_major_locator(), MaxNLocator):
            locator.set_params(min_n_ticks=3)
        elif isinstance(locator, LogLocator):
            side.set_ticks(log_marks(*view))
            side.set_minor_formatter(NullFormatter())
            if isinstance(side.get_major_formatter(), LogFormatter):
                side.set_major_formatter(FormatStrFormatter("%g"))


def log_marks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: powers of ten if there are three, else as many digits between as needed."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    finer = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
    for digits in finer:
        found = [float(f"{digit * 10.0**power:.6g}") for power in powers for digit in digits]
        found = [each for each in found if low <= each <= high]
        if len(found) >= 3:
            every = -(-len(found) // 9)  # at most nine
            return found[::every]
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    first, last = math.ceil(low / step), math.floor(high / step)
    every = -(-(last - first + 1) // 6)
    return [float(f"{place * step:.6g}") for place in range(first, last + 1, every)]


def png(figure: "Figure", dpi: float | None = None) -> bytes:
    """A figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi or "figure", metadata={"Software": "Paceline"})
    return buffer.getvalue()


def write(figure: "Figure", path: Path) -> None:
    """Write a figure as a PNG, whole or not at all."""
    write_atomically(path, png(figure))
