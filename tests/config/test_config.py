"""The TOML configuration: read strictly, refused in one line, written back whole."""

from pathlib import Path

import pytest

from paceline.cli.demo import OPENING
from paceline.config.file import Config, parse_config, read_config, to_toml, write_config
from paceline.config.fleets import as_processes
from paceline.core.errors import ConfigError
from paceline.core.messages import Joined, Leaving, Left
from paceline.delays import Constant, Hourly, LogNormal, PerSample, ShiftedExponential, SlowSpells
from paceline.engine.limits import Stop, Target
from paceline.fleets.processes.fleet import ProcessFleet
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.simulated.cluster import Machines
from paceline.fleets.simulated.conditions import Availability
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.catalogue import BY_NAME, STRATEGIES
from paceline.strategies.ensemble_compression import EnsembleCompression, FinalEnsemble
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.names import StrategyChoice, parse_strategy
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.synchronous import Synchronous

ROOT = Path(__file__).parents[2]
SMALL = """
strategy = ["ssgd"]
[task]
data = "digits"
model = "linear"
[[fleet.workers]]
count = 2
delay = "constant"
value = 1.0
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 3
"""


def small(old: str = "", new: str = "") -> Config:
    assert old in SMALL
    return parse_config(SMALL.replace(old, new, 1), "small.toml")


def refusal(old: str, new: str) -> str:
    with pytest.raises(ConfigError) as caught:
        small(old, new)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("small.toml")
    return message


def test_the_target_is_an_accuracy_or_any_metric() -> None:
    assert small().goal is None
    assert small('strategy = ["ssgd"]', 'strategy = ["ssgd"]\ntarget = 0.9').goal == Target("accuracy", 0.9, above=True)
    own = small('strategy = ["ssgd"]', 'strategy = ["ssgd"]\nmetric = "perplexity"\nbelow = 20')
    assert own.goal == Target("perplexity", 20.0, above=False)
    assert parse_config(write_config(own)) == own
    assert small("updates = 3", 'updates = 3\nmetric = "f1"\nabove = 0.7').goal == Target("f1", 0.7, above=True)
    assert small("updates = 3", "target = 0.8").goal == Target("accuracy", 0.8, above=True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("below = 2.0", 'below=2.0 is the limit of a metric: name it, as in metric = "perplexity"'),
        ('metric = "loss"', "metric='loss' needs one limit: give either below or above"),
        ('metric = "loss"\nbelow = 1.0\nabove = 2.0', "give either below or above"),
        ('metric = "loss"\nbelow = nan', "it must be finite"),
        ('metric = "loss"\nbelow = 1.0\ntarget = 0.5', "give one of them"),
        ("metric = 3", "metric: must be a text, not 3"),
    ],
)
def test_a_target_that_cannot_be_is_refused(keys: str, said: str) -> None:
    assert said in refusal('strategy = ["ssgd"]', f'strategy = ["ssgd"]\n{keys}')


def test_defaults_are_filled_in() -> None:
    config = small()
    assert config.fleet.medians == (1.0, 1.0)
    assert config.stop == Stop(updates=3)
    assert (config.batch_size, config.seeds, config.target) == (32, (0,), None)


@pytest.mark.parametrize(
    "path",
    [ROOT / "examples/compare.toml", ROOT / "examples/advise.toml", ROOT / "src/paceline/cli/demo.toml"],
    ids=lambda p: p.name,
)
def test_a_written_config_reads_back_the_same(path: Path) -> None:
    config = read_config(path)
    assert parse_config(write_config(config)) == config


def test_the_example_shows_every_part_of_a_fleet() -> None:
    fleet = read_config(ROOT / "examples/compare.toml").fleet
    assert isinstance(fleet, SimulatedFleet)
    assert fleet.worker_delays == (Constant(1.0),) * 4 + (ShiftedExponential(1.5, 0.5, h=10),) * 4
    assert fleet.changes == (Left(20.0, 7), Joined(30.0, 7))
    assert fleet.network.latency == 0.01


