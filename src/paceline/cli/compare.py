"""``paceline compare``: trains with several strategies and shows a table and learning curves."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import DEMO, CheckLr, CheckStep, JsonFile, Strategies, config_of
from paceline.cli.main import log
from paceline.engine.signals import Interrupted, terminable
from paceline.files import check_writable

if TYPE_CHECKING:
    from paceline.comparison.jobs import Comparison, Outcome
    from paceline.config.file import Config

FIGURE = Path("paceline-compare.png")


def compare(  # noqa: PLR0917 - typer names the options
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="TOML file with the experiment; without one, a demo runs.")
    ] = None,
    strategy: Strategies = None,
    json_file: JsonFile = None,
    figure: Annotated[Path, typer.Option(metavar="FILE.png", help="Write the learning curves to this file.")] = FIGURE,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Use the random seeds 0 to N-1, instead of those in FILE.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of runs at a time; by default one per CPU core.")
    ] = None,
    check_lr: CheckLr = True,
    check_step: CheckStep = True,
) -> None:
    """Train with several strategies on the same fleet, data and seeds: which reaches the target first, and why.

    Prints a table and a few sentences, and writes the learning curves as a PNG.
    """
    from paceline.comparison.pool import usable_cores

    config = config_of(file or DEMO, strategy)
    if seeds is not None:
        config = replace(config, seeds=tuple(range(seeds)))
    check_writable(figure, ".png")
    if json_file is not None:
        check_writable(json_file, ".json")
    processes, began = jobs or usable_cores(), time.monotonic()
    comparison = _run_all(config, processes, json_file)
    _show(comparison)
    if check_lr and check_step:
        for warning in _lr_warnings(comparison, processes, time.monotonic() - began):
            log(warning)
    _write(comparison, json_file, figure)
    typer.echo(_next_command(file, comparison))


def _run_all(config: "Config", processes: int, json_file: Path | None) -> "Comparison":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from paceline.callbacks.progress import EveryMinute
    from paceline.comparison.jobs import comparison_of, jobs_of, outcomes_of
    from paceline.terminal import console

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
                    log(f"{len(jobs)} runs in {processes} process{'es' * (processes > 1)} ...")
                outcomes.append(outcome)
                bar.advance(task)
                if not terminal.is_terminal and minute.due():
                    log(f"{len(outcomes)} of {len(jobs)} runs")
    except KeyboardInterrupt as asked:
        kept = "nothing was written"
        if json_file is not None and outcomes:
            _write_json(comparison_of(config, outcomes), json_file)
            kept = f"the finished ones are in {json_file}"
        raise Interrupted(f" after {len(outcomes)} of {len(jobs)} runs; {kept}", asked) from None
    return comparison_of(config, outcomes)


def _lr_warnings(comparison: "Comparison", processes: int, seconds: float) -> list[str]:
    """One warning for each strategy whose learning rate is too large; ``seconds`` is what the comparison took.

    A learning rate that was chosen over a smaller one of the grid is not checked: the smaller one was tried, and was
    worse. The curvature is measured in the pool, so that this process need not import torch.
    """
    from paceline.comparison.pool import call_in_pool
    from paceline.prediction.rate_check import Finished, lr_warnings

    config = comparison.config
    smallest = min(config.tune.lr) if config.tune else None
    runs = []
    for entry in comparison.entries:
        if entry.lr == smallest:
            middle = sorted(entry.outcomes, key=lambda each: each.measures.mean_staleness)[len(entry.outcomes) // 2]
            runs.append(Finished(entry.label, entry.lr, middle.history, middle.measures, middle.ended))
    return call_in_pool(processes, lr_warnings, config, config.seeds[0], runs, seconds) if runs else []


def _show(comparison: "Comparison") -> None:
    from paceline.comparison.tables import comparison_rows, non_finite_line, title
    from paceline.comparison.verdict import verdict
    from paceline.terminal import console, print_table

    terminal = console()
    print_table(terminal, *comparison_rows(comparison), title=title(comparison), more="see all with --json FILE.json")
    tune = comparison.config.tune
    rates = f" Learning rates: {', '.join(f'{lr:g}' for lr in tune.lr)}." if tune else ""
    terminal.print(f"\n{comparison.rule}{rates}\n", style="dim")
    for sentence in verdict(comparison):
        terminal.print(sentence, markup=False)
    for entry in comparison.entries:
        if entry.non_finite:
            terminal.print(non_finite_line(entry.label, entry.non_finite), style="yellow", markup=False)
        for outcome in entry.diverged:
            terminal.print(f"{entry.label}, seed {outcome.job.seed}: {outcome.problem}", style="red", markup=False)
    terminal.print()


def _write(comparison: "Comparison", json_file: Path | None, figure: Path) -> None:
    from paceline.comparison.tables import title
    from paceline.reports.figures import Curve, draw_curves

    curves = [
        Curve(
            entry.label + ("" if entry.lr is None else f"  (lr {entry.lr:g})"),
            [each.history for each in entry.outcomes],
        )
        for entry in comparison.entries
    ]
    if json_file is not None:  # before the figure, which can be drawn again from it
        _write_json(comparison, json_file)
        typer.echo(f"All results: {json_file}")
    draw_curves(curves, figure, target=comparison.config.target, title=title(comparison))
    typer.echo(f"Curves: {figure}")


def _write_json(comparison: "Comparison", path: Path) -> None:
    from paceline.files import write_atomically

    write_atomically(path, json.dumps(comparison.table(), allow_nan=False) + "\n")


def _next_command(file: Path | None, comparison: "Comparison") -> str:
    best = comparison.entries[0]
    if file is None:
        return f"Next: copy {DEMO}, describe your fleet in it, and run: paceline compare FILE"
    lr = "" if best.lr is None else f" --lr {best.lr:g}"
    return f"Next: paceline train {file} --strategy {best.label}{lr}"
