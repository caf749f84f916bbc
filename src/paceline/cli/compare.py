"""``paceline compare``: strategies side by side, in a table and in curves."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import CheckStep, Strategies, config_of, told
from paceline.engine.signals import Interrupted, terminable
from paceline.files import check_writable

if TYPE_CHECKING:
    from paceline.comparison.jobs import Comparison, Outcome
    from paceline.config.file import Config

FIGURE = Path("paceline-compare.png")


def compare(  # noqa: PLR0917 - typer names the options
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A TOML file; without one, the demo.")] = None,
    strategy: Strategies = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write everything there.")] = None,
    figure: Annotated[Path, typer.Option(metavar="PNG", help="Where the curves go.")] = FIGURE,
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Use the seeds 0 to N-1.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes; by default one a core.")] = None,
    check_step: CheckStep = True,
) -> None:
    """Compare strategies on the same fleet, data and seeds: which one reaches the target soonest, and why."""
    from paceline.comparison.pool import usable_cores

    config = config_of(file or Path(__file__).with_name("demo.toml"), strategy)
    if seeds is not None:
        config = replace(config, seeds=tuple(range(seeds)))
    check_writable(figure, ".png")
    if json_file is not None:
        check_writable(json_file, ".json")
    processes, began = jobs or usable_cores(), time.monotonic()
    comparison = _run_all(config, processes, json_file)
    _show(comparison)
    if check_step:
        for warning in _rate_warnings(comparison, processes, time.monotonic() - began):
            told(warning)
    _write(comparison, json_file, figure)
    typer.echo(_next_steps(file, comparison))


def _rate_warnings(comparison: "Comparison", processes: int, seconds: float) -> list[str]:
    """One for each strategy that is shown with a learning rate beyond its limit; the comparison took ``seconds``.

    The curvature is found where the runs were, so that this process need not import torch.
    """
    from paceline.comparison.jobs import aside
    from paceline.prediction.rate_check import quick_curvature, rate_warning

    config = comparison.config
    found = aside(processes, quick_curvature, config, config.seeds[0], seconds)
    warnings = []
    for entry in comparison.entries:
        middle = sorted(entry.outcomes, key=lambda each: each.measures.mean_staleness)[len(entry.outcomes) // 2]
        warnings.append(rate_warning(entry.label, config, entry.lr, middle.measures, found))
    return [warning for warning in warnings if warning is not None]


def _run_all(config: "Config", processes: int, json_file: Path | None) -> "Comparison":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from paceline.callbacks.progress import EveryMinute
    from paceline.comparison.jobs import comparison_of, jobs_of, outcomes_of
    from paceline.comparison.tables import console

    jobs = jobs_of(config)
    processes = min(processes, len(jobs))
    terminal = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    outcomes: list[Outcome] = []
    minute = EveryMinute()
    try:
        with terminable(), bar:
            task = bar.add_task("comparing", total=len(jobs))
            for outcome in outcomes_of(config, jobs, processes):
                if not outcomes and not terminal.is_terminal:
                    told(f"{len(jobs)} runs in {processes} process{'es' * (processes > 1)} ...")
                outcomes.append(outcome)
                bar.advance(task)
                if not terminal.is_terminal and minute.due():
                    told(f"{len(outcomes)} of {len(jobs)} runs")
    except KeyboardInterrupt as asked:
        kept = "nothing was written"
        if json_file is not None and outcomes:
            _write_json(comparison_of(config, outcomes), json_file)
            kept = f"those that ended are in {json_file}"
        raise Interrupted(f" after {len(outcomes)} of {len(jobs)} runs; {kept}", asked) from None
    return comparison_of(config, outcomes)


def _show(comparison: "Comparison") -> None:
    from paceline.comparison.tables import comparison_table, console, spoiled_line
    from paceline.comparison.verdict import verdict

    terminal = console()
    terminal.print(comparison_table(comparison))
    steps = f" Steps: {', '.join(f'{lr:g}' for lr in comparison.config.tune.lr)}." if comparison.config.tune else ""
    terminal.print(f"\n{comparison.rule}{steps}\n", style="dim")
    for sentence in verdict(comparison):
        terminal.print(sentence, markup=False)
    for entry in comparison.entries:
        if entry.spoiled:
            terminal.print(spoiled_line(entry.label, entry.spoiled), style="yellow", markup=False)
        for outcome in entry.diverged:
            terminal.print(f"{entry.label}, seed {outcome.job.seed}: {outcome.problem}", style="red", markup=False)
    terminal.print()


def _write(comparison: "Comparison", json_file: Path | None, figure: Path) -> None:
    from paceline.comparison.tables import title
    from paceline.reports.figures import Curve, draw_curves

    curves = [
        Curve(
            entry.label + ("" if entry.lr is None else f"  (step {entry.lr:g})"),
            [each.history for each in entry.outcomes],
        )
        for entry in comparison.entries
    ]
    if json_file is not None:  # first: curves can be drawn again from it
        _write_json(comparison, json_file)
        typer.echo(f"Everything in numbers: {json_file}")
    draw_curves(curves, figure, target=comparison.config.target, title=title(comparison))
    typer.echo(f"Curves: {figure}")


def _write_json(comparison: "Comparison", path: Path) -> None:
    from paceline.files import write_atomically

    write_atomically(path, json.dumps(comparison.table(), allow_nan=False) + "\n")


def _next_steps(file: Path | None, comparison: "Comparison") -> str:
    best = comparison.entries[0]
    if file is None:
        return (
            f"Next: copy {Path(__file__).with_name('demo.toml')}, describe your fleet in it, and: paceline compare FILE"
        )
    step = "" if best.lr is None else f" --lr {best.lr:g}"
    return f"Next: paceline train {file} --strategy {best.label}{step}"
