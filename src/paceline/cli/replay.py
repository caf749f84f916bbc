"""``paceline replay``: repeats a recorded run, or predicts it under another strategy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.common import STRATEGY_FORMAT, Trust, check_trust, config_of
from paceline.cli.main import echo
from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.prediction.what_if import Prospect

DIFFERS = 1


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, written by paceline train.")],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar=STRATEGY_FORMAT,
            help="Simulate this strategy with the recorded durations; repeat for several.",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Repeat a recorded run from its trace, and check that the final weights are the same bit for bit.

    With --strategy nothing is trained: the simulator uses the durations that were recorded for each worker to predict
    updates per second, staleness and idle time under another strategy.
    """
    if strategy:
        _what_if(run, strategy)
    else:
        _repeat(run, trust)


def _repeat(run: Path, trust: bool) -> None:
    from paceline.config.experiment import replay_config
    from paceline.storage.reading import read_run
    from paceline.trace.recordings import is_recording

    if run.is_dir() and is_recording(run):
        raise ConfigError(
            f"{run} is a recording of another training loop, which Paceline cannot repeat: add --strategy NAME to "
            "predict from it"
        )
    if not (run / "config.toml").is_file():
        raise ConfigError(
            f"{run} has no config.toml, so its model and data are not known here: "
            f"replay a run that was started from Python with paceline.replay({str(run)!r}, task, ...)"
        )
    saved = read_run(run)
    if "profile" in saved.config:
        raise ConfigError(f"{run} is a profile, in which nothing was trained: add --strategy NAME to predict from it")
    config = config_of(run / "config.toml", of_the_run=True)
    check_trust(config, run, trust)
    found = replay_config(saved, config)
    last = found.run.history[-1]
    echo(f"{run}: {last.updates:,} updates repeated from the trace, {last.samples:,} samples")
    if found.departure is not None:
        echo(f"The replay differs from the trace: {found.departure}")
    for name, difference in found.differences.items():
        echo(f"{name} differs by up to {difference:g}")
    if not found.same:
        raise typer.Exit(DIFFERS)
    echo(
        "The weights are the same, bit for bit." if found.compared
        else "The trace is the same; the run did not finish, so there are no final weights to compare."
    )  # fmt: skip


def _what_if(run: Path, texts: list[str]) -> None:
    from paceline.config.file import read_config
    from paceline.engine.arguments import batch_size_of
    from paceline.fleets.base import medians_at
    from paceline.prediction.what_if import Prospect, Survey, recorded_fleet, recorded_sizes, size_doubts, what_if
    from paceline.storage.reading import read_run
    from paceline.strategies.names import parse_strategy

    saved = read_run(run)
    survey = Survey(saved.trace)
    fleet = recorded_fleet(survey)
    choices = [parse_strategy(text) for text in texts]
    label = saved.strategy
    again = []
    if (run / "config.toml").is_file():
        again = list(read_config(run / "config.toml").strategies[:1])
        label = again[0].short
    size = saved.config.get("batch_size")
    size = batch_size_of(size, fleet.workers) if isinstance(size, int | list) else recorded_sizes(survey)
    speeds = medians_at(fleet, size) or ()
    asked = {f"{choice.short}, simulated": choice.strategy(speeds) for choice in [*again, *choices]}
    found = what_if(survey, asked, batch_size=size)
    recorded = Prospect(f"{label}, as recorded", survey.measures)
    _show([recorded, *found])
    for doubt in [*survey.doubts(), *size_doubts(survey, asked.values(), size)]:
        echo(doubt)


def _show(prospects: "list[Prospect]") -> None:
    """Print a table with the recorded run first, then each strategy simulated for the same time."""
    from paceline.callbacks.terminal import Column, console, print_table

    recorded = prospects[0]
    seconds = recorded.measures.seconds
    columns = [
        Column("strategy", least=34, left=True),
        Column("updates", rank=5),
        Column("updates/s"),
        Column("gradients/s", rank=3),
        Column("time for as\nmany gradients"),
        Column("staleness\nmean / max", rank=1),
        Column("wasted\nwork", rank=4),
        Column("idle", rank=2),
    ]
    rows = []
    for each in prospects:
        measures, used = each.measures, each.gradients
        rows.append([
            each.label,
            f"{measures.updates:,}",
            f"{measures.updates / seconds:,.4g}",
            f"{used / seconds:,.4g}",
            f"{seconds * recorded.gradients / used:,.4g} s" if used else "-",
            f"{measures.mean_staleness:.1f} / {measures.max_staleness}",
            f"{measures.wasted_share:.0%}",
            f"{measures.idle_share:.0%}",
        ])  # fmt: skip
    print_table(console(), columns, rows, title=f"{seconds:,.4g} s of {len(recorded.measures.workers)} workers")
