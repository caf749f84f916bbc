"""``paceline.advise`` and its command: which rule, what it is worth, and when nothing can be said."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.core.errors import ConfigError
from paceline.core.messages import Step
from paceline.delays import Constant, Empirical
from paceline.learning.noise_scale import noise_scale
from paceline.prediction import search, trials
from paceline.prediction.pace import Case, pace_of
from paceline.prediction.predict import Descent
from paceline.prediction.progress import Worth
from paceline.prediction.times import Pieces, Recorded, recorded_times
from support.digits import digits_task

FILE = """
batch_size = 8
strategy = "ssgd"
[task]
data = "digits"
model = "linear"
[fleet]
[[fleet.workers]]
count = 3
delay = "constant"
value = 1.0
[[fleet.workers]]
delay = "constant"
value = 4.0
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 10
"""
SLOWED = """
batch_size = 8
strategy = "ssgd"
[task]
data = "digits"
model = "linear"
[fleet]
kind = "processes"
workers = 4
threads = 1
[[fleet.slow]]
worker = 0
delay = "constant"
value = 0.02
[[fleet.slow]]
worker = 1
delay = "constant"
value = 0.02
[[fleet.slow]]
worker = 2
delay = "constant"
value = 0.02
[[fleet.slow]]
worker = 3
delay = "constant"
value = 0.25
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 10
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shorter simulations; and nothing is left behind."""
    monkeypatch.setattr(search, "PIECES", (160, 400))
    monkeypatch.setattr(search, "DRAWS", 6)
    monkeypatch.setattr(search, "PIECES_OF_A_DRAW", (200, 400))
    for name, value in {"ROUNDS": 8, "ROUNDS_TO_TARGET": 40, "EVALUATIONS": 40, "TRIED": 3, "TUNED": 1}.items():
        monkeypatch.setattr(trials, name, value)
    monkeypatch.chdir(tmp_path)


def straggler(slowness: float = 4.0) -> pl.SimulatedFleet:
    return pl.SimulatedFleet([Constant(1.0)] * 3 + [Constant(slowness)])


def test_equal_workers_stay_as_they_are() -> None:
    advice = pl.advise(fleet=straggler(1.0), batch_size=8)
    assert (advice.strategy, advice.gain, advice.interval) == (pl.Synchronous(), 1.0, (1.0, 1.0))
    assert advice.lines[0].startswith("Do this: stay with ssgd; not enough to tell apart: ssgd and unequal:total=32")
    assert "Nothing is known of the loss" in advice.reason
    assert advice.learning_rate is None
    assert "more than" in advice.lines[2]


def test_a_straggler_is_not_waited_for_and_the_gain_is_that_of_the_simulator() -> None:
    task = digits_task()
    advice = pl.advise(
        task, fleet=straggler(), batch_size=8, curvature=2.0, noise=20.0, trials=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    assert not isinstance(advice.strategy, pl.Synchronous) or advice.without == (3,)
    assert advice.interval[0] <= advice.gain <= advice.interval[1]
    worth = Worth(2.0, 20.0, Descent(), 0.1)
    fastest = next(each for each in advice.candidates if each.label == "k-sgd:quorum=3")

    def updates(strategy: pl.FastestK | pl.Synchronous) -> int:
        trace = pl.simulate(strategy, straggler(), pl.Stop(seconds=400.0))
        return sum(isinstance(fact, Step) for fact in trace)

    more = updates(pl.FastestK(3)) / updates(pl.Synchronous())
    # per update: 1 / (1/2 limit + noise/batch), in units of the curvature; both have the limit 2
    expected = more * (1 + 20 / 32) / (1 + 20 / 24)
    assert fastest.gain == pytest.approx(expected, rel=0.02)
    for each in advice.candidates:
        assert each.learning_rate is not None
        assert 0 < each.learning_rate <= 0.5 * worth.limit(each.pace) * (1 + 1e-12)
    assert "stay with ssgd" in advice.lines[2]
    assert str(advice) == "\n".join(advice.lines)
    assert "<table>" in advice._repr_html_()
    json.dumps(advice.table(), allow_nan=False)


def test_what_a_rule_makes_of_time_is_counted() -> None:
    """By hand: three workers a second, and one in four."""
    case = Case(straggler(), 8)
    waits = pace_of(pl.Synchronous(), case, 200)
    assert (waits.updates_per_second.value, waits.batch, waits.mean_staleness) == pytest.approx((0.25, 32.0, 0.0))
    nobody = pace_of(pl.Asynchronous(), case, 2000)
    assert nobody.samples_per_second == pytest.approx(8 * 3.25, rel=0.02)
    assert nobody.batch == pytest.approx(8.0)
    groups = pace_of(pl.Grouped([[0, 1, 2], [3]]), case, 2000)  # a second 1 update of 24 samples, and 1/4 of 8
    assert groups.batch == pytest.approx(1.25 / (1 / 24 + 0.25 / 8), rel=0.02)
    sized = pace_of(pl.UnequalBatches(total=32), case, 400)  # 10 samples for the fast ones: 10/8 seconds
    assert (sized.updates_per_second.value, sized.batch) == pytest.approx((0.8, 32.0))
    smaller = pace_of(pl.Synchronous(), case, 200, without=(3,))
    assert (smaller.updates_per_second.value, smaller.batch) == pytest.approx((1.0, 24.0))


def test_staleness_costs_where_there_is_no_noise_and_little_where_there_is_much() -> None:
    case = Case(pl.SimulatedFleet(Constant(1.0), workers=8), 4)
    waits, nobody = (pace_of(rule, case, 800) for rule in (pl.Synchronous(), pl.Asynchronous()))
    worths = {noise: Worth(1.0, noise) for noise in (0.0, 1e5)}
    ratio = {noise: worth.effective_rate(nobody) / worth.effective_rate(waits) for noise, worth in worths.items()}
    assert ratio[0.0] < 0.15
    assert ratio[1e5] == pytest.approx(1 / 8, rel=0.01)  # the same for each sample: an eighth of the samples


def test_the_noise_scale_is_that_of_single_samples() -> None:
    """Against the definition: the trace of the covariance of the samples' gradients by the square of their mean."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 5, generator=generator)
    targets = inputs @ torch.ones(5, 1) + torch.randn(512, 1, generator=generator)
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1, bias=False)
    task = pl.Task(model, torch.nn.functional.mse_loss, (inputs, targets))
    gradients = (2 * (inputs @ model.weight.detach().T - targets) * inputs).double()
    mean = gradients.mean(0)
    expected = float(((gradients - mean) ** 2).sum(1).mean() / (mean @ mean))
    found = noise_scale(task)
    assert found.samples == 512
    assert found.value == pytest.approx(expected, rel=0.35)  # 32 small batches tell it as well as that


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def test_where_theory_does_not_reach_rules_are_tried() -> None:
    advice = pl.advise(digits_task(), fleet=straggler(), batch_size=8, optimizer=adam)
    tried = [each for each in advice.candidates if each.basis == "trial"]
    assert len(tried) == 4
    assert "theory does not reach this optimizer" in advice.reason
    assert advice.learning_rate is not None
    assert 0 < advice.learning_rate <= 0.01
    assert advice.gain > 1.5  # of at most four
    assert any("4 rules were tried on simulated workers" in note for note in advice.notes)


