"""Pictures of the README and of the pages in docs/understand.

    python tools/pictures.py [NAME...]      draws docs/images/NAME.png: readme, ticket, round, staleness, ...

The picture of the README is drawn from what ``benchmarks/who_waits.py`` found; the ideas are simulated here, so that a
picture shows what a rule does.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure

import paceline
from paceline import look
from paceline.delays import Constant
from paceline.trace.timeline import Recalled, Span, Updated, timeline

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs/images"
INK = "0.15"
SAID = {
    "compute": "computes",
    "late": "computes, used one update later",
    "dropped": "work thrown away",
    "wait": "waits",
    "transfer": "messages",
}
Row = tuple[int, float, float, str, str]  # worker, begin, end, kind, text


def bars(
    axis: Any, rows: Sequence[Row], workers: int, *, height: float = 0.72, size: float = 8, edge: float = 1.2
) -> None:
    """Timelines of workers, the first on top."""
    for worker, begin, end, kind, text in rows:
        colour = look.KINDS[kind][0]
        axis.barh(worker, end - begin, left=begin, height=height, color=colour, edgecolor="white", linewidth=edge)
        if text:
            light = kind in ("wait", "late", "transfer")
            axis.text(
                (begin + end) / 2,
                worker,
                text,
                ha="center",
                va="center",
                fontsize=size,
                color=INK if light else "white",
            )
    axis.set_ylim(workers - 0.45, -0.55)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


def idea(
    name: str,
    strategy: paceline.strategy.Strategy,
    seconds: Sequence[float],
    until: float,
    *,
    text: Callable[[Span], str] = lambda span: "",
    title: str,
    **fleet: Any,
) -> None:
    """The timeline of a rule on workers that take so many seconds."""
    trace = paceline.simulate(
        strategy,
        paceline.SimulatedFleet([Constant(each) for each in seconds], **fleet),
        stop=paceline.Stop(seconds=until),
    )
    marks = list(timeline(trace, end=until))
    spans = [mark for mark in marks if isinstance(mark, Span)]
    figure = Figure(figsize=(9, 0.52 * len(seconds) + 1.35), dpi=110, layout="constrained")
    axis = figure.subplots()
    rows = [
        (span.worker, span.start, min(span.end, until), "compute" if span.kind == "pending" else span.kind, text(span))
        for span in spans
    ]
    bars(axis, rows, len(seconds), size=9)
    labelled = -until
    for mark in (mark for mark in marks if isinstance(mark, Updated)):
        axis.axvline(mark.at, color=INK, linewidth=1.1, zorder=0)
        if mark.at - labelled > until / 12:
            axis.text(mark.at, -0.62, f"update {mark.number}", ha="center", va="bottom", fontsize=8, color=INK)
            labelled = mark.at
    for mark in (mark for mark in marks if isinstance(mark, Recalled)):
        axis.plot(mark.at, mark.worker, marker="v", color=INK, markersize=7, clip_on=False)
    axis.set_yticks(range(len(seconds)), [f"worker {worker}" for worker in range(len(seconds))])
    axis.set_xlim(0, until)
    axis.set_xlabel("seconds")
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    legend(figure, axis, sorted({row[3] for row in rows}, key=[*SAID].index))
    look.write(figure, IMAGES / f"{name}.png")


def legend(figure: Figure, axis: Any, kinds: Sequence[str]) -> None:
    handles = [axis.barh(0, 0, color=look.KINDS[kind][0], label=SAID[kind]) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(kinds), frameon=False, fontsize=9)


def used(span: Span) -> str:
    return "" if span.staleness is None else str(span.staleness)


IDEAS: dict[str, Callable[[], None]] = {
    "ticket": lambda: idea(
        "ticket", paceline.Asynchronous(), (1.5, 2.2), 6.6,
        text=lambda span: f"ticket {span.ticket}" if span.ticket is not None else "",
        title="A ticket is one piece of work. Its worker downloads the model when it gets the ticket.",
    ),
    "round": lambda: idea(
        "round", paceline.Synchronous(), (1.0, 1.2, 1.1, 2.0), 6.3,
        title="Synchronous: a round ends when the last worker has handed in, and everybody waits for it.",
    ),
    "staleness": lambda: idea(
        "staleness", paceline.Asynchronous(), (1.0, 1.6, 2.7), 6.0, text=used,
        title="Asynchronous: each number is the staleness of that gradient, the updates since its download.",
    ),
    "quorum": lambda: idea(
        "quorum", paceline.FastestK(quorum=3), (1.0, 1.2, 1.1, 2.0), 6.3,
        title="Fastest K, a quorum of 3 of 4: a round ends with the third gradient, and the last worker is stopped.",
    ),
    "recall": lambda: idea(
        "recall", paceline.LiveCompensation(quorum=3, blocks=4), (1.0, 1.2, 1.1, 2.0), 6.3,
        title="Live compensation, 3 of 4: the last worker is recalled (triangle), and hands in the blocks that it has.",
        recall="block",
    ),
}  # fmt: skip


def momentum() -> None:
    """The loss of one quadratic, with and without a delay and momentum, at the same effective learning rate."""
    figure = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, delay in zip(axes, (0, 8), strict=True):
        for number, (momentum, rate) in enumerate([(0.0, 0.1), (0.9, 0.01), (0.9, 0.1)]):
            errors = descend(rate, momentum, delay)
            label = f"momentum {momentum:g}, learning rate {rate:g}"
            axis.plot(errors, label=label, **look.series(number))
        axis.set_yscale("log")
        axis.set_ylim(1e-4, 1e3)
        look.tidy(axis, f"gradients {delay} updates old" if delay else "fresh gradients", "updates", "error")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    look.write(figure, IMAGES / "momentum.png")


def descend(rate: float, momentum: float, delay: int, updates: int = 150) -> list[float]:
    """SGD of torch on x^2 / 2 from 1, with gradients at the weights of so many updates before."""
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=rate, momentum=momentum)
    seen = [1.0]
    for number in range(updates):
        weight.grad = torch.tensor(seen[max(0, number - delay)])
        optimizer.step()
        seen.append(float(weight.detach()))
    return [abs(value) for value in seen]


# Of each rule: its text on the command line, its name in the picture, and what it does.
RULES: dict[str, tuple[str, str, str]] = {
    "DDP": ("ddp", "DDP (gloo)", "everybody waits for the slow one"),
    "Synchronous": ("ssgd", "Synchronous SGD", "the same, in Paceline"),
    "FastestK": ("k-sgd:quorum=3", "K-SGD, 3 of 4", "does without the last one"),
    "LiveCompensation": ("lgc:quorum=3", "LGC-SGD, 3 of 4", "uses the work of the last one an update later"),
    "UnequalBatches": ("unequal:total=128", "Unequal batches", "the slow one gets fewer samples"),
    "Grouped": ("gsgd:groups=0-2/3", "Group SGD", "the slow one makes updates of its own"),
    "Asynchronous": ("asgd", "Asynchronous SGD", "nobody waits"),
}


def readme(shown: float = 0.4) -> None:
    """Timelines one above the other, and beside each the time to the same test accuracy."""
    found = json.loads((ROOT / "benchmarks/results/who_waits.json").read_text(encoding="utf-8"))
    seconds = {name: median(found["seconds"][name].values()) for name in RULES}
    gains = found["times as fast as DDP"]
    figure = Figure(figsize=(11, 1.12 * len(RULES) + 0.9), dpi=110, layout="constrained")
    panels = figure.subplots(len(RULES), 2, width_ratios=[2.6, 1], sharex="col")
    for (left, right), (name, (rule, words, does)) in zip(panels, RULES.items(), strict=True):
        told = found["timelines"][name]
        spans = [span for span in told["spans"] if span[1] < shown and span[3] != "pending"]
        rows = [(who, begin, min(end, shown), kind, "") for who, begin, end, kind in spans]
        bars(left, rows, 4, height=0.8, edge=0.4)
        left.set_yticks([0, 3], ["fast", "slow"], fontsize=8)
        title = left.set_title(words, loc="left", fontsize=11, fontweight="bold", pad=4)
        left.annotate(f"  {does}", (1, 0), xycoords=title, fontsize=10, color=look.DIM, va="bottom")
        for at in told["updates"]:
            left.plot([at, at], [-0.5, 3.45], color=INK, linewidth=0.7)
        left.set_xlim(0, shown)
        right.barh(0, seconds[name], height=0.5, color=look.colour(rule))
        said = f" {seconds[name]:.1f} s" + ("" if name == "DDP" else f" ({gains[name]:.1f}×)")
        right.text(seconds[name], 0, said, va="center", fontsize=11, color=INK)
        right.set_xlim(0, 1.2 * max(seconds.values()))
        right.set_ylim(-0.6, 0.6)
        right.set_yticks([])
        right.spines[["top", "right", "left"]].set_visible(False)
    panels[-1][0].set_xlabel(f"{shown:g} seconds of training; a line is an update of the model")
    panels[-1][1].set_xlabel(f"seconds to {found['target']:.0%} test accuracy\n(in brackets: times as fast as DDP)")
    seen = {span[3] for name in RULES for span in found["timelines"][name]["spans"]}
    legend(figure, panels[0][0], [kind for kind in SAID if kind in seen])
    title = "Convolutions on MNIST, four worker processes, the last one four times as slow, each rule tuned"
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    look.write(figure, IMAGES / "who-waits.png")


PICTURES: dict[str, Callable[[], None]] = {"readme": readme, "momentum": momentum, **IDEAS}


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