def test_a_server_that_takes_time_is_written_and_read_back() -> None:
    config = small("[optimizer]", "[fleet]\nserver_seconds = 0.002\n[optimizer]")
    assert config.fleet == SimulatedFleet((Constant(1.0), Constant(1.0)), server_seconds=0.002)
    assert parse_config(write_config(config)) == config
    assert "server_seconds" not in write_config(small())


CONDITIONS = """
wire = "bfloat16"
[fleet.machines]
workers_each = 2
gigabits = 25
shards = 2
sum_seconds = 0.01
[fleet.availability]
mean_up = 3600
mean_down = 60
notice = 30
workers = [1]
[[fleet.slowness]]
kind = "spells"
factor = 3
lasts = 60
every = 600
[[fleet.slowness]]
kind = "hourly"
factors = [1, 1.5]
[[fleet.changes]]
at = 5
worker = 0
what = "is to leave"
by = 9
[[fleet.changes]]
at = 9
worker = 0
what = "leaves"
"""


def test_machines_availability_slowness_and_notices_are_read_and_written_back() -> None:
    config = small("[optimizer]", f"[fleet]{CONDITIONS}[optimizer]")
    assert config.fleet == SimulatedFleet(
        (Constant(1.0), Constant(1.0)),
        wire="bfloat16",
        machines=Machines(2, 25.0, shards=2, sum_seconds=0.01),
        availability=Availability(3600.0, 60.0, notice=30.0, workers=(1,)),
        slowness=(SlowSpells(3.0, 60.0, 600.0), Hourly((1.0, 1.5))),
        changes=(Leaving(5.0, 0, 9.0), Left(9.0, 0)),
    )
    assert parse_config(write_config(config), "again") == config


def test_prices_are_those_of_workers_all_or_none() -> None:
    priced = small('delay = "constant"', 'delay = "constant"\nprice = 0.5')
    assert isinstance(priced.fleet, SimulatedFleet)
    assert priced.fleet.worker_prices == (0.5, 0.5)
    assert parse_config(write_config(priced), "again") == priced


def test_the_demo_is_what_it_says_about_itself() -> None:
    config = read_config(ROOT / "src/paceline/cli/demo.toml")
    assert "Four take about 1 second for a mini-batch, four about 2, six about 3, and the last two stall" in OPENING
    assert [round(each, 3) for each in config.fleet.medians[:14]] == [1.0] * 4 + [2.0] * 4 + [3.0] * 6
    five = {"synchronous", "asynchronous", "fastest-k", "live-compensation", "grouped"}
    assert {choice.name for choice in config.strategies} == five
    assert len(config.seeds) >= 5  # with fewer, chance is the better explanation
    assert config.fleet.workers == 16


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("updates = 3", "update = 3", "stop: unknown key 'update': did you mean 'updates'?"),
        ("[stop]", "[stp]", "unknown key 'stp': did you mean 'stop'?"),
        ("value = 1.0", "vlaue = 1.0", "fleet.workers[0]: unknown key 'vlaue': did you mean 'value'?"),
        ('"constant"', '"constnat"', "fleet.workers[0].delay: unknown name 'constnat': did you mean 'constant'?"),
        ('"digits"', '"digit"', "task.data: 'digit' is unknown: did you mean 'digits'?"),
        ("value = 1.0", "value = 0.0", "value must be positive and finite, not 0.0"),
        ("value = 1.0", "value = nan", "value must be positive and finite, not nan"),
        ("value = 1.0", 'value = "1"', "fleet.workers[0].value: must be a number, not '1'"),
        ("value = 1.0", "", "fleet.workers[0]: 'value' is missing: give value = a number"),
        ("updates = 3", "updates = 3.5", "stop.updates: must be a whole number, not 3.5"),
        ("updates = 3", "updates = true", "stop.updates: must be a whole number, not true"),
        ("updates = 3", "", "stop: a run needs an end"),
        ("count = 2", "count = 0", "fleet.workers[0].count: 0 workers are not possible"),
        ("[stop]\nupdates = 3", "", "the section [stop] is missing"),
        ("lr = 0.1", "", "no learning rate is given"),
        ('["ssgd"]', "[]", "strategy: the list is empty"),
        ('["ssgd"]', "[3]", "strategy[0]: must be a table of keys and values, not 3"),
        ('["ssgd"]', '["sgsd"]', "unknown strategy 'sgsd': did you mean"),
        ("strategy", "seeds = [0, 0]\nstrategy", "seeds=[0, 0]: give different whole numbers"),
        ("strategy", "seeds = 3\nstrategy", "seeds: must be a list, each a whole number, not 3"),
        ("strategy", "target = 92\nstrategy", "target=92.0 is no accuracy"),
        ('"linear"', '"mlp"', "an mlp needs the widths of its hidden layers"),
        ("count = 2", "count = = 2", "small.toml is not valid TOML"),
        ("[optimizer]", "[fleet]\nserver_seconds = -1\n[optimizer]", "fleet: server_seconds=-1.0 is not possible"),
        ("[optimizer]", '[fleet]\nserver_seconds = "1"\n[optimizer]', "fleet.server_seconds: must be a number"),
        ("[optimizer]", "[fleet]\nserver_second = 1\n[optimizer]", "'server_second': did you mean 'server_seconds'?"),
        ("[optimizer]", '[fleet]\nrecall = "blok"\n[optimizer]', "recall='blok' is unknown: choose one of complete"),
    ],
)
def test_a_refusal_says_where_what_and_what_would_do(old: str, new: str, said: str) -> None:
    assert said in refusal(old, new)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_config(tmp_path / "none.toml")


