"""``paceline train``: one run, saved in a directory."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import (
    STRATEGY_FORMAT,
    Address,
    CheckLr,
    CheckStep,
    Seed,
    Trust,
    check_trust,
    config_of,
    on_fleet,
    unused_path,
)
from paceline.cli.main import FAILED, echo, log
from paceline.core.errors import ConfigError
from paceline.engine.signals import Interrupted

if TYPE_CHECKING:
    from paceline.config.file import Config
    from paceline.engine.result import Run
    from paceline.trace.measure import Measures

METRICS = 6  # besides loss and accuracy


def train(  # noqa: PLR0917 - typer names the options
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="TOML file with the experiment; not needed with --resume.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar=STRATEGY_FORMAT,
            help="Strategy to use instead of the one in FILE, such as lgc:quorum=7,blocks=4. "
            "paceline strategies lists the names.",
        ),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save the run there; by default in a new directory under runs/.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate, instead of the one in FILE.")] = None,
    seed: Seed = None,
    checkpoint: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Save a checkpoint after every N updates.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Resume the run in this directory from its last checkpoint.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log metrics for TensorBoard, in the run's directory.")
    ] = False,
    check_lr: CheckLr = True,
    check_step: CheckStep = True,
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Train on real workers: processes or ray. They are slowed down as FILE describes."
        ),
    ] = None,
    address: Address = None,
    trust: Trust = False,
) -> None:
    """Train a model with one strategy, and save config, trace, metrics and weights in a directory.

    A run that was interrupted or killed is resumed with --resume DIR, with the same FILE or without one.
    """
    config, name = _one_run(file, strategy, lr, resume, trust)
    config = on_fleet(config, fleet, address)
    choice, seed = config.strategies[0], config.seeds[0] if seed is None else seed
    if resume is not None and directory not in (None, resume):
        raise ConfigError(f"--resume {resume} continues in that directory: leave out --directory {directory}")
    path = resume or directory or unused_path(Path("runs") / f"{name}-{choice.named.names[1]}-seed{seed}")
    from paceline.config.experiment import check, run, settled
    from paceline.engine.limits import Every

    config = settled(config, choice, seed, lr)
    config = config if checkpoint is None else replace(config, checkpoint=Every(updates=checkpoint))
    check(config)
    began = time.monotonic()
    try:
        result = run(
            config,
            choice,
            seed=seed,
            directory=path,
            resume=resume is not None,
            tensorboard=tensorboard,
            progress=None,
        )
    except KeyboardInterrupt as asked:
        raise Interrupted(f"; {_on_disk(path, config)}", asked) from None
    except SystemExit:
        log(f"terminated; {_on_disk(path, config)}")
        raise
    found = _show(result, choice.short)
    if check_lr and check_step:
        from paceline.prediction.rate_check import Finished, lr_warnings

        finished = Finished(choice.short, None, result.history, found, result.ended)
        for warning in lr_warnings(config, seed, [finished], time.monotonic() - began):
            log(warning)
    if result.problem:
        raise typer.Exit(FAILED)


def _one_run(
    file: Path | None, strategy: str | None, lr: float | None, resume: Path | None, trust: bool
) -> "tuple[Config, str]":
    """The configuration of one run, and the name for its directory."""
    if file is None and resume is None:
        raise ConfigError("Missing argument FILE: give a TOML file, or --resume DIR to continue a run")
    if resume is not None:
        from paceline.storage.run_directory import check_files

        check_files(resume, written=True)
    if file is None and resume is not None and not (resume / "config.toml").is_file():
        raise ConfigError(f"cannot resume {resume}: it has no config.toml, which paceline train writes there")
    of_the_run = file is None
    file = file or (resume or Path()) / "config.toml"
    config = config_of(file, None if strategy is None else [strategy], of_the_run=of_the_run)
    if of_the_run:
        check_trust(config, file.parent, trust)
    if len(config.strategies) > 1:
        names = ", ".join(choice.short for choice in config.strategies)
        raise ConfigError(f"{file.name} names {len(config.strategies)} strategies: choose one with --strategy: {names}")
    if lr is None and "lr" not in config.optimizer.options:
        raise ConfigError(f"{file.name} has no single learning rate: set lr in [optimizer], or give --lr")
    return config, file.stem


def _on_disk(path: Path, config: "Config") -> str:
    """What is on disk of a run that was stopped, and how to resume it."""
    from paceline.config.fleets import cluster_of
    from paceline.config.tasks import FactoryChoice
    from paceline.storage.run_directory import RunDirectory

    names_code = isinstance(config.task, FactoryChoice)
    if not (path / "config.json").exists():
        return "nothing was written"
    place = RunDirectory(path, {"config.toml": ""}, names_code=names_code, address=cluster_of(config.fleet))
    return f"everything so far is in {path}; {place.how_to_resume()}"


def _show(run: "Run", label: str) -> "Measures":
    """Print the result of a run, and return what was measured from its trace."""
    from paceline.comparison.tables import non_finite_line
    from paceline.trace.measure import measure

    last, found = run.history[-1], measure(run.trace)
    named = [(name, value) for name, value in last.metrics.items() if name not in ("loss", "accuracy")]
    others = "".join(f"{name} {value:.4g}, " for name, value in named[:METRICS])
    by = "" if run.ended in ("diverged", "no workers", "too few workers") else "ended by "
    echo(
        f"{label}: {by}{run.ended} after {last.updates:,} updates, {last.seconds:,.1f} s and {last.samples:,} samples\n"
        f"loss {last.loss:.4f}, accuracy {last.accuracy:.1%}, {others}staleness {run.mean_staleness:.1f} on average "
        f"and {run.max_staleness} at most, {found.wasted_share:.0%} of the work wasted, "
        f"workers idle {found.idle_share:.0%}"
    )
    non_finite = {each.worker: each.non_finite for each in found.workers if each.non_finite}
    if non_finite:
        echo(non_finite_line(label, non_finite))
    if run.problem:
        (echo if run.ended in ("diverged", "too few workers") else log)(run.problem)
    echo(f"Run: {run.directory}")
    return found
