"""``paceline advise``: which rule and learning rate a fleet should have, what that brings, and what would change it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.common import JsonFile, Trust, config_of
from paceline.cli.main import echo
from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS

if TYPE_CHECKING:
    from paceline.config.file import Config
    from paceline.engine.limits import Target
    from paceline.prediction.advice import Advice, Candidate
    from paceline.prediction.progress import Worth

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SHORTEST = 0.5  # seconds of a profile or a trial: processes need about this long to start
SOURCES = (
    "Times as soon: until the same loss, by a trial or by theory (docs/advise.md). exact: a closed form. quadrature: "
    "an integral. simulation: drawn, without a model. Rates are learning rates."
)


def advise(  # noqa: PLR0917 - typer names the options
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="TOML file; or directory of a run, a profile or a recording.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="METRIC<=VALUE", help="When is this reached? By trials, or by the run itself."),
    ] = None,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Time that there is, such as 2h or 90s.")] = None,
    price: Annotated[
        str | None,
        typer.Option(metavar="WORKERS=PRICE,...", help="Prices of a second, as in 0-3=2.5,4-7=0.8: the cheapest wins."),
    ] = None,
    trials: Annotated[
        bool | None, typer.Option("--trials/--no-trials", help="Short trainings of the best rules, or theory alone.")
    ] = None,
    try_for: Annotated[
        str | None, typer.Option("--try", metavar="TIME", help="Train with the best two for so long, and compare.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", "-s", metavar="NAME:OPTION=VALUE,...", help="What is done now; by default ssgd."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure real workers in FILE.")] = 60.0,
    json_file: JsonFile = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also tell how the answer came about.")] = False,
    trust: Trust = False,
) -> None:
    """Say which strategy and learning rate to use, what it brings over what is done now, and what would change that.

    Real workers in FILE are measured for a minute first. Then the best rules are tried in short trainings on simulated
    workers of these speeds. With --try, the best two train on the fleet itself.
    """
    from paceline.files import check_writable, write_atomically

    if json_file is not None:
        check_writable(json_file, ".json")
    target = None if to is None else read_target(to)
    limit = None if budget is None else read_time(budget, "--budget")
    trial = None if try_for is None else read_time(try_for, "--try")
    if not SHORTEST <= seconds < math.inf or (trial is not None and trial < SHORTEST):
        raise ConfigError(f"less than {SHORTEST:g} s is too short to measure anything: give at least that")
    config = _config(source, trust)
    if trial is not None and (config is None or source.is_dir()):
        raise ConfigError(f"--try trains, and {source} is no TOML file: give one, or leave --try out")
    asked = {"target": target, "budget": limit, "seconds": seconds, "trials": trials}
    found = _advice(source, config, strategy=strategy, price=price, **asked)
    _show(found, explain)
    tried = [] if trial is None or config is None else _tried(found, config, trial)
    for line in tried:
        echo(line["text"])
    if json_file is not None:
        write_atomically(json_file, json.dumps({**found.table(), "tried": tried}, allow_nan=False) + "\n")
        echo(f"All results: {json_file}")


def read_time(text: str, option: str) -> float:
    """Seconds from 2h, 30m, 90s or 90."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text)
    seconds = float(match[1]) * UNITS.get(match[2], 0.0) if match is not None else 0.0
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(f"{option} {text[:40]!r} is no time: write 90s, 30m or 2h")
    return seconds


def read_target(text: str) -> "Target":
    """A metric and its limit from accuracy>=0.9 or loss<=0.3."""
    from paceline.engine.limits import target_of

    match = re.fullmatch(r"\s*([^<>=]+?)\s*(<=|>=)\s*([-+.\deE]+)\s*", text)
    try:
        value = float(match[3]) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not math.isfinite(value):
        raise ConfigError(f"--to {text[:60]!r} is no target: write accuracy>=0.9 or loss<=0.3")
    below = match[2] == "<="
    found = target_of(None, match[1], value if below else None, None if below else value)
    assert found is not None
    return found


def read_prices(text: str, workers: int) -> list[float]:
    """The price of each worker from 0-3=2.5,4-7=0.8; every worker has to be named once."""
    prices: dict[int, float] = {}
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*=\s*(\d+(?:\.\d*)?|\.\d+)\s*", piece)
        if match is None:
            raise ConfigError(f"--price: {piece[:40]!r} names no price: write 0-3=2.5,4-7=0.8")
        for worker in range(int(match[1]), int(match[2] or match[1]) + 1):
            if worker >= workers or worker in prices:
                why = "named twice" if worker in prices else f"none of the {workers} workers"
                raise ConfigError(f"--price: worker {worker} is {why}: name each of 0 to {workers - 1} once")
            prices[worker] = float(match[3])
    if missing := [worker for worker in range(workers) if worker not in prices]:
        raise ConfigError(f"--price names no price of worker {missing[0]}: name each of 0 to {workers - 1} once")
    return [prices[worker] for worker in range(workers)]


