"""What Python users give: a strategy by its name, numbers of numpy; and wrong kinds, each refused in one line."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.prediction.profile import profile
from support.updates import updates

X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 2
FLEET = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2 + [pl.delays.Constant(3.0)] * 2, labels=["a", "b", "a", "b"])

any_pl: Any = pl  # what is given wrongly on purpose is not for the type checker
any_profile: Any = profile


def task() -> pl.Task:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pl.Task(nn.Linear(6, 2), nn.functional.cross_entropy, (X, Y))


def evaluated(returned: Any) -> pl.Task:
    return replace(task(), evaluate=lambda model: returned)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def run(**given: Any) -> pl.Run:
    usual = {"strategy": "ssgd", "fleet": FLEET, "optimizer": sgd, "stop": pl.Stop(updates=6), "batch_size": 4}
    return pl.train(given.pop("task", None) or task(), **{**usual, **given})


def compare(**given: Any) -> pl.Comparison:
    usual: dict[str, Any] = {"fleet": FLEET, "optimizer": sgd, "stop": pl.Stop(updates=3), "progress": False, "jobs": 1}
    return pl.compare(task(), strategies=["ssgd", "asgd"], **usual, **given)


def advise(**given: Any) -> pl.Advice:
    return pl.advise(task(), fleet=FLEET, optimizer=sgd, trials=False, **given)


def weights(trained: pl.Run) -> list[Any]:
    return [value.tolist() for value in trained.model.state_dict().values()]


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("ssgd", pl.Synchronous()),
        ("ASGD", pl.Asynchronous()),
        ("lgc:quorum=3,blocks=4", pl.LiveCompensation(3, blocks=4)),
        ("gsgd", pl.Grouped([[0, 1], [2, 3]])),
        ("gsgd:groups=labels,inside=k-sgd:quorum=1", pl.Grouped([[0, 2], [1, 3]], inside=pl.FastestK(1))),
        ("ma:every=2", pl.ModelAveraging(2)),
    ],
)
def test_a_strategy_may_be_given_by_its_name(text: str, strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    by_name, by_value = run(strategy=text, directory=tmp_path / "run"), run(strategy=strategy)
    assert list(by_name.trace) == list(by_value.trace)
    assert weights(by_name) == weights(by_value)
    again = pl.replay(tmp_path / "run", task(), strategy=text, fleet=FLEET, optimizer=sgd, batch_size=4)
    assert again.same


def test_a_simulation_takes_a_name_too() -> None:
    stop = pl.Stop(updates=5)
    assert updates(pl.simulate("gsgd", FLEET, stop)) == updates(pl.simulate(pl.Grouped([[0, 1], [2, 3]]), FLEET, stop))


def test_a_fleet_that_tells_no_speeds_needs_groups() -> None:
    class Slowly:
        workers = 4

        def launch(self, job: object, seed: int) -> Any:
            return FLEET.launch(job, seed)  # type: ignore[arg-type]

    with pytest.raises(pl.ConfigError, match="Slowly does not know how fast its workers are: name the groups"):
        run(strategy="gsgd", fleet=Slowly())
    assert run(strategy="gsgd:groups=0-1/2-3", fleet=Slowly()).history[-1].updates == 6


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    wanted = run(strategy=pl.LiveCompensation(3, blocks=2), seed=5, directory=tmp_path / "one", batch_size=4)
    given = run(
        strategy=any_pl.LiveCompensation(np.int64(3), blocks=np.int32(2), recall=np.bool_(True)),
        seed=np.int64(5),
        batch_size=np.int64(4),
        stop=any_pl.Stop(updates=np.int64(6)),
        directory=tmp_path / "two",
        clip_norm=np.float32(1e6),
    )
    assert weights(wanted) == weights(given)
    assert (tmp_path / "one/trace.jsonl").read_bytes() == (tmp_path / "two/trace.jsonl").read_bytes()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "sgdd"}, "unknown strategy 'sgdd'"),
    ({"strategy": "lgc:quorum=9"}, "a quorum of 9 does not fit 4 workers"),
    ({"strategy": pl.Synchronous}, "strategy=<class .*> is a class: give a strategy, such as Synchronous(...)"),
    ({"strategy": None}, 'strategy=None is nothing: give a strategy, such as Synchronous() or "ssgd"'),
    ({"strategy": 3}, "strategy=3 is a number"),
    ({"fleet": 4}, "fleet=4 is a number: give SimulatedFleet(Constant(1.0), workers=4) or ProcessFleet(4)"),
    ({"fleet": "processes"}, "fleet='processes' is a text: give SimulatedFleet"),
    ({"fleet": pl.SimulatedFleet}, "is a class: give SimulatedFleet"),
    ({"stop": 100}, "stop=100 is a number: give Stop(updates=100)"),
    ({"stop": "100"}, "stop='100' is a text: give Stop(updates=1000)"),
    ({"stop": pl.Every(updates=3)}, "is of the type Every: give Stop"),
    ({"every": 10}, "every=10 is a number: give Every(updates=10)"),
    ({"checkpoint": 10, "directory": "x"}, "checkpoint=10 is a number: give Every(updates=10)"),
    ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1)}, "optimizer must be a function from parameters"),
    ({"optimizer": "SGD"}, "optimizer must be a function from parameters"),
    ({"scheduler": "StepLR"}, "scheduler='StepLR' is a text: give a function: lambda optimizer"),
    ({"batch_size": 4.5}, "batch_size=4.5 is a number: give a whole number"),
    ({"batch_size": "4"}, "batch_size='4' is a text: give a whole number"),
    ({"batch_size": True}, "batch_size=True is a truth value: give a whole number"),
    ({"batch_size": 0}, "batch_size=0 is not possible"),
    ({"batch_size": np.array(8)}, "batch_size=array(8) is of the type ndarray: give a whole number"),
    ({"batch_size": torch.tensor(1)}, "batch_size=tensor(1) is of the type Tensor: give a whole number"),
    ({"callbacks": torch.tensor(1)}, "callbacks=tensor(1) is no list of callbacks: give a list of them"),
    ({"sampling": Path("x")}, "sampling=PosixPath('x') is of the type PosixPath: give Shuffled()"),
    ({"seed": "a"}, "seed='a' is a text: give a whole number"),
    ({"seed": -1}, "seed=-1 is not possible: a whole number from 0 to 2**63 - 1"),
    ({"seed": 2**63}, "is not possible: a whole number from 0 to 2**63 - 1"),
    ({"clip_norm": "1"}, "clip_norm='1' is a text: give a number, or None"),
    ({"partition": "equal"}, "partition='equal' is a text: give Equal()"),
    ({"sampling": 3}, "sampling=3 is a number: give Shuffled()"),
    ({"directory": 3}, 'directory=3 is a number: give a path, such as "runs/first"'),
    ({"resume": "yes", "directory": "x"}, "resume='yes' is a text: give True or False"),
    ({"progress": "yes"}, "progress='yes' is a text: give True or False, or None"),
    ({"task": nn.Linear(2, 2)}, "task=Linear(.*) is of the type Linear: give Task(model, loss"),
    (
        {"task": evaluated(0.5)},
        "evaluate returned float, not a mapping from names to numbers: let it return {'loss': ..., 'accuracy': ...}",
    ),
    ({"task": evaluated({"f1": [0.5, 0.25]})}, "evaluate returned f1=[0.5, 0.25], which is no number"),
    ({"task": evaluated({"f1": "0.5"})}, "evaluate returned f1='0.5', which is no number"),
    ({"task": evaluated({3: 0.5})}, "evaluate returned 3 as the name of a metric: give a text of 1 to 100 characters"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda each: "".join(each) if isinstance(each, dict) else "")
def test_an_argument_of_another_kind_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:

    with pytest.raises(pl.ConfigError, match=re.escape(said).replace(r"\.\*", ".*")) as error:
        run(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: any_pl.FastestK("3"), "FastestK cannot have quorum='3': give a whole number"),
        (lambda: any_pl.FastestK(2.5), "FastestK cannot have quorum=2.5: give a whole number"),
        (lambda: any_pl.FastestK(True), "FastestK cannot have quorum=True: give a whole number"),
        (lambda: any_pl.FastestK(2, stop_late="no"), "FastestK cannot have stop_late='no': give True or False"),
        (lambda: any_pl.LiveCompensation(2, blocks=None), "cannot have blocks=None: give a whole number"),
        (lambda: any_pl.Grouped(3), "groups=3 are no groups: give lists of worker numbers"),
        (lambda: any_pl.Grouped(["ab"]), "are no groups"),
        (lambda: any_pl.Grouped([[0, 0.5]]), "are no groups"),
        (lambda: any_pl.Grouped([[0]], inside="ssg"), "ssg"),
        (lambda: any_pl.Grouped([[0]], inside=pl.Synchronous), "give a strategy, such as Synchronous()"),
        (lambda: any_pl.Regrouped(tolerance="1"), "Regrouped cannot have tolerance='1': give a number"),
        (lambda: any_pl.Regrouped(window=2.5), "Regrouped cannot have window=2.5: give a whole number"),
        (lambda: any_pl.ModelAveraging("16"), "ModelAveraging cannot have every='16': give a whole number"),
        (lambda: any_pl.ModelAveraging(16, waits="k-sgd"), "quorum is missing: give a whole number, as in k-sgd"),
        (lambda: any_pl.ModelAveraging(16, waits=3), "give a strategy, such as Synchronous()"),
        (lambda: any_pl.EnsembleCompression(16, relabel="all"), "relabel='all': give a number"),
        (lambda: any_pl.FinalEnsemble("x"), "every='x': give a whole number"),
        (lambda: any_pl.Stop(updates=2.5), "Stop cannot have updates=2.5: give a whole number, or None"),
        (lambda: any_pl.Stop(seconds="60"), "Stop cannot have seconds='60': give a number, or None"),
        (lambda: any_pl.Every(updates="3"), "Every cannot have updates='3'"),
        (lambda: any_pl.delays.Constant("1"), "Constant cannot have value='1': give a number"),
        (lambda: any_pl.delays.LogNormal(1.0, None), "LogNormal cannot have sigma=None: give a number"),
        (lambda: any_pl.delays.ShiftedExponential(1.0, 1.0, 1.5), "cannot have h=1.5: give a whole number"),
        (lambda: any_pl.delays.Empirical(3), "Empirical cannot have values=3: give a list of seconds"),
        (lambda: any_pl.delays.Empirical(["a"]), "give a list of seconds"),
        (lambda: any_pl.Dirichlet("much"), "Dirichlet cannot have alpha='much': give a number"),
        (lambda: any_pl.Pathological(2.5), "Pathological cannot have classes_per_worker=2.5: give a whole number"),
        (lambda: any_pl.SimulatedFleet(1.0, workers=2), "1.0 is no distribution of durations: give Constant(1.0)"),
        (lambda: any_pl.SimulatedFleet("fast", workers=2), "is no distribution of durations"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant, workers=2), "is no distribution of durations"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), workers="4"), "workers='4': give a whole number"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2**40), "more than can be kept account of"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, network=0.1), "give Network(latency=0.01)"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, labels="ab"), "give a list of texts"),
        (lambda: any_pl.SimulatedFleet([pl.delays.Constant(1.0)], changes=[3]), "changes: 3 is no change: give Left"),
        (lambda: any_pl.Network(latency="0"), "Network cannot have latency='0': give a number"),
        (lambda: any_pl.ProcessFleet("4"), "ProcessFleet cannot have workers='4': give a whole number"),
        (lambda: any_pl.ProcessFleet(4, slow=[3]), "does not say who is slow"),
        (lambda: any_pl.ProcessFleet(4, slow={1: "very"}), "'very' is no distribution of durations"),
        (lambda: any_pl.ProcessFleet(4, deadline=5.0), "deadline=5.0 is no timeout: give SilenceTimeout"),
        (lambda: any_pl.SilenceTimeout(factor="10"), "SilenceTimeout cannot have factor='10': give a number"),
        (lambda: any_pl.RayFleet(4.0), "RayFleet cannot have workers=4.0: give a whole number"),
        (lambda: any_pl.simulate("ssgd", FLEET, 100), "stop=100 is a number: give Stop(updates=100)"),
        (lambda: any_pl.simulate("ssgd", 4, pl.Stop(updates=1)), "fleet=4 is a number"),
        (lambda: any_pl.simulate("ssgd", pl.ProcessFleet(2), pl.Stop(updates=1)), "only a SimulatedFleet"),
        (lambda: any_profile(task(), fleet=4), "fleet=4 is a number"),
        (lambda: any_profile(task(), fleet=FLEET, seconds="60"), "seconds='60' is a text"),
        (lambda: any_pl.replay("x", task(), strategy=3, fleet=FLEET, optimizer=sgd), "strategy=3"),
        (lambda: any_pl.replay(3, task(), strategy="ssgd", fleet=FLEET, optimizer=sgd), "directory=3 is no path"),
        (lambda: any_pl.load(3), 'directory=3 is no path: give one, such as "runs/first"'),
        (lambda: any_pl.load_run(3), "directory=3 is no path"),
        (lambda: any_pl.simulate("ssgd", FLEET, pl.Stop(updates=1), trace=3), "trace=3 is no path"),
        (lambda: compare(directory=0), "directory=0 is no path"),
        (lambda: compare(target="x"), "target='x' is not possible: give a number, or None"),
        (lambda: compare(metric=3, below=1.0), "metric=3 is not possible: give a text, or None"),
        (lambda: advise(target="x"), "target='x' is not possible: give a number"),
        (lambda: advise(budget="x"), "budget='x' is not possible: seconds, more than 0"),
        (lambda: advise(prices=0), "prices=0 are none: give a list with the price of a second of each worker"),
        (lambda: advise(prices=["a"] * 4), "are none: give a list with the price"),
        (lambda: any_pl.advise(0, fleet=FLEET), "task=0 is a number: give Task(model, loss"),
        (lambda: any_pl.advise(recording=3), "recording=3 is no path"),
        (lambda: any_pl.predict("ssgd", FLEET, task=3), "task=3 is a number: give Task(model, loss"),
        (lambda: replace(task(), evaluate=any_pl.Stop(updates=3)), "is no function from a model to its metrics"),
        (lambda: replace(task(), evaluate=3), "evaluate=3 is no function from a model to its metrics"),  # type: ignore[arg-type]
        (lambda: replace(task(), train=torch.tensor(1)), "not one number, 1"),
        (lambda: replace(task(), test=np.array(1)), "not one number, 1"),
        (lambda: replace(task(), unaugmented=torch.tensor(1)), "not one number, 1"),
        (lambda: replace(task(), train=(torch.tensor(1), torch.tensor(2))), "not of single numbers"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), 2, changes=None), "changes=None is no list: give"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), 2, changes=1), "changes=1 is no list"),
        (lambda: any_pl.SimulatedFleet(pl.delays.Constant(1.0), 2, labels=None), "labels=None are none: give a list"),
        (lambda: any_pl.ProcessFleet(2, labels=1), "labels=1 are none: give a list of texts"),
        (lambda: any_pl.RayFleet(2, labels=None), "labels=None are none: give a list of texts"),
        (lambda: any_pl.Stop(target=95), "target=95 is no accuracy: between 0 and 1, such as 0.95"),
        (lambda: any_pl.Stop(metric="accuracy", above=2), "above=2 is no accuracy: between 0 and 1, such as 0.02"),
        (lambda: any_pl.Stop(target=10**400), "cannot have target=1"),
        (lambda: run(strategy="ssgd:quorum=2"), "strategy 'ssgd:quorum=2': ssgd has no options: leave quorum out"),
    ],
)  # fmt: skip
def test_a_description_of_another_kind_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(pl.ConfigError) as error:
        make()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
