"""``paceline compare``: trains with several strategies and shows a table and learning curves."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import DEMO, CheckLr, CheckStep, JsonFile, Strategies, config_of
from paceline.cli.demo import NEXT, advice, open_demo
from paceline.cli.main import echo, log
from paceline.engine.signals import Interrupted
from paceline.files import check_writable
from paceline.storage.run_directory import check_new

if TYPE_CHECKING:
    from paceline.comparison.plan import Plan
    from paceline.comparison.results import Comparison
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
        int | None,
        typer.Option(min=1, max=10_000, metavar="N", help="Use the random seeds 0 to N-1, instead of those in FILE."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of runs at a time; by default one per CPU core, one on real workers."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with the verdict, the table and the runs.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the directory of each run in this new directory.")
    ] = None,
    check_lr: CheckLr = True,
    check_step: CheckStep = True,
) -> None:
    """Train with several strategies on the same fleet, data and seeds: which reaches the target first, and why.

    Prints a table and a few sentences, and writes the learning curves as a PNG.
    """
    from paceline.callbacks.terminal import console
    from paceline.comparison.plan import plan_of
    from paceline.comparison.pool import usable_cores

    config = config_of(file or DEMO, strategy)
    if seeds is not None:
        config = replace(config, seeds=tuple(range(seeds)))
    check_writable(figure, ".png")
    if json_file is not None:
        check_writable(json_file, ".json")
    if report is not None:
        check_writable(report, ".html")
    if directory is not None:
        check_new(directory)
    plan = plan_of(config, directory)
    if file is None:
        open_demo(config)
    processes, began = jobs or (usable_cores() if plan.simulated else 1), time.monotonic()
    comparison = _run_all(plan, processes, json_file)
    _show(comparison)
    if file is None and (said := advice(comparison)):
        console().print(f"{said}\n", markup=False)
    if check_lr and check_step:
        for warning in _lr_warnings(config, comparison, processes, time.monotonic() - began):
            log(warning)
    _write(comparison, json_file, figure, report)
    echo(_next_command(file, comparison))


def _run_all(plan: "Plan", processes: int, json_file: Path | None) -> "Comparison":
    from paceline.comparison.jobs import Outcome, outcomes_of, watched
    from paceline.comparison.results import comparison_of

    jobs = plan.jobs
    processes = min(processes, len(jobs))
    outcomes: list[Outcome] = []
    try:
        outcomes.extend(watched(outcomes_of(plan, jobs, processes), len(jobs), processes))
    except KeyboardInterrupt as asked:
        kept = "nothing was written" if plan.directory is None else f"the finished ones are in {plan.directory}"
        if json_file is not None and outcomes:
            _write_json(comparison_of(plan, outcomes), json_file)
            kept = f"the finished ones are in {json_file}"
        raise Interrupted(f" after {len(outcomes)} of {len(jobs)} runs; {kept}", asked) from None
    return comparison_of(plan, outcomes)


def _lr_warnings(config: "Config", comparison: "Comparison", processes: int, seconds: float) -> list[str]:
    """One warning for each strategy whose learning rate is too large; ``seconds`` is what the comparison took.

    A learning rate that was chosen over a smaller one of the grid is not checked: the smaller one was tried, and was
    worse. The curvature is measured in the pool, so that this process need not import torch.
    """
    from paceline.comparison.pool import call_in_pool
    from paceline.prediction.rate_check import Finished, lr_warnings

    smallest = min(config.tune.lr) if config.tune else None
    runs = []
    for entry in comparison.entries:
        if entry.lr == smallest:
            middle = sorted(entry.outcomes, key=lambda each: each.measures.mean_staleness)[len(entry.outcomes) // 2]
            runs.append(Finished(entry.label, entry.lr, middle.history, middle.measures, middle.ended))
    return call_in_pool(processes, lr_warnings, config, config.seeds[0], runs, seconds) if runs else []


def _show(comparison: "Comparison") -> None:
    from paceline.callbacks.terminal import console, print_table
    from paceline.comparison.tables import comparison_rows, non_finite_line

    terminal, plan = console(), comparison.plan
    print_table(terminal, *comparison_rows(comparison), title=plan.title, more="see all with --json FILE.json")
    rates = f" Learning rates: {', '.join(f'{lr:g}' for lr in plan.rates)}." if plan.rates else ""
    terminal.print(f"\n{comparison.rule}{rates}\n", style="dim")
    terminal.print(comparison.verdict, markup=False)
    for entry in comparison.entries:
        if entry.non_finite:
            terminal.print(non_finite_line(entry.label, entry.non_finite), style="yellow", markup=False)
        for outcome in entry.diverged:
            terminal.print(f"{entry.label}, seed {outcome.job.seed}: {outcome.problem}", style="red", markup=False)
    terminal.print()


def _write(comparison: "Comparison", json_file: Path | None, figure: Path, report: Path | None) -> None:
    if json_file is not None:  # first, as the rest can be made again from it
        _write_json(comparison, json_file)
        echo(f"All results: {json_file}")
    if report is not None:
        comparison.report(report)
        echo(f"Page: {report} ({report.stat().st_size / 1e6:.1f} MB, needs no network)")
    comparison.plot(figure)
    echo(f"Curves: {figure}")
    if comparison.directories:
        echo(f"Runs: {comparison.plan.directory}")


def _write_json(comparison: "Comparison", path: Path) -> None:
    from paceline.files import write_atomically

    write_atomically(path, json.dumps(comparison.data(), allow_nan=False) + "\n")


def _next_command(file: Path | None, comparison: "Comparison") -> str:
    best = comparison.entries[0]
    if file is None:
        return NEXT
    lr = "" if best.lr is None else f" --lr {best.lr:g}"
    return f"Next: paceline train {file} --strategy {best.label}{lr}"