def _config(source: Path, trust: bool) -> "Config | None":
    """The configuration of a file or of a run; None for a run without one, or whose code is not trusted."""
    from paceline.config.tasks import FactoryChoice

    if not source.is_dir():
        return config_of(source)
    if not (source / "config.toml").is_file():
        return None
    config = config_of(source / "config.toml", of_the_run=True)
    if isinstance(config.task, FactoryChoice) and not trust:
        echo(f"The model is not looked at: {config.task.factory} is code; add --trust to run it.")
        return None
    return config


def _advice(
    source: Path, config: "Config | None", *, strategy: str | None, price: str | None, **asked: Any
) -> "Advice":
    from paceline.prediction.advise import question_of
    from paceline.prediction.answer import answer
    from paceline.storage.reading import read_run

    recorded = source.is_dir()
    given: dict[str, Any] = {"recording": source if recorded else None, "fleet": None, "worth": None, "task": None}
    workers = config.fleet.workers if config is not None else int(read_run(source).trace.about.get("workers", 0))
    if config is not None:
        given |= {"batch_size": config.batch_size, "partition": config.partition, "seed": config.seeds[0]}
        given |= _learning(config)
        given["fleet"] = None if recorded else config.fleet
        profiled = recorded and "profile" in read_run(source).config
        if len(config.strategies) == 1 and not profiled:
            given["strategy"] = config.strategies[0].short
    if strategy is not None:
        given["strategy"] = strategy
    prices = None if price is None else read_prices(price, workers)
    return answer(question_of(**given, **asked, prices=prices))


def _learning(config: "Config") -> "dict[str, Any]":
    """The task, and what an update is worth on it."""
    from paceline.config.experiment import make_optimizer, make_task
    from paceline.prediction.advise import worth_of
    from paceline.prediction.predict import descent_of

    task = make_task(config.task, config.seeds[0])
    descent = descent_of(config.optimizer.name, config.optimizer.options)
    worth: Worth | None = None
    if descent is not None:
        worth = worth_of(task, descent, config.optimizer.options.get("lr"), seed=config.seeds[0])
    lr = config.optimizer.options.get("lr")
    return {"task": task, "worth": worth, "optimizer": make_optimizer(config.optimizer), "learning_rate": lr}


def _show(found: "Advice", explain: bool) -> None:
    from paceline.callbacks.terminal import Column, console, print_table

    terminal = console()
    for line in found.lines:
        terminal.print(line, markup=False)
    terminal.print()
    soon = "times as\nsoon" if found.learning_rate is not None else "times the\nsamples/s"
    columns = [
        Column("strategy", least=24, left=True),
        Column(soon),
        Column("80 %"),
        Column("by", left=True),
        Column("updates\na second"),
        Column("source", left=True),
        Column("stale-\nness"),
        Column("samples\nan update", rank=2),
        Column("rate"),
        Column("times the\nprice", rank=1),
    ]
    print_table(terminal, columns, [_row(each) for each in found.candidates], more="see all with --json FILE.json")
    notes = [SOURCES, found.reason, *found.notes] if explain else [SOURCES]
    for line in notes:
        terminal.print(line, style="dim", markup=False)


def _row(each: "Candidate") -> list[str]:
    pace = each.pace
    between = "-" if each.interval is None else f"{each.interval[0]:.2f}-{each.interval[1]:.2f}"
    return [
        each.label,
        "-" if each.gain is None else f"{each.gain:.2f}",
        between,
        each.basis,
        f"{pace.updates_per_second.value:.3g}",
        pace.updates_per_second.source,
        f"{pace.mean_staleness:.2f}",
        f"{pace.batch:.3g}",
        "-" if each.learning_rate is None else f"{each.learning_rate:.3g}",
        "-" if each.price is None else f"{each.price:.2f}",
    ]


def _tried(found: "Advice", config: "Config", seconds: float) -> list[dict[str, Any]]:
    """Train with the best two that have all workers, and tell how wrong their speeds were."""
    from paceline.config.experiment import run
    from paceline.engine.limits import Stop
    from paceline.strategies.names import choice_of

    results = list[dict[str, Any]]()
    for each in found.candidates:
        choice = choice_of(each.strategy)
        if each.without or choice is None or each.gain is None or len(results) == 2:
            continue
        lr = each.learning_rate or config.optimizer.options.get("lr") or min(config.tune.lr if config.tune else [0.01])
        short = replace(config, stop=Stop(seconds=seconds), target=None, metric=None, below=None, above=None)
        last = run(short, choice, seed=config.seeds[0], lr=lr).history[-1]
        predicted, measured = each.pace.updates_per_second.value, last.updates / seconds
        wrong = predicted / measured - 1 if measured else None
        said = "nothing was measured" if wrong is None else f"{abs(wrong):.1%} too {'many' if wrong > 0 else 'few'}"
        text = (
            f"Tried {each.label} for {seconds:g} s: {measured:.3g} updates a second measured, {predicted:.3g} predicted"
        )
        results.append({
            "strategy": each.label, "predicted": predicted, "measured": measured, "error": wrong, "lr": lr,
            "loss": last.loss if math.isfinite(last.loss) else None, "text": f"{text} ({said}); loss {last.loss:.4g}",
        })  # fmt: skip
    return results