def test_texts_with_quotes_and_odd_keys_survive_toml() -> None:
    import tomllib

    table = {"a b": 'x"\\\n\x7fé', "n": [1, 2.5, True], "far": float("inf"), "t": {"u": [{"v": 1}, {"w": "2"}]}}
    assert tomllib.loads(to_toml(table)) == table


# Strategies by name


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("ssgd", Synchronous()),
        ("Full-SGD", Synchronous()),
        ("k-sgd:quorum=7", FastestK(quorum=7)),
        ("fastest-k:quorum=7,stop_late=false", FastestK(quorum=7, stop_late=False)),
        ("lgc:quorum=7,blocks=4,recall=false", LiveCompensation(quorum=7, blocks=4, recall=False)),
        ("gsgd:groups=0+2/1+3", Grouped([[0, 2], [1, 3]])),
        ("gsgd", Grouped([[0, 1], [2], [3]])),
        ("gsgd:groups=labels", Grouped([[0, 2], [1, 3]])),
        ("gsgd-measured", Regrouped()),
        ("gsgd-measured:groups=0-1/2-3,tolerance=1,margin=0.5,window=3", Regrouped([[0, 1], [2, 3]], 1.0, 0.5, 3)),
        ("gsgd-measured:groups=labels,inside=k-sgd:quorum=1", Regrouped([[0, 2], [1, 3]], inside=FastestK(1))),
        ("gsgd:tolerance=1", Grouped([[0, 1, 2], [3]])),
        ("gsgd:groups=0-3,inside=lgc:quorum=2,blocks=4", Grouped([range(4)], inside=LiveCompensation(2, blocks=4))),
        ("ma:every=16", ModelAveraging(every=16)),
        ("local-sgd:every=4,momentum=averaged,recalibrate=8", ModelAveraging(4, momentum="averaged", recalibrate=8)),
        ("ma:every=4,waits=k-sgd:quorum=3", ModelAveraging(4, waits=FastestK(3))),
        ("ma:every=4,waits=gsgd:inside=k-sgd:quorum=1", ModelAveraging(4, Grouped([[0, 1], [2], [3]], FastestK(1)))),
        ("ec-dnn-s:every=500", EnsembleCompression(500)),
        ("EC-DNN:every=50,steps=200,distillation=1", EnsembleCompression(50, steps=200, distillation=1.0)),
        ("ec-dnn-r:every=500,pooled=true", EnsembleCompression(500, "regression", pooled=True)),
        ("ec-dnn-m:every=500,compression_steps=20", EnsembleCompression(500, "margin", compression_steps=20)),
        ("e-dnn:steps=2000", FinalEnsemble(2000)),
    ],
)
def test_a_text_names_a_strategy(text: str, strategy: object) -> None:
    assert parse_strategy(text).strategy([1.0, 1.1, 2.0, 3.0], ["a", "b", "a", "b"]) == strategy


