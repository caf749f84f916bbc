"""What a run was made of is kept as data, and told apart field by field."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import paceline as pl
from paceline import delays
from paceline.cli.main import main
from paceline.config.experiment import replay_config
from paceline.config.file import read_config
from paceline.engine.spec import RunSpec
from paceline.storage.description import describe, difference
from paceline.storage.reading import read_run
from paceline.storage.spec_file import FORMAT, field_of, parse_repr, read_spec, spec_difference, spec_text
from support import golden
from support.digits import digits_task

OLDER = Path(__file__).parent.parent / "golden" / "older"
SLOW: dict[int, float | delays.Delay] = {3: 4.0, 1: delays.LogNormal(1.0, 0.5)}
VALUES: list[Any] = [
    pl.LiveCompensation(2, blocks=4),
    pl.Grouped([[0, 1], [2, 3]], inside=pl.LiveCompensation(1)),
    pl.ModelAveraging(every=4, waits=pl.FastestK(2)),
    pl.SimulatedFleet([delays.Constant(1.0), delays.Empirical([1.0, 2.0])], changes=[pl.Left(2.0, 1)], threads=2),
    pl.ProcessFleet(4, slow=SLOW, deadline=pl.SilenceTimeout(factor=3.0)),
    pl.RayFleet(4, {"CPU": 0.5}),
    pl.Dirichlet(0.5),
    pl.ReassignShards(pl.Resampled()),
    pl.Stop(seconds=3.5),
    None,
]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def spec(**changed: Any) -> RunSpec:
    chosen = {
        "strategy": pl.LiveCompensation(2, blocks=1),
        "fleet": golden.simulated(),
        "stop": pl.Stop(updates=3),
        **changed,
    }
    return RunSpec.of(digits_task(), **{"optimizer": sgd, **chosen})


def stored(value: RunSpec, **extra: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(spec_text(value, extra), parse_constant=pytest.fail)
    return read


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_known_by_its_description_and_by_the_text_of_older_runs(value: Any) -> None:
    description = json.loads(json.dumps(describe(value), allow_nan=False))
    assert difference("it", description, value) is None
    assert difference("it", parse_repr(repr(value)), value) is None
    for other in VALUES:
        if other is not value:
            assert difference("it", description, other) is not None


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (pl.LiveCompensation(2), pl.LiveCompensation(3), "it.quorum = 2, not 3"),
        (pl.FastestK(2), pl.Synchronous(), "it = FastestK(quorum=2, stop_late=True, warm_up=0), not Synchronous()"),
        (pl.Grouped([[0, 1], [2]]), pl.Grouped([[0, 1], [3]]), "it.groups[1][0] = 2, not 3"),
        ([pl.FastestK(2)], [pl.FastestK(3)], "it[0].quorum = 2, not 3"),
        (pl.ProcessFleet(4, slow={3: 4.0}), pl.ProcessFleet(4, slow={3: 5.0}), "it.slow[3] = 4.0, not 5.0"),
        (SLOW, {}, "it = {1: LogNormal(median=1.0, sigma=0.5), 3: 4.0}, not {}"),
        (pl.Network(1.0), pl.Network(1.0, 8.0), "it.bandwidth = inf, not 8.0"),
        ({"CPU": 1.0}, {"GPU": 1.0}, "it = {'CPU': 1.0}, not {'GPU': 1.0}"),
        ([1, 2], [1, 2, 3], "it = [1, 2], not [1, 2, 3]"),
        (True, 1, "it = True, not 1"),
        ({1, 2}, {2, 3}, "it = {1, 2}, not {2, 3}"),
        (sgd, spec, "it = sgd, not spec"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named_with_its_place(one: Any, other: Any, said: str) -> None:
    assert difference("it", json.loads(json.dumps(describe(one))), other) == said


def test_lists_and_tuples_numbers_and_the_order_of_keys_make_no_difference() -> None:
    assert difference("it", describe([1.0, {"b": 2, "a": 1}]), (1, {"a": 1, "b": 2})) is None
    assert difference("it", describe({3: 4.0, 1: 2.0}), {1: 2.0, 3: 4.0}) is None


def test_a_field_that_came_later_had_its_default() -> None:
    then = describe(make_dataclass("Rule", ["k"], frozen=True)(3))
    later = make_dataclass("Rule", [("k", int), ("recall", bool, field(default=True))], frozen=True)
    assert difference("strategy", then, later(3)) is None
    assert difference("strategy", then, later(3, recall=False)) == "strategy.recall = True, not False"
    assert difference("strategy", then, later(4)) == "strategy.k = 3, not 4"
    needed = make_dataclass("Rule", ["k", "blocks"], frozen=True)
    assert difference("strategy", then, needed(3, 4)) == "strategy.blocks unknown, not 4"
    unknown = difference("strategy", describe(later(3)), make_dataclass("Rule", ["k"], frozen=True)(3))
    assert unknown == "strategy.recall, which this version of Paceline does not know"


def test_a_field_of_the_spec_that_came_later_had_its_default() -> None:
    kept = stored(spec())
    del kept["every"], kept["clip_norm"]
    assert spec_difference(kept, spec()) is None
    assert spec_difference(kept, spec(clip_norm=1.0)) == "clip_norm = None, not 1.0"
    del kept["strategy"]
    assert (spec_difference(kept, spec()) or "").startswith("strategy unknown, not LiveCompensation(quorum=2")


class Plain:
    """No dataclass."""


class Told(Plain):
    def __init__(self, k: int) -> None:
        self.k = k

    def __repr__(self) -> str:
        return f"Told({self.k}, {object.__repr__(self)})"


@dataclass(frozen=True)
class Wrapper:
    """Changes no result."""

    described_as: object


def test_what_is_no_dataclass_is_known_by_its_class_and_what_it_says_of_itself() -> None:
    assert describe(Plain()) == {"kind": "Plain"}
    assert difference("it", describe(Plain()), Plain()) is None
    assert difference("it", describe(Told(3)), Told(3)) is None
    assert (difference("it", describe(Told(3)), Told(4)) or "").startswith("it = Told(3, <")
    assert describe(Wrapper(pl.FastestK(2))) == describe(pl.FastestK(2))
    assert difference("it", describe(pl.FastestK(2)), Wrapper(pl.FastestK(3))) == "it.quorum = 2, not 3"
    kind = describe(partial(torch.optim.SGD, lr=0.1))
    assert kind == {
        "kind": "partial", "function": {"kind": "function", "name": "SGD"}, "arguments": [], "keywords": {"lr": 0.1}
    }  # fmt: skip


def test_the_spec_is_plain_json_with_a_line_for_each_field() -> None:
    text = spec_text(spec(), {"profile": 3.0})
    kept = stored(spec(), profile=3.0)
    assert (kept["format"], kept["profile"], kept["training_samples"]) == (FORMAT, 3.0, 1500)
    assert kept["strategy"] == {
        "kind": "LiveCompensation", "quorum": 2, "blocks": 1, "recall": True, "scale": True, "warm_up": 0
    }  # fmt: skip
    assert kept["fleet"]["network"] == {
        "kind": "Network",
        "latency": 0.0,
        "bandwidth": {"kind": "float", "value": "inf"},
    }
    assert kept["optimizer"] == {"kind": "function", "name": "sgd"}
    assert len(text.splitlines()) == len(kept) + 2


def test_functions_are_kept_and_not_compared() -> None:
    """Whoever moves a lambda into a function trains with the same optimizer."""
    assert spec_difference(stored(spec()), spec(optimizer=partial(torch.optim.SGD, lr=0.1))) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"strategy": pl.LiveCompensation(3, blocks=1)}, "strategy.quorum = 2, not 3"),
        ({"fleet": golden.simulated(recall="abandon")}, "fleet.recall = 'block', not 'abandon'"),
        ({"partition": pl.Dirichlet(0.5)}, "partition = Equal(), not Dirichlet(alpha=0.5)"),
        ({"sampling": pl.Resampled()}, "sampling = Shuffled(), not Resampled()"),
        ({"batch_size": 16}, "batch_size = 32, not 16"),
        ({"clip_norm": 1.0}, "clip_norm = None, not 1.0"),
        ({"every": pl.Every(updates=2)}, "every = None, not Every(updates=2, seconds=None)"),
        ({"seed": 4}, "seed = 0, not 4"),
        ({"stop": pl.Stop(updates=4)}, "stop.updates = 3, not 4"),
    ],
)
def test_every_field_of_the_spec_is_compared(changed: Mapping[str, Any], said: str) -> None:
    assert spec_difference(stored(spec()), spec(**changed)) == said
    assert spec_difference(stored(spec()), spec(**changed), but=changed) is None


# Directories of before this format


def test_older_texts_are_read_without_running_them() -> None:
    old = read_spec(OLDER / "interrupted" / "config.json")
    assert field_of(old, "stop", "updates") == 11
    assert field_of(old, "stop", "seconds") is None
    assert parse_repr("Stop(seconds=-inf)") == {"kind": "Stop", "seconds": {"kind": "float", "value": "-inf"}}
    for text in ("__import__('os').abort()", "[", "-" * 10**5 + "1", "f(" * 10**5, "<Mine object>", "array([1])"):
        assert parse_repr(text) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"strategy": pl.LiveCompensation(3, blocks=4)}, "strategy.quorum = 2, not 3"),
        ({"strategy": pl.Synchronous()}, "strategy = LiveCompensation(quorum=2, blocks=4"),
        ({"fleet": golden.simulated(threads=2)}, "fleet.threads = None, not 2"),
        ({"seed": 4}, "seed = 5, not 4"),
    ],
)
def test_an_older_run_is_compared_field_by_field(changed: Mapping[str, Any], said: str | None) -> None:
    chosen = {"strategy": pl.LiveCompensation(2, blocks=4), "fleet": golden.simulated(), "seed": 5, **changed}
    now = RunSpec.of(golden.exact_task(), optimizer=sgd, stop=pl.Stop(updates=24), batch_size=4, **chosen)
    found = spec_difference(read_spec(OLDER / "interrupted" / "config.json"), now, but=("stop",))
    assert found is None if said is None else (found or "").startswith(said)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "ProcessFleet(workers=4, slow={3: 4.0, 1: LogNormal(median=1.0, sigma=0.5)}, threads=None, replace=True, "
            "min_workers=1, deadline=Deadline(factor=3.0, at_least=5.0, at_first=120.0))",
            pl.ProcessFleet(4, slow=SLOW, deadline=pl.SilenceTimeout(factor=3.0)),
        ),
        ("HandedOn(sampling=Resampled())", pl.ReassignShards(pl.Resampled())),
        ("HandedOn(sampling=<Plain object>)", pl.ReassignShards(cast(Any, Plain()))),
    ],
)
def test_classes_that_were_renamed_are_the_same(text: str, value: Any) -> None:
    name = "fleet" if isinstance(value, pl.ProcessFleet) else "sampling"
    now = spec(**{name: value}, strategy=pl.Asynchronous())
    old = {each: repr(getattr(now, each)) for each in ("strategy", "fleet", "partition", "every")}
    old |= {each: getattr(now, each) for each in ("batch_size", "clip_norm", "seed", "training_samples")}
    old |= {"sampling": "Shuffled()", name: text.replace("<Plain", f"<{Plain.__module__}.Plain")}
    assert spec_difference(old, now, but=("stop",)) is None
    plain = pl.ProcessFleet(4) if name == "fleet" else pl.ReassignShards()
    other = spec(**{name: plain}, strategy=pl.Asynchronous())
    assert (spec_difference(old, other, but=("stop",)) or "").startswith(name)


def test_an_older_run_of_the_command_line_is_replayed_and_reported(tmp_path: Path) -> None:
    found = replay_config(read_run(OLDER / "averaged"), read_config(OLDER / "averaged/config.toml"))
    assert found.compared
    assert found.departure is None
    assert max(found.differences.values(), default=0.0) < 1e-6  # made on another processor: it may round otherwise
    assert read_run(OLDER / "averaged").strategy.startswith("ModelAveraging(every=4")
    assert main(["report", str(OLDER / "averaged"), "--out", str(tmp_path / "page.html")]) == 0


# Directories of a format to come


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    shutil.copytree(OLDER / "averaged", path)
    (path / "config.json").write_text(json.dumps({"format": 3, "strategy": {"kind": "Synchronous"}}))
    (path / "config.toml").write_text("[sections]\nunheard = 'of'\n")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", "{}"), ("replay", "{}", "-s", "ssgd"), ("report", "{}", "--out", "page.html"),
        ("train", "--resume", "{}"), ("predict", "{}", "-s", "ssgd"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_directory_of_a_newer_format_is_refused_in_one_line(
    arguments: tuple[str, ...], newer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([each.format(newer) for each in arguments]) == 2
    line = f"error: {newer}/config.json has format 3, and Paceline {pl.__version__} reads formats 1 and 2\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    "use",
    [
        lambda path: golden.EXACT["synchronous"](directory=path, resume=True),
        lambda path: pl.replay(path, digits_task(), strategy="ssgd", fleet=golden.simulated(), optimizer=sgd),
        lambda path: pl.load(path, model=torch.nn.Linear(64, 10)),
    ],
    ids=["resume", "replay", "load"],
)
def test_from_python_too(use: Callable[[Path], object], newer: Path) -> None:
    with pytest.raises(pl.ConfigError, match=r"config\.json has format 3, and Paceline"):
        use(newer)


@pytest.mark.parametrize("number", [1, 0, -1, "2", None, 2.5, True, math.pi, [2], "x" * 1000])
def test_a_format_that_is_no_number_of_one_is_refused(number: Any, newer: Path) -> None:
    (newer / "config.json").write_text(json.dumps({"format": number}))
    with pytest.raises(pl.ConfigError, match=r"has format .{1,20}, and Paceline"):
        read_run(newer)