def test_the_interval_of_what_is_advised_is_told_whoever_was_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rules that cannot be told apart the least stale is advised: it need not be among those with most gain."""
    monkeypatch.setattr("paceline.prediction.answer.FINALISTS", -1)
    advice = pl.advise(digits_task(), fleet=straggler(), batch_size=8, optimizer=adam)
    assert advice.interval[0] < advice.gain < advice.interval[1]


def test_where_data_differ_nobody_is_advised_to_deal_them_anew() -> None:
    advice = pl.advise(
        digits_task(), fleet=straggler(), batch_size=8, partition=pl.Pathological(3), curvature=2.0, noise=20.0,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    assert not any(isinstance(each.strategy, pl.UnequalBatches) for each in advice.candidates)
    assert sum(each.basis == "trial" for each in advice.candidates) == 4


def test_a_trial_is_a_training_run() -> None:
    """What it says of a target is what ``train`` finds with this rule and learning rate, on the same seed."""
    task = digits_task()
    advice = pl.advise(task, fleet=straggler(), batch_size=8, optimizer=adam, metric="loss", below=1.5, seed=3)
    best = next(each for each in advice.candidates if each.strategy == advice.strategy)
    assert best.learning_rate is not None
    run = pl.train(
        task, strategy=advice.strategy, fleet=straggler(), batch_size=8, seed=3, progress=False,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=best.learning_rate),  # type: ignore[arg-type]
        stop=pl.Stop(updates=2000, metric="loss", below=1.5), every=pl.Every(seconds=0.25),
    )  # fmt: skip
    assert best.reached == pytest.approx(run.history[-1].seconds, abs=0.5)
    assert f"loss below 1.5 after {best.reached:,.4g} s, not " in advice.lines[1]


def test_with_prices_the_cheapest_is_advised() -> None:
    """Samples a second, by hand: three fast workers make 24, all four 26; a fourth that costs as much is left out."""
    dear = pl.advise(fleet=straggler(), batch_size=8, prices=[1.0, 1.0, 1.0, 1.0])
    cheap = pl.advise(fleet=straggler(), batch_size=8, prices=[1.0, 1.0, 1.0, 0.01])
    assert dear.without == (3,)
    assert 3 not in cheap.without
    assert dear.gain >= 1 <= cheap.gain, "cheapest of those that are not slower"
    assert "times the price, the least" in dear.lines[1]
    best = dear.candidates[0]
    assert best.price == pytest.approx(0.75 / (24 / 8), rel=0.02)


def recorded(seconds: dict[int, list[float]]) -> Recorded:
    pieces = {}
    for worker, own in seconds.items():
        began = [sum(own[:place]) for place in range(len(own))]
        pieces[worker] = Pieces(began, own)
    return Recorded(pieces, 0.0, max(sum(own) for own in seconds.values()), 0.0, None, (), ())


def test_draws_keep_what_happens_to_all_workers_together() -> None:
    """In the second half both take twice as long: every draw has the same share of it for both."""
    once = [1.0] * 60 + [2.0] * 30
    times = recorded({0: once, 1: [2 * each for each in once[::2]]})
    for seed in range(5):
        one, two = times.drawn(seed).worker_delays
        assert isinstance(one, Empirical)
        assert isinstance(two, Empirical)
        slow = [sum(each for each in own.values if each == high) for own, high in ((one, 2.0), (two, 4.0))]
        assert slow[0] == pytest.approx(slow[1], abs=0.2 * times.end)
        assert {*one.values} <= {1.0, 2.0}
    assert len({tuple(times.drawn(seed).worker_delays[0].values) for seed in range(5)}) > 1  # type: ignore[attr-defined]


def test_warm_up_is_cut_off_and_drift_is_told() -> None:
    slow_start = [3.0] * 10 + [1.0 + 0.01 * (place % 3) for place in range(190)]
    drifting = [1.0 + 0.01 * place for place in range(200)]
    fleet = pl.SimulatedFleet([Empirical(slow_start, in_order=True), Empirical(drifting, in_order=True)])
    found = recorded_times(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=215.0)))
    assert found.begin >= 20
    assert max(found.pieces[0].seconds) < 1.1
    assert any("Worker 1 drifts" in note for note in found.notes)
    assert not any("Worker 0 drifts" in note for note in found.notes)


def test_too_little_is_refused_with_how_much_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"too short to tell: worker 3 has 4 mini-batches .* record about \d+ s more"):
        recorded_times(pl.simulate(pl.Asynchronous(), straggler(), pl.Stop(seconds=22.0)))
    with pytest.raises(ConfigError, match="of one worker"):
        recorded_times(pl.simulate(pl.Asynchronous(), pl.SimulatedFleet([Constant(1.0)]), pl.Stop(seconds=50.0)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "either fleet= or recording="),
        ({"fleet": pl.SimulatedFleet([Constant(1.0)])}, "one worker waits for nobody"),
        ({"fleet": straggler(), "prices": [1.0, 2.0]}, "2 prices for 4 workers"),
        ({"fleet": straggler(), "budget": 0.0}, "budget=0.0 is not possible"),
        ({"fleet": straggler(), "target": 0.9}, "90.0% accuracy is reached is not known here: give a task"),
        ({"fleet": straggler(), "trials": True}, "trials train: give a task and an optimizer"),
        ({"fleet": straggler(), "prices": [1.0, 1.0, 1.0, -1.0]}, "numbers of at least 0"),
        ({"fleet": pl.ProcessFleet(2)}, "measured at work: give a task"),
    ],
)
def test_what_cannot_be_answered_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pl.advise(**given)  # type: ignore[arg-type]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_the_command_answers_in_three_lines_and_tries(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(FILE)
    options = ["--price", "0-2=1.5,3=0.5", "--budget", "2h", "--try", "400s", "--json", "a.json", "--explain"]
    assert main(["advise", "a.toml", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(Path("a.json").read_text())
    assert lines[0].startswith("Do this: ")
    assert found["lines"][1].startswith("Expected gain: ")
    assert "times the price" in found["lines"][1]
    assert "What would change my mind: if worker 3 were less than" in "\n".join(lines)
    assert found["gain"] > 2
    assert [abs(each["error"]) < 0.15 for each in found["tried"]] == [True, True]
    assert {"exact", "simulation"} <= {each["source"] for each in found["candidates"]}


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(FILE)
    for options, said in (
        (["--price", "0-2=1"], "--price names no price of worker 3"),
        (["--price", "0-4=1"], "worker 4 is none of the 4 workers"),
        (["--price", "cheap"], "'cheap' names no price"),
        (["--to", "accuracy=0.9"], "is no target: write accuracy>=0.9"),
        (["--to", "accuracy>=0.9", "--no-trials"], "is reached is not known here"),
        (["--to", "loss<=-1"], "no candidate reaches loss below -1 in"),
        (["--to", "perplexity<=2"], "perplexity"),
        (["--budget", "2 weeks"], "is no time: write 90s, 30m or 2h"),
        (["--try", "0.1s"], "too short to measure"),
    ):
        assert said in refused(["advise", "a.toml", *options], capsys)


def test_a_run_tells_when_a_target_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(FILE.replace("updates = 10", "updates = 40"))
    assert main(["train", "a.toml", "--directory", "run", "--no-check-lr"]) == 0
    capsys.readouterr()
    assert main(["advise", "run", "--to", "accuracy>=0.2", "--json", "a.json"]) == 0
    assert "20.0% accuracy after" in json.loads(Path("a.json").read_text())["lines"][1]
    capsys.readouterr()
    said = refused(["advise", "run", "--to", "accuracy>=0.999", "--no-trials"], capsys)
    assert "no candidate can be said to reach 99.9% accuracy" in said


def write_recording(
    change: Callable[[int, dict[str, object], list[list[object]]], object] = lambda *_: None, workers: int = 4
) -> None:
    """Three workers compute 0.125 s and wait for the fourth, which computes 0.5 s; ``change`` spoils it."""
    Path("mine").mkdir(exist_ok=True)
    for worker in range(workers):
        about: dict[str, object] = {"paceline_recording": 1, "worker": worker, "workers": workers}
        about |= {"host": "h", "clock": "c", "opened": 0.0, "wall": 0.0}
        waits = 0.0 if worker == 3 else 0.375
        steps: list[list[object]] = [[0.5 * step, 0.5 * step + 0.5, 16, waits, 0.5 * step + 0.5] for step in range(30)]
        change(worker, about, steps)
        lines = [json.dumps(line) + "\n" for line in (about, *steps, ["closed"])]
        Path(f"mine/worker-{worker}.jsonl").write_text("".join(lines))


def test_a_recording_of_another_loop_is_advised_on_by_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known of the loss."""
    write_recording()
    assert main(["advise", "mine", "--explain"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Nothing is known of the loss" in out
    advice = pl.advise(recording="mine")
    assert advice.learning_rate is None
    assert 2.5 < advice.gain < 3.5  # at most 3.25: three workers four times in 0.5 s, and one once


def pause(worker: int, about: dict[str, object], steps: list[list[object]]) -> None:
    """Everybody stops for a quarter of an hour after 20 steps."""
    for step in steps[20:]:
        step[0], step[1], step[4] = (900.0 + float(str(each)) for each in (step[0], step[1], step[4]))


def too_fast(worker: int, about: dict[str, object], steps: list[list[object]]) -> None:
    """The clock of worker 3's machine gains two hundredths."""
    if worker == 3:
        about |= {"host": "other", "clock": "d"}
        for step in steps:
            step[0], step[1], step[4] = (1.02 * float(str(each)) for each in (step[0], step[1], step[4]))


def other_steps(worker: int, about: dict[str, object], steps: list[list[object]]) -> None:
    about["opened"] = 40.0 if worker == 2 else 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda worker, about, steps: steps.__delitem__(slice(7, None)), "too short to tell: worker 0 has 5 mini-batc"),
        (pause, "the recording has a gap: at 9"),
        (lambda worker, about, steps: about.update(paceline_recording=7), "has format 7; this version reads 1"),
        (too_fast, "cannot be trusted: the clock of other (worker 3) gains 2.0% on that of h"),
        (other_steps, "cannot be trusted: Steps of worker 2 end 40 s after those of worker 0"),
    ],
)
def test_a_recording_that_tells_too_little_is_refused_in_one_line(
    change: Callable[[int, dict[str, object], list[list[object]]], object], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_recording(change)
    assert said in refused(["advise", "mine"], capsys)


def test_a_recording_of_one_worker_or_without_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(workers=1)
    assert "of one worker, who waits for nobody" in refused(["advise", "mine"], capsys)
    write_recording()
    Path("mine/worker-2.jsonl").unlink()
    assert "lacks the recording of worker 2" in refused(["advise", "mine"], capsys)


def test_four_processes_of_which_one_is_slowed(capsys: pytest.CaptureFixture[str]) -> None:
    """Profile, advice and table in one; the slow worker takes at least ten times as long, so nobody waits for it."""
    Path("p.toml").write_text(SLOWED)
    assert main(["advise", "p.toml", "--seconds", "6", "--json", "p.json", "--explain"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    found = json.loads(Path("p.json").read_text())
    assert found["strategy"] != "ssgd"
    assert found["gain"] > 1.5
    assert found["interval"][0] <= found["gain"] <= found["interval"][1]
    assert "Warm-up: the first" in out
    assert math.isfinite(found["learning_rate"])


@pytest.mark.parametrize("option", [["--to", "accuracy>=2"], ["--to", "accuracy>=-1"], ["--try", "9" * 400 + "h"]])
def test_what_can_never_be_is_refused_before_anything_is_computed(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(FILE)
    monkeypatch.setattr("paceline.prediction.advise.question_of", lambda *given, **named: pytest.fail("computed"))
    assert main(["advise", "tiny.toml", *option]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert "is no accuracy: between 0 and 1" in line or "is no time: write 90s, 30m or 2h" in line
