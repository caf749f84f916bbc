"""The command line. Nothing heavy is imported before a command needs it: ``paceline --help`` answers at once.

Exit codes: 0 done; 1 a run diverged or lost too many workers; 2 something was asked for that cannot be (one line on
stderr says what, and nothing was written); 130 interrupted (one line says what is on disk).
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline import __version__
from paceline.core.errors import ConfigError
from paceline.datasets.cli import data_app
from paceline.files import check_writable
from paceline.interrupts import Interrupted
from paceline.papers.cli import reproduce
from paceline.predict.cli import predict
from paceline.profile_cli import profile
from paceline.replay_cli import replay

if TYPE_CHECKING:
    from paceline.compare import Comparison, Outcome
    from paceline.config import Config
    from paceline.reports.measure import Measures
    from paceline.run import Run

DIVERGED, REFUSED, INTERRUPTED = 1, 2, 130
FIGURE = Path("paceline-compare.png")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(data_app, name="data")
app.command()(reproduce)
app.command()(replay)
app.command()(predict)
app.command()(profile)

Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy", "-s", metavar="NAME:OPTION=VALUE,...", help="Such as lgc:quorum=7,blocks=4; repeat for several."
    ),
]
CheckStep = Annotated[bool, typer.Option("--check-step/--no-check-step", help="Warn of a step beyond its limit.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="paceline", standalone_mode=False)
    except ConfigError as error:
        return _told(f"error: {error}", REFUSED)
    except Interrupted as error:
        return _told(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return _told("interrupted; nothing was written", INTERRUPTED)
    except Exception as error:
        # Typer's errors about arguments, whether it brings its own click or uses the package
        if (message := getattr(error, "format_message", None)) is None:
            raise
        return _told(f"error: {message()} (see paceline --help)", REFUSED)
    return code if isinstance(code, int) else 0


@app.callback(invoke_without_command=True)
def _paceline(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Train PyTorch models on workers of unequal speed: choose who waits for whom, and see what it costs."""
    if version:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
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
    from paceline.compare import usable_cores

    config = _config(file or Path(__file__).with_name("demo.toml"), strategy)
    if seeds is not None:
        config = replace(config, seeds=tuple(range(seeds)))
    check_writable(figure, ".png")
    if json_file is not None:
        check_writable(json_file, ".json")
    processes, began = jobs or usable_cores(), time.monotonic()
    comparison = _run_all(config, processes, json_file)
    _show(comparison)
    if check_step:
        from paceline.predict.step_check import warnings_of

        for warning in warnings_of(comparison, processes, time.monotonic() - began):
            _told(warning)
    _write(comparison, json_file, figure)
    typer.echo(_next_steps(file, comparison))


@app.command()
def train(  # noqa: PLR0917 - typer names the options
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A TOML file.")] = None,
    strategy: Annotated[str | None, typer.Option("--strategy", "-s", metavar="NAME:OPTION=VALUE,...")] = None,
    directory: Annotated[Path | None, typer.Option(metavar="DIR", help="By default a new one under runs/.")] = None,
    lr: Annotated[float | None, typer.Option(help="The step, instead of the file's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the file's first one.")] = None,
    checkpoint: Annotated[int | None, typer.Option(min=1, metavar="N", help="One after every N updates.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run there.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too.")] = False,
    check_step: CheckStep = True,
    fleet: Annotated[
        str | None, typer.Option(metavar="KIND", help="processes: real ones, as slow as the file says.")
    ] = None,
) -> None:
    """Train once, and keep config, trace, metrics and weights in a directory. Exits with 1 if the run came to grief.

    What was interrupted or killed goes on with --resume DIR, with the file it was begun with or without one.
    """
    config, name = _one_run(file, strategy, lr, resume)
    config = _on(config, fleet)
    choice, seed = config.strategies[0], config.seeds[0] if seed is None else seed
    if resume is not None and directory not in (None, resume):
        raise ConfigError(f"--resume {resume} goes on in that directory: leave --directory {directory} out")
    path = resume or directory or _free(Path("runs") / f"{name}-{choice.named.names[1]}-seed{seed}")
    from paceline.experiment import check, run, settled
    from paceline.run import Every

    config = settled(config, choice, seed, lr)
    config = config if checkpoint is None else replace(config, checkpoint=Every(updates=checkpoint))
    check(config)
    goes_on = resume is not None
    began = time.monotonic()
    try:
        result = run(config, choice, seed=seed, directory=path, resume=goes_on, tensorboard=tensorboard, progress=None)
    except KeyboardInterrupt:
        kept = f"everything so far is in {path}" if path.exists() else "nothing was written"
        raise Interrupted(f"interrupted; {kept}") from None
    found = _tell(result, choice.short)
    if check_step:
        from paceline.predict.step_check import warnings_after

        for warning in warnings_after(config, seed, found, time.monotonic() - began):
            _told(warning)
    if result.ended in ("diverged", "too few workers"):
        raise typer.Exit(DIVERGED)


