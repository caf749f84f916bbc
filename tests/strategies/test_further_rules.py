"""What each rule promises, in the words of its docstring: weights, ages, counts, and whose data the model learns."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
import torch

import paceline as pl
from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.messages import Arrived, Joined, Left, Reported, Start, Step, Ticket
from paceline.delays import Constant, LogNormal, ShiftedExponential
from paceline.strategies.catalogue import STRATEGIES
from paceline.strategies.names import choice_of, parse_strategy
from paceline.strategies.traits import weight_sum
from paceline.testing import Rehearsal
from paceline.trace.measure import measure
from paceline.trace.reading import Trace
from support.quadratic import path, quadratic

UNEQUAL = pl.SimulatedFleet([LogNormal(1.0, 0.1)] * 4 + [LogNormal(2.0, 0.1)] * 4 + [LogNormal(3.0, 0.1)] * 8)
RANDOM = pl.SimulatedFleet(ShiftedExponential(0.05, 0.5), workers=6)


def steps(trace: Trace) -> list[Step]:
    return [fact for fact in trace if isinstance(fact, Step)]


def ages(trace: Trace) -> list[list[int]]:
    return [[version - ticket.version for ticket in step.weights] for version, step in enumerate(steps(trace))]


@pytest.mark.parametrize("ties", ["index", "reverse", "batch"])
@pytest.mark.parametrize("rule", [pl.BoundedStaleness(10**9), pl.Buffered(1), pl.Ringmaster(10**9)], ids=repr)
def test_without_a_limit_a_rule_is_asynchronous(rule: Strategy, ties: str) -> None:
    fleet = pl.SimulatedFleet([Constant(1.0)] * 3 + [Constant(2.0), LogNormal(1.5, 0.3)], ties=ties)  # type: ignore[arg-type]
    expected = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(updates=200))
    assert [*pl.simulate(rule, fleet, pl.Stop(updates=200)).lines()] == [*expected.lines()]


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_under_bounded_staleness_nobody_gets_further_ahead_than_the_slack(slack: int) -> None:
    counts: Counter[int] = Counter(range(6))
    begun: Counter[int] = Counter()
    furthest = 0
    for fact in pl.simulate(pl.BoundedStaleness(slack), RANDOM, pl.Stop(updates=2000)):
        if isinstance(fact, Start):
            worker = fact.ticket.worker
            assert begun[worker] <= min(counts[each] - 1 for each in range(6)) + slack
            begun[worker] += 1
        elif isinstance(fact, Step):
            (ticket,) = fact.weights
            counts[ticket.worker] += 1
            furthest = max(furthest, max(counts.values()) - min(counts.values()))
    assert furthest == slack + 1


def test_a_joiner_does_not_have_to_catch_up() -> None:
    fleet = pl.SimulatedFleet(Constant(1.0), workers=3, changes=[Joined(at=50.0, worker=2)])
    begun = [
        fact for fact in pl.simulate(pl.BoundedStaleness(1), fleet, pl.Stop(seconds=60)) if isinstance(fact, Start)
    ]
    assert Counter(start.ticket.worker for start in begun) == {0: 61, 1: 61, 2: 11}


@pytest.mark.parametrize("size", [2, 8, 40])
def test_a_buffer_has_the_gradients_of_asynchronous_and_their_age_divided_by_its_size(size: int) -> None:
    rate = sum(1 / (median * math.exp(0.1**2 / 2)) for median in UNEQUAL.medians)
    trace = pl.simulate(pl.Buffered(size), UNEQUAL, pl.Stop(seconds=400))
    measures = measure(trace)
    assert sum(worker.contributions for worker in measures.workers) / 400 == pytest.approx(rate, rel=0.02)
    assert measures.updates / 400 == pytest.approx(rate / size, rel=0.02)
    assert measures.mean_staleness == pytest.approx(15 / size, rel=0.05, abs=0.02)
    assert measures.wasted == measures.idle == 0
    assert all(sum(step.weights.values()) == 1 and len(step.weights) == size for step in steps(trace))


def test_staleness_aware_divides_each_weight_by_the_age() -> None:
    trace = pl.simulate(pl.StalenessAware(3), RANDOM, pl.Stop(updates=300))
    for version, step in enumerate(steps(trace)):
        for ticket, weight in step.weights.items():
            assert weight == Fraction(1, 3 * max(1, version - ticket.version))


def test_delay_adaptive_weighs_what_is_older_than_the_workers_are_many_by_its_age() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0)] * 3 + [Constant(9.5)])
    trace = pl.simulate(pl.DelayAdaptive(), fleet, pl.Stop(updates=300))
    for version, step in enumerate(steps(trace)):
        ((ticket, weight),) = step.weights.items()
        age = version - ticket.version
        assert weight == (1 if age <= 4 else Fraction(4, age))
    assert max(max(each) for each in ages(trace)) > 20


@pytest.mark.parametrize("stop", [True, False])
def test_ringmaster_uses_nothing_as_old_as_the_threshold_and_computes_nothing_that_old(stop: bool) -> None:
    trace = pl.simulate(pl.Ringmaster(5, stop=stop), UNEQUAL, pl.Stop(updates=500))
    used = [age for own in ages(trace) for age in own]
    assert max(used) == 4
    updates, oldest = 0, 0
    running: dict[int, Ticket] = {}
    for fact in trace:
        if isinstance(fact, Start):
            running[fact.ticket.worker] = fact.ticket
        elif isinstance(fact, Arrived):
            oldest = max(oldest, updates - running.pop(fact.ticket.worker).version)
        updates += isinstance(fact, Step)
    assert (oldest < 5) == stop


def test_rennala_uses_only_what_was_computed_at_the_present_weights() -> None:
    trace = pl.simulate(pl.Rennala(32), UNEQUAL, pl.Stop(updates=100))
    assert {age for own in ages(trace) for age in own} == {0}
    assert all([*step.weights.values()] == [Fraction(1, 32)] * 32 for step in steps(trace))
    assert any(max(Counter(ticket.worker for ticket in step.weights).values()) > 1 for step in steps(trace))


@pytest.mark.parametrize("batch", [1, 16, 48])
def test_malenia_counts_all_workers_alike_and_steps_as_soon_as_it_may(batch: int) -> None:
    """Against its condition, recounted from scratch after each arrival."""
    handed_in: Counter[int] = Counter()
    number = UNEQUAL.workers
    version = 0
    trace = pl.simulate(pl.Malenia(batch), UNEQUAL, pl.Stop(updates=40))
    for fact in trace:
        if isinstance(fact, Arrived) and fact.ticket.version == version:
            may = len(handed_in) == number and sum(1 / n for n in handed_in.values()) / number <= number / batch + 1e-9
            assert not may, "it held before this arrival"
            handed_in[fact.ticket.worker] += 1
        elif isinstance(fact, Step):
            of_worker: defaultdict[int, Fraction] = defaultdict(Fraction)
            for ticket, weight in fact.weights.items():
                of_worker[ticket.worker] += weight
                assert weight == Fraction(1, number * handed_in[ticket.worker])
            assert of_worker == dict.fromkeys(range(number), Fraction(1, number))
            handed_in.clear()
            version += 1


def test_rescaled_lets_every_worker_count_alike_to_the_last_update() -> None:
    """The weights of a worker add up to the number of updates by then, over the workers: exactly."""
    trace = pl.simulate(pl.Rescaled(), UNEQUAL, pl.Stop(updates=2000))
    sums: defaultdict[int, Fraction] = defaultdict(Fraction)
    for version, step in enumerate(steps(trace)):
        ((ticket, weight),) = step.weights.items()
        sums[ticket.worker] += weight
        assert sums[ticket.worker] == Fraction(version + 1, 16)
    assert float(sum(sums.values())) / 2000 == pytest.approx(1, rel=0.01)


def test_newest_of_each_steps_along_the_mean_of_all() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(1.7), Constant(3.1)])
    newest: dict[int, Ticket] = {}
    for fact in pl.simulate(pl.NewestOfEach(), fleet, pl.Stop(updates=50)):
        if isinstance(fact, Arrived):
            newest[fact.ticket.worker] = fact.ticket
        elif isinstance(fact, Step):
            assert fact.weights == dict.fromkeys(newest.values(), Fraction(1, len(newest)))
            assert {*fact.keep} == {*newest.values()}


def test_the_newest_of_a_worker_that_left_is_used_once_and_not_kept() -> None:
    coordinator = Coordinator(pl.NewestOfEach())
    started = coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    stays, leaves = (each.ticket for each in started if isinstance(each, Start))
    first, *_ = coordinator.receive(Arrived(1.0, stays, 1))
    assert first == Step({stays: Fraction(1)}, (stays,))
    last, *_ = coordinator.receive(Arrived(2.0, leaves, 1), Left(2.0, leaves.worker))
    assert last == Step({stays: Fraction(1, 2), leaves: Fraction(1, 2)}, (stays,))


def test_anytime_ends_rounds_by_the_clock_and_weighs_by_what_was_done() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(4.0), Constant(16.0)], recall="abandon")
    trace = pl.simulate(pl.Anytime(seconds=3.0, blocks=8), fleet, pl.Stop(updates=5))
    done = {fact.ticket: fact.done for fact in trace if isinstance(fact, Arrived)}
    for step in steps(trace):
        units = {ticket.worker: done[ticket] for ticket in step.weights}
        assert units == {0: 8, 1: 6, 2: 1}
        assert {ticket.worker: w for ticket, w in step.weights.items()} == {
            0: Fraction(8, 15), 1: Fraction(6, 15), 2: Fraction(1, 15),
        }  # fmt: skip
    assert measure(trace).seconds == 15.0


def test_quorum_grace_waits_for_the_window_and_loses_nothing() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(1.25), Constant(1.6), Constant(4.0)])
    trace = pl.simulate(pl.QuorumGrace(quorum=2, grace=0.5), fleet, pl.Stop(updates=6))
    times, now = [], 0.0
    for fact in trace:
        now = fact.at if isinstance(fact, Arrived | Joined) or hasattr(fact, "at") else now
        if isinstance(fact, Step):
            times.append((round(now, 2), sorted(ticket.worker for ticket in fact.weights)))
    assert times[0] == (1.75, [0, 1, 2])  # the second at 1.25, and half a second for the third
    used = Counter(ticket for step in steps(trace) for ticket in step.weights)
    assert max(used.values()) == 1
    assert any(3 in workers for _, workers in times)
    assert all(sum(step.weights.values()) == 1 for step in steps(trace))


def test_adaptive_quorum_rises_with_the_balance_and_never_falls() -> None:
    rehearsal = Rehearsal(pl.AdaptiveQuorum(quorum=1, step=2, patience=2, burn_in=3, largest=4), 5)
    rehearsal._asked_for = ()  # told by hand
    told = rehearsal.coordinator
    told.receive(*(Joined(0.0, worker) for worker in range(5)))
    quorums = []
    for inner in [None, -1, -1, -1, -1, -1, 1, 1, 1, -1, -1, -1, -1, -1, -1]:
        told.receive(Reported(0.0, {} if inner is None else {"inner": float(inner)}))
        quorums.append(int(told.ledger.memory.get("quorum", 1)))
    #  of the second to the fourth report the balance is 3 > 2 at the fourth; then it begins anew
    assert quorums == [1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4]


def test_replicated_uses_the_first_answer_of_each_group_and_stops_the_others() -> None:
    delays = [Constant(1.0), Constant(2.0), Constant(3.0), Constant(1.5)]
    fleet = pl.SimulatedFleet(delays, changes=[Left(at=10.2, worker=0)])
    trace = pl.simulate(pl.Replicated([[0, 1], [2, 3]]), fleet, pl.Stop(updates=12))
    used = [sorted(ticket.worker for ticket in step.weights) for step in steps(trace)]
    assert used == [[0, 3]] * 7 + [[1, 3]] * 5
    assert all([*step.weights.values()] == [Fraction(1, 2)] * 2 for step in steps(trace))


MINIMA: Mapping[str, tuple[Callable[[], Strategy], float]] = {
    "ASGD": (pl.Asynchronous, 4.91),
    "Rennala": (lambda: pl.Rennala(10), 4.08),
    "K-SGD": (lambda: pl.FastestK(7), 3.67),
    "Rescaled": (pl.Rescaled, 5.6),
    "Malenia": (lambda: pl.Malenia(14), 5.6),
    "NewestOfEach": (pl.NewestOfEach, 5.6),
    "QuorumGrace": (lambda: pl.QuorumGrace(7, 1.0), 5.6),
    "QuorumGrace, a short window": (lambda: pl.QuorumGrace(7, 0.5), 5.25),
}


@pytest.mark.parametrize("name", MINIMA)
def test_whose_data_a_rule_learns(name: str) -> None:
    """The quadratic of docs/strategies.md, whose last three workers are slow: its minimum is 5.6."""
    make, expected = MINIMA[name]
    task = quadratic(list(range(10)), a=torch.linspace(0.5, 2, 10).tolist())
    fleet = pl.SimulatedFleet([Constant(1.0)] * 7 + [Constant(2.0)] * 3)
    found = path(task, make(), fleet, 700, lr=0.02)
    assert sum(found[-200:]) / 200 == pytest.approx(expected, abs=0.02)


def quorum_grace_by_hand(quorum: int, grace: float, durations: list[float], updates: int, lr: float) -> list[float]:
    """The waiting of QuorumGrace written down plainly, for gradients of the quadratic and constant durations."""
    curvature, minimum = torch.linspace(0.5, 2, 10, dtype=torch.float64).tolist(), range(10)
    x, found, made = 0.0, list[float](), 0
    work = {worker: (seconds, x, made) for worker, seconds in enumerate(durations)}  # when done, begun at, with which x
    held: list[tuple[int, float]] = []
    closes = math.inf
    while made < updates:
        now = min(min((done for done, _, _ in work.values()), default=math.inf), closes)
        for worker in sorted(worker for worker, (done, _, _) in work.items() if done == now):
            _, began_with, round_of_it = work.pop(worker)
            held.append((worker, began_with))
            if round_of_it < made:  # late: it takes part in the current round at once
                work[worker] = (now + durations[worker], x, made)
            if len(held) >= quorum and closes == math.inf:
                closes = now + grace
        if held and (now >= closes or not work):
            x -= lr * sum(curvature[worker] * (began - minimum[worker]) for worker, began in held) / len(held)
            found.append(x)
            made, closes, held = made + 1, math.inf, []
            for worker, seconds in enumerate(durations):
                if worker not in work:
                    work[worker] = (now + seconds, x, made)
    return found


@pytest.mark.parametrize("grace", [0.3, 0.57, 1.1])
def test_quorum_grace_is_what_a_plain_loop_does(grace: float) -> None:
    """A late worker counts once for a piece that took two rounds: so a short window does not reach 5.6."""
    durations = [1.0] * 7 + [2.03] * 3  # nobody hands in at the moment at which a window closes
    task = quadratic(list(range(10)), a=torch.linspace(0.5, 2, 10).tolist())
    found = path(
        task, pl.QuorumGrace(7, grace), pl.SimulatedFleet([Constant(each) for each in durations]), 150, lr=0.02
    )
    expected = quorum_grace_by_hand(7, grace, durations, 150, 0.02)
    assert found[1:] == pytest.approx(expected, abs=1e-4)


RANGES = [
    ("bounded-staleness:slack=-1", "at least 0 (nearest slack=0)"),
    ("buffered:size=0", "at least 1 (nearest size=1)"),
    ("staleness-aware:size=0", "at least 1 (nearest size=1)"),
    ("ringmaster:threshold=0", "at least 1 (nearest threshold=1)"),
    ("rennala:batch=0", "at least 1 (nearest batch=1)"),
    ("malenia:batch=-3", "at least 1 (nearest batch=1)"),
    ("anytime:seconds=0", "more than 0 and finite"),
    ("anytime:seconds=1,blocks=0", "at least 1 (nearest blocks=1)"),
    ("quorum-grace:quorum=2,grace=-1", "at least 0 and finite (nearest 0)"),
    ("adaptive-quorum:quorum=0", "at least 1 (nearest quorum=1)"),
    ("adaptive-quorum:quorum=3,largest=2", "at least 3"),
    (
        "replicated:groups=0-1/2-4",
        "groups of 2 and of 3 workers would not be equally safe: give all groups the same size",
    ),
    ("gsgd:groups=0-1/2-3,inside=adaptive-quorum", "a part of the fleet makes only some of them"),
    ("gsgd:groups=0-1/2-3,inside=replicated:groups=0-1/2-3", "name workers of the whole fleet"),
    ("unequal:total=16,inside=buffered:size=2", "choose Synchronous, FastestK or LiveCompensation"),
    ("ma:every=2,waits=rennala:batch=3", "several models that began with the same one"),
]


@pytest.mark.parametrize(("text", "said"), RANGES)
def test_what_does_not_fit_is_refused_with_the_nearest_choice(text: str, said: str) -> None:
    with pytest.raises(pl.ConfigError) as refused:
        parse_strategy(text).strategy([1.0] * 4)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quorum-grace:quorum=9,grace=1", "a quorum of 9 does not fit 4 workers: choose 1 to 4 (nearest 4)"),
        ("replicated:groups=0-1", "groups miss workers 2, 3"),
        ("adaptive-quorum", "AdaptiveQuorum goes by numbers that learning tells after each update (inner)"),
        ("anytime:seconds=1,blocks=3", "3 blocks do not divide a batch of 8 evenly"),
    ],
)
def test_what_does_not_fit_a_simulation_is_refused(text: str, said: str) -> None:
    with pytest.raises(pl.ConfigError) as refused:
        pl.simulate(text, pl.SimulatedFleet(Constant(1.0), workers=4), pl.Stop(updates=1), batch_size=8)
    assert said in str(refused.value)


def test_every_rule_has_a_name_that_leads_back_to_it() -> None:
    for named in STRATEGIES:
        choice = parse_strategy(named.example)
        strategy = choice.strategy([1.0] * 16)
        again = choice_of(strategy)
        assert again is not None
        assert again.strategy([1.0] * 16) == strategy


def test_rules_whose_weights_do_not_add_up_to_one_say_so() -> None:
    """And the others keep to it, in a run on unequal workers."""
    said = {named.names[0] for named in STRATEGIES if weight_sum(named.kind) != "1"}
    assert said == {"staleness-aware", "delay-adaptive", "rescaled", "mixed-models", "elastic-averaging"}
    for text in ("buffered:size=3", "ringmaster:threshold=3", "rennala:batch=5", "malenia:batch=9", "newest-of-each",
                 "quorum-grace:quorum=2,grace=0.3", "anytime:seconds=0.4", "bounded-staleness:slack=1"):  # fmt: skip
        trace = pl.simulate(text, RANDOM, pl.Stop(updates=60))
        assert {sum(step.weights.values()) for step in steps(trace)} == {1}, text


def test_first_run_of_the_rules() -> None:
    """Updates and gradients per unit of time, and mean age, on 4 workers of 1 unit, 4 of 2 and 8 of 3."""
    expected = {
        "ssgd": (0.29, 4.6, 0.0), "gsgd:groups=0-3/4-7/8-15": (1.64, 7.7, 2.0), "asgd": (8.61, 8.6, 15.0),
        "buffered:size=8": (1.07, 8.6, 1.9), "ringmaster:threshold=16": (6.3, 6.3, 7.7),
        "rennala:batch=32": (0.18, 5.9, 0.0),
        "bounded-staleness:slack=3": (5.3, 5.3, 11.0), "quorum-grace:quorum=8,grace=0.5": (0.63, 7.15, 1.06),
    }  # fmt: skip
    for text, (updates, gradients, age) in expected.items():
        measures = measure(pl.simulate(text, UNEQUAL, pl.Stop(seconds=300)))
        used = sum(worker.contributions for worker in measures.workers)
        assert measures.updates / 300 == pytest.approx(updates, rel=0.04), text
        assert used / 300 == pytest.approx(gradients, rel=0.04), text
        assert measures.mean_staleness == pytest.approx(age, rel=0.05), text
