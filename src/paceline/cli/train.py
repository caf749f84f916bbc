"""``paceline train``: one run, kept in a directory."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import CAME_TO_GRIEF, Address, CheckStep, config_of, free_path, on_fleet, told
from paceline.core.errors import ConfigError
from paceline.engine.signals import Interrupted, terminable

if TYPE_CHECKING:
    from paceline.config.file import Config
    from paceline.engine.result import Run
    from paceline.trace.measure import Measures


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
        str | None, typer.Option(metavar="KIND", help="processes or ray: real workers, as slow as the file says.")
    ] = None,
    address: Address = None,
) -> None:
    """Train once, and keep config, trace, metrics and weights in a directory. Exits with 1 if the run came to grief.

    What was interrupted or killed goes on with --resume DIR, with the file it was begun with or without one.
    """
    config, name = _one_run(file, strategy, lr, resume)
    config = on_fleet(config, fleet, address)
    choice, seed = config.strategies[0], config.seeds[0] if seed is None else seed
    if resume is not None and directory not in (None, resume):
        raise ConfigError(f"--resume {resume} goes on in that directory: leave --directory {directory} out")
    path = resume or directory or free_path(Path("runs") / f"{name}-{choice.named.names[1]}-seed{seed}")
    from paceline.config.experiment import check, run, settled
    from paceline.engine.limits import Every

    config = settled(config, choice, seed, lr)
    config = config if checkpoint is None else replace(config, checkpoint=Every(updates=checkpoint))
    check(config)
    goes_on = resume is not None
    began = time.monotonic()
    try:
        with terminable():
            result = run(
                config, choice, seed=seed, directory=path, resume=goes_on, tensorboard=tensorboard, progress=None
            )
    except KeyboardInterrupt as asked:
        raise Interrupted(f"; {_kept(path)}", asked) from None
    except SystemExit:
        told(f"terminated; {_kept(path)}")
        raise
    found = _tell(result, choice.short)
    if check_step:
        from paceline.prediction.rate_check import warnings_after

        for warning in warnings_after(config, seed, found, time.monotonic() - began):
            told(warning)
    if result.problem:
        raise typer.Exit(CAME_TO_GRIEF)


def _one_run(file: Path | None, strategy: str | None, lr: float | None, resume: Path | None) -> "tuple[Config, str]":
    """The configuration of one run, and what to call it."""
    if file is None and resume is None:
        raise ConfigError("Missing argument FILE: give a TOML file, or --resume DIR to go on with a run")
    if resume is not None:
        from paceline.storage.run_directory import check_files

        check_files(resume, written=True)
    if file is None and resume is not None and not (resume / "config.toml").is_file():
        raise ConfigError(f"cannot resume {resume}: it has no config.toml, which paceline train leaves there")
    file = file or (resume or Path()) / "config.toml"
    config = config_of(file, None if strategy is None else [strategy])
    if len(config.strategies) > 1:
        names = ", ".join(choice.short for choice in config.strategies)
        raise ConfigError(f"{file.name} names {len(config.strategies)} strategies: choose one with --strategy: {names}")
    if lr is None and "lr" not in config.optimizer.options:
        raise ConfigError(f"{file.name} has no single step: set lr in [optimizer], or give --lr")
    return config, file.stem


def _kept(path: Path) -> str:
    """What is on disk of a run that was ended, and how to go on with it."""
    from paceline.storage.run_directory import RunDirectory

    if not (path / "config.json").exists():
        return "nothing was written"
    return f"everything so far is in {path}; {RunDirectory(path, {'config.toml': ''}).how_to_resume()}"


def _tell(run: "Run", label: str) -> "Measures":
    from paceline.comparison.tables import spoiled_line
    from paceline.trace.measure import measure

    last, found = run.history[-1], measure(run.trace)
    by = "" if run.ended in ("diverged", "no workers", "too few workers") else "ended by "
    typer.echo(
        f"{label}: {by}{run.ended} after {last.updates:,} updates, {last.seconds:,.1f} s and {last.samples:,} samples\n"
        f"loss {last.loss:.4f}, accuracy {last.accuracy:.1%}, staleness {run.mean_staleness:.1f} on average and "
        f"{run.max_staleness} at most, {found.wasted_share:.0%} of the work wasted, workers idle {found.idle_share:.0%}"
    )
    spoiled = {each.worker: each.non_finite for each in found.workers if each.non_finite}
    if spoiled:
        typer.echo(spoiled_line(label, spoiled))
    if run.problem:
        (typer.echo if run.ended in ("diverged", "too few workers") else told)(run.problem)
    typer.echo(f"Run: {run.directory}")
    return found