def _one_run(file: Path | None, strategy: str | None, lr: float | None, resume: Path | None) -> "tuple[Config, str]":
    """The configuration of one run, and what to call it."""
    if file is None and resume is None:
        raise ConfigError("Missing argument FILE: give a TOML file, or --resume DIR to go on with a run")
    if file is None and resume is not None and not (resume / "config.toml").is_file():
        raise ConfigError(f"cannot resume {resume}: it has no config.toml, which paceline train leaves there")
    file = file or (resume or Path()) / "config.toml"
    config = _config(file, None if strategy is None else [strategy])
    if len(config.strategies) > 1:
        names = ", ".join(choice.short for choice in config.strategies)
        raise ConfigError(f"{file.name} names {len(config.strategies)} strategies: choose one with --strategy: {names}")
    if lr is None and "lr" not in config.optimizer.options:
        raise ConfigError(f"{file.name} has no single step: set lr in [optimizer], or give --lr")
    return config, file.stem


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs, as train leaves them.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="One page, without network.")] = None,
    perfetto: Annotated[Path | None, typer.Option(metavar="FILE.json", help="A timeline for Perfetto.")] = None,
) -> None:
    """Show runs side by side: curves, a timeline of the workers, staleness, and who was waited for."""
    from paceline.reports.cli import report as write_report

    write_report(runs, out, perfetto)


@app.command()
def strategies() -> None:
    """List the strategies: names, rules, papers."""
    from paceline.tables import console, strategies_table

    console().print(strategies_table())
    typer.echo(
        "Options follow the name: --strategy lgc:quorum=7,blocks=4. Groups of like speed are formed by themselves;"
    )
    typer.echo("another rule inside them comes last: --strategy gsgd:tolerance=0.5,inside=lgc:quorum=3,blocks=4")


def _config(file: Path, chosen: Sequence[str] | None) -> "Config":
    from paceline.config import read_config
    from paceline.strategy_names import parse_strategy

    config = read_config(file)
    return config.with_strategies(tuple(map(parse_strategy, chosen))) if chosen else config


def _on(config: "Config", kind: str | None) -> "Config":
    """The configuration, its fleet as the command line wants it."""
    from paceline.fleet_tables import KINDS, as_processes
    from paceline.toml_tables import nearest

    if kind is None or kind == KINDS[0]:
        return config
    if kind not in KINDS:
        raise ConfigError(f"--fleet {kind!r} is unknown: {nearest(kind, KINDS)}")
    return replace(config, fleet=as_processes(config.fleet))


def _run_all(config: "Config", processes: int, json_file: Path | None) -> "Comparison":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from paceline.compare import comparison_of, jobs_of, outcomes_of
    from paceline.tables import console

    jobs = jobs_of(config)
    processes = min(processes, len(jobs))
    terminal = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    outcomes: list[Outcome] = []
    try:
        with bar:
            task = bar.add_task("comparing", total=len(jobs))
            for outcome in outcomes_of(config, jobs, processes):
                if not outcomes and not terminal.is_terminal:
                    _told(f"{len(jobs)} runs in {processes} process{'es' * (processes > 1)} ...")
                outcomes.append(outcome)
                bar.advance(task)
    except KeyboardInterrupt:
        kept = "nothing was written"
        if json_file is not None and outcomes:
            _write_json(comparison_of(config, outcomes), json_file)
            kept = f"those that ended are in {json_file}"
        raise Interrupted(f"interrupted after {len(outcomes)} of {len(jobs)} runs; {kept}") from None
    return comparison_of(config, outcomes)


def _show(comparison: "Comparison") -> None:
    from paceline.tables import comparison_table, console, spoiled_line
    from paceline.verdict import verdict

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
    from paceline.reports.figures import Curve, draw_curves
    from paceline.tables import title

    curves = [
        Curve(
            entry.label + ("" if entry.lr is None else f"  (step {entry.lr:g})"),
            [each.history for each in entry.outcomes],
        )
        for entry in comparison.entries
    ]
    draw_curves(curves, figure, target=comparison.config.target, title=title(comparison))
    typer.echo(f"Curves: {figure}")
    if json_file is not None:
        _write_json(comparison, json_file)
        typer.echo(f"Everything in numbers: {json_file}")


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


def _tell(run: "Run", label: str) -> "Measures":
    from paceline.reports.measure import measure
    from paceline.tables import spoiled_line

    last, found = run.history[-1], measure(run.trace)
    by = "" if run.ended in ("diverged", "no workers", "too few workers") else "ended by "
    typer.echo(
        f"{label}: {by}{run.ended} after {last.updates:,} updates, {last.seconds:,.1f} s and {last.samples:,} samples\n"
        f"loss {last.loss:.4f}, accuracy {last.accuracy:.1%}, staleness {run.mean_staleness:.1f} on average and "
        f"{run.max_staleness} at most, {found.wasted_share:.0%} of the work wasted, workers idle {found.idle_share:.0%}"
    )
    spoiled = {each.worker: each.spoiled for each in found.workers if each.spoiled}
    if spoiled:
        typer.echo(spoiled_line(label, spoiled))
    if run.problem:
        typer.echo(run.problem)
    typer.echo(f"Run: {run.directory}")
    return found


def _free(path: Path) -> Path:
    """The path, or with the first number after it that is free."""
    number, tried = 1, path
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}-{number}")
    return tried


def _told(line: str, code: int = 0) -> int:
    print(" ".join(line.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