@pytest.mark.parametrize(
    "text",
    [
        "ssgd",
        "lgc:quorum=7,blocks=4,recall=false",
        "gsgd:groups=0-3/4+6,inside=k-sgd:quorum=1",
        "ec-dnn-r:every=500,pooled=true",
        "ma:every=16,waits=k-sgd:quorum=2",
    ],
)
def test_a_choice_is_spelt_as_it_was_read(text: str) -> None:
    choice = parse_strategy(text)
    assert choice.short == text
    assert parse_strategy(choice.text) == choice
    assert parse_config(SMALL.replace('["ssgd"]', f'["{text}"]')).strategies == (choice,)


def test_a_table_names_a_strategy() -> None:
    tables = '{name = "gsgd", tolerance = 0.5, inside = {name = "lgc", quorum = 2}}'
    inside = StrategyChoice("live-compensation", {"quorum": 2})
    expected = StrategyChoice("grouped", {"tolerance": 0.5, "inside": inside})
    assert small('["ssgd"]', tables).strategies == (expected,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lgcc", "unknown strategy 'lgcc': did you mean 'lgc'?"),
        ("lgc:quorm=7", "unknown key 'quorm': did you mean 'quorum'?"),
        ("lgc", "quorum is missing: give a whole number, as in lgc:quorum=7,blocks=4"),
        ("lgc:quorum=x", "quorum: must be a whole number, not 'x'"),
        ("lgc:quorum", "'quorum' is not an option: write name:option=value"),
        ("lgc:quorum=2,quorum=3", "quorum is given twice"),
        ("gsgd:groups=0-3/a", "'a' names no workers: write groups as 0-3/4-7"),
        ("gsgd:groups=0-3,tolerance=1", "either groups or a tolerance"),
        ("gsgd:inside=lgg:quorum=2", "unknown strategy 'lgg': did you mean 'lgc'?"),
        ("", "unknown strategy ''"),
        ("ma", "every is missing: give a whole number, as in ma:every=16"),
        ("e-dnn:every=5", "unknown key 'every': choose from steps, same_start"),
        ("ec-dnn-s:every=500,weights=margin", "unknown key 'weights'"),
        ("ma:every=5,momentum=lost", "'lost' is unknown: choose from kept, averaged"),
        ("ma:every=5,waits=3", "must be a table of keys and values, not 3"),
    ],
)
def test_an_unknown_name_or_option_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_strategy(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_said_once() -> None:
    with pytest.raises(ConfigError, match=r"^unknown strategy 'sgdd': did you mean 'ssgd'\?"):
        parse_strategy("sgdd")


def test_groups_by_labels_need_a_fleet_that_has_some() -> None:
    with pytest.raises(ConfigError, match="'gsgd:groups=labels': the fleet has no labels to form groups by"):
        parse_strategy("gsgd:groups=labels").strategy([1.0] * 5)


def test_a_fleet_can_label_its_workers() -> None:
    labelled = PROCESSES.replace("threads = 1", 'threads = 1\nlabels = ["a", "a", "b", "b"]')
    processes = parse_config(labelled)
    assert processes.fleet.labels == ("a", "a", "b", "b")
    assert parse_config(write_config(processes)).fleet.labels == processes.fleet.labels
    with pytest.raises(ConfigError, match="3 labels for 4 workers: give one for each, or none"):
        parse_config(labelled.replace('"a", "a"', '"a"'))
    workers = '[[fleet.workers]]\ncount = 2\ndelay = "constant"\nvalue = 1.0\n'
    task, rest = PROCESSES[: PROCESSES.index("[fleet]")], PROCESSES[PROCESSES.index("[[strategy]]") :]
    simulated = parse_config(task + rest + workers + 'label = "rack"\n' + workers)
    assert simulated.fleet.labels == ("rack", "rack", "", "")
    assert parse_config(write_config(simulated)).fleet.labels == simulated.fleet.labels
    assert as_processes(simulated.fleet).labels == simulated.fleet.labels


def test_overlapping_groups_are_refused_when_the_strategy_is_made() -> None:
    with pytest.raises(ConfigError, match="groups overlap: worker 3 named more than once"):
        parse_strategy("gsgd:groups=0-3/3-4").strategy([1.0] * 5)


def test_no_name_is_used_twice() -> None:
    assert len(BY_NAME) == sum(len(named.names) for named in STRATEGIES)


PROCESSES = """
[task]
data = "digits"
model = "linear"
[fleet]
kind = "processes"
workers = 4
threads = 1
min_workers = 2
replace = true
[fleet.deadline]
factor = 5
[[fleet.slow]]
worker = 3
times = 4
[[fleet.slow]]
worker = 2
delay = "log-normal"
median = 0.1
sigma = 0.5
[[strategy]]
name = "ssgd"
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 3
"""


def test_devices_and_ranks_of_processes() -> None:
    more = 'kind = "processes"\nranks_per_worker = 2\nstart = "spawn"\nstaging = true\ndevices = '
    for given, devices in (
        ('"auto"', "auto"),
        ('["cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu"]', ("cpu",) * 8),
    ):
        config = parse_config(PROCESSES.replace('kind = "processes"', more + given))
        fleet = config.fleet
        assert isinstance(fleet, ProcessFleet)
        assert (fleet.ranks_per_worker, fleet.start, fleet.staging, fleet.devices) == (2, "spawn", True, devices)
        again = parse_config(write_config(config)).fleet
        assert isinstance(again, ProcessFleet)
        assert (again, again.start, again.staging) == (fleet, "spawn", True)
    assert "ranks" not in write_config(parse_config(PROCESSES))


def test_a_fleet_of_processes() -> None:
    config = parse_config(PROCESSES)
    assert config.fleet == ProcessFleet(
        4, slow={3: 4.0, 2: LogNormal(0.1, 0.5)}, threads=1, min_workers=2, deadline=SilenceTimeout(factor=5.0)
    )
    assert parse_config(write_config(config)) == config
    assert config.fleet.medians == (1.0, 1.0, 0.1, 4.0)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"processes"', '"proceses"', "fleet.kind: 'proceses' is unknown: did you mean 'processes'?"),
        ("workers = 4\n", "", "fleet: 'workers' is missing: give workers = 4"),
        ("workers = 4\n", "workers = 0\n", "fleet: a fleet of 0 workers can do nothing"),
        ("times = 4", "times = 0.5", "fleet: worker 3 cannot be 0.5 times as slow"),
        ("worker = 3\n", "", "fleet.slow[0]: 'worker' is missing"),
        ("threads = 1", "thread = 1", "fleet: unknown key 'thread': did you mean 'threads'?"),
        ("factor = 5", "factor = 1", "fleet.deadline: SilenceTimeout(factor=1.0"),
    ],
)
def test_impossible_fleets_of_processes_are_refused(old: str, new: str, why: str) -> None:
    assert old in PROCESSES
    with pytest.raises(ConfigError) as caught:
        parse_config(PROCESSES.replace(old, new, 1))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_of_their_own_and_seconds_a_sample_are_written_and_read_back() -> None:
    config = small("[optimizer]", "[optimizer]").fleet
    text = write_config(small()).replace("batch_size = 32", "batch_size = [8, 4]")
    found = parse_config(text)
    assert found.batch_size == (8, 4)
    assert found.fleet == config
    assert parse_config(write_config(found)) == found
    parts = parse_config(text.replace("value = 1.0", "value = 1.0\nfixed = 0.5"))
    assert isinstance(parts.fleet, SimulatedFleet)
    assert parts.fleet.worker_delays == (PerSample(0.5, Constant(1.0)),) * 2
    assert parse_config(write_config(parts)) == parts
    assert parse_config(text.replace("[8, 4]", "[8, 8]")).batch_size == 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("[8]", r"batch_size=\[8\] has 1 sizes for 2 workers"),
        ("[8, 0]", "leaves worker 1 without samples"),
        ('[8, "4"]', r"batch_size\[1\]: must be a whole number"),
    ],
)
def test_sizes_that_do_not_fit_the_fleet_are_refused(sizes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(write_config(small()).replace("batch_size = 32", f"batch_size = {sizes}"))
