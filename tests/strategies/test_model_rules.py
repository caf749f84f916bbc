"""Rules under which models are averaged with other weights, or pull each other: what they decide and refuse."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

import paceline as pl
from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.messages import Arrived, Joined, Reported, Start, Step
from paceline.strategies.names import choice_of, parse_strategy
from support.digits import digits_task
from support.local_models import fleet, mlp, sgd

FLEET = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.7), pl.delays.Constant(3.1)])


def updates(strategy: Strategy, count: int = 12, batch_size: Sequence[int] | None = None) -> list[Step]:
    trace = pl.simulate(strategy, FLEET, pl.Stop(updates=count), batch_size=batch_size)
    return [fact for fact in trace if isinstance(fact, Step)]


def test_models_weigh_by_their_samples_times_those_of_a_local_step() -> None:
    """With 4 local steps each, of 2, 4 and 6 samples: 8 * 2, 16 * 4 and 24 * 6."""
    rule = pl.ModelAveraging(4, weights="tokens")
    (step, *_) = updates(rule, 1, batch_size=[2, 4, 6])
    assert [step.weights[ticket] for ticket in sorted(step.weights)] == [Fraction(n, 224) for n in (16, 64, 144)]
    (plain, *_) = updates(pl.ModelAveraging(4), 1, batch_size=[2, 4, 6])
    assert [plain.weights[ticket] for ticket in sorted(plain.weights)] == [Fraction(n, 12) for n in (2, 4, 6)]
    (equal, *_) = updates(rule, 1)
    assert {*equal.weights.values()} == {Fraction(1, 3)}


def test_models_weigh_less_with_age() -> None:
    steps = updates(pl.ModelAveraging(2, pl.Asynchronous(), weights="age"), 30)
    found = {number - ticket.version: w for number, step in enumerate(steps) for ticket, w in step.weights.items()}
    assert found.keys() >= {0, 1, 2, 3}
    assert [found[age] for age in range(4)] == [Fraction(n, 10**6) for n in (1_000_000, 707_107, 577_350, 500_000)]


@pytest.mark.parametrize(
    "rule", [pl.ModelAveraging(2, pl.Asynchronous(), weights="age"), pl.FedAsync(2, 1.0)], ids=repr
)
def test_models_that_arrive_at_one_instant_make_each_other_older(rule: Strategy) -> None:
    coordinator = Coordinator(rule)
    started = coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    tickets = [each.ticket for each in started if isinstance(each, Start)]
    steps = [s for s in coordinator.receive(*(Arrived(1.0, t, 2) for t in tickets)) if isinstance(s, Step)]
    assert [*steps[0].weights.values(), *steps[1].weights.values()] == [1, Fraction(707_107, 10**6)]


def test_a_buffer_takes_several_models_of_one_worker_the_older_the_less() -> None:
    steps = updates(pl.FedBuff(2, 4), 12)
    assert max(len(step.weights) - len({ticket.worker for ticket in step.weights}) for step in steps) > 0
    for number, step in enumerate(steps):
        for ticket, weight in step.weights.items():
            age = number - ticket.version
            assert weight == Fraction(1, 4) * Fraction(round(10**6 / math.sqrt(1 + age)), 10**6)
    assert pl.FedBuff(2, 4).weight_sum == "at most 1"


def test_decoupled_diloco_is_a_composition() -> None:
    rule = pl.DecoupledDiLoCo(4, quorum=2, grace=0.3)
    outer = pl.OuterSGD(0.7, 0.9)
    assert rule == pl.ModelAveraging(4, waits=pl.QuorumGrace(2, 0.3), outer=outer, weights="tokens")
    steps = updates(rule, 12, batch_size=[2, 4, 6])
    late = [step for number, step in enumerate(steps) for ticket in step.weights if ticket.version < number]
    assert late
    assert all(sum(step.weights.values()) == 1 for step in steps)
    (weights,) = {tuple(step.weights.values()) for step in steps[:1]}
    assert [*weights] == [Fraction(1, 5), Fraction(4, 5)]  # 4 * 2 * 2 and 4 * 4 * 4 of 80


@pytest.mark.parametrize("waits", [pl.Synchronous(), pl.Asynchronous()], ids=repr)
def test_local_steps_by_speed_let_all_hand_in_together(waits: Strategy) -> None:
    """Workers of 1, 2 and 4 seconds a mini-batch, the first of which becomes slow after 40 seconds."""
    slower = pl.delays.Empirical([1.0] * 64 + [4.0] * 400, in_order=True)
    fleet = pl.SimulatedFleet([slower, pl.delays.Constant(2.0), pl.delays.Constant(4.0)])
    rule = pl.ModelAveraging(8, waits, by_speed=True)
    starts = [fact.ticket for fact in pl.simulate(rule, fleet, pl.Stop(updates=60)) if isinstance(fact, Start)]
    units = [[ticket.work.units for ticket in starts if ticket.worker == worker] for worker in range(3)]
    assert [each[:3] for each in units] == [[8, 8, 8]] * 3  # nothing is known
    assert units[1][3] == 4
    assert units[2][3] == 2
    assert [each[-1] for each in units] == [4, 8, 4]  # the second is the fastest now


def test_averages_become_more_frequent_as_the_loss_falls() -> None:
    task = digits_task(mlp())
    run = pl.train(
        task, strategy=pl.AdaComm(8, interval=3), fleet=fleet(2), optimizer=sgd(0.5), stop=pl.Stop(updates=14),
        progress=False,
    )  # fmt: skip
    losses = [fact.numbers["loss"] for fact in run.trace if isinstance(fact, Reported)]
    means = [sum(losses[begin : begin + 3]) / 3 for begin in range(0, 12, 3)]
    steps = [{ticket.work.units for ticket in fact.weights} for fact in run.trace if isinstance(fact, Step)]
    expected = [8] * 7  # told after the update, when the next work was given out
    for mean in means[1:]:
        expected += [math.ceil(8 * math.sqrt(mean / means[0]))] * 3
    assert steps == [{each} for each in expected[:14]]
    assert expected[13] < 8
    with pytest.raises(pl.ConfigError, match="AdaComm goes by numbers that learning tells after each update"):
        pl.simulate(pl.AdaComm(8), fleet(2), pl.Stop(updates=3))


@pytest.mark.parametrize(
    ("loss", "first", "steps"), [(0.0, 0.0, 1), (0.5, 0.0, 1), (0.0, 2.0, 1), (0.5, 2.0, 4), (-1.0, 2.0, 1)]
)
def test_local_steps_are_at_least_one_whatever_the_loss(loss: float, first: float, steps: int) -> None:
    assert pl.AdaComm(8).after(loss, first) == steps


def test_an_elasticity_is_for_each_of_those_at_hand() -> None:
    assert {*updates(pl.EASGD(2), 1)[0].weights.values()} == {Fraction(3, 10)}
    assert {*updates(pl.EASGD(2, 0.25), 1)[0].weights.values()} == {Fraction(1, 4)}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("diloco:every=16", pl.DiLoCo(16)),
        ("diloco:every=16,outer_lr=0.5,outer_momentum=0,weights=age,waits=asgd",
         pl.DiLoCo(16, 0.5, 0.0, weights="age", waits=pl.Asynchronous())),
        ("bmuf:every=8", pl.ModelAveraging(8, outer=pl.OuterSGD(1.0, None, nesterov=False))),
        ("bmuf:every=8,outer_momentum=0.875,nesterov=true", pl.BMUF(8, 1.0, 0.875, nesterov=True)),
        ("slowmo:every=8,outer_momentum=0.7,momentum=averaged", pl.SlowMo(8, 1.0, 0.7, momentum="averaged")),
        ("post-local:every=8,warm_up=20", pl.ModelAveraging(8, warm_up=20)),
        ("ma:every=8,weights=tokens,waits=k-sgd:quorum=2", pl.ModelAveraging(8, pl.FastestK(2), weights="tokens")),
        ("diloco:every=8,by_speed=true,waits=asgd", pl.DiLoCo(8, by_speed=True, waits=pl.Asynchronous())),
        ("fedbuff:every=8,size=4", pl.FedBuff(8, 4)),
        ("decoupled-diloco:every=8,quorum=2,grace=0.5", pl.DecoupledDiLoCo(8, 2, 0.5)),
        ("adacomm:every=8,interval=5", pl.AdaComm(8, 5)),
        ("fedasync:every=4,mixing=0.6,decay=0", pl.FedAsync(4, 0.6, 0.0)),
        ("easgd:every=4,elasticity=0.1,waits=ssgd", pl.EASGD(4, 0.1, pl.Synchronous())),
    ],
)  # fmt: skip
def test_the_command_line_has_a_name_for_it(text: str, rule: Strategy) -> None:
    choice = parse_strategy(text)
    assert choice.strategy(()) == rule
    assert parse_strategy(choice.short) == parse_strategy(choice.text) == choice
    assert choice.text.startswith(choice.named.names[0])
    assert choice.short.startswith(choice.named.names[1])
    named = choice_of(rule)
    assert named is not None
    assert named.strategy(()) == rule


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pl.OuterSGD(0.0), r"an outer learning rate of 0.0 is not possible: above 0, such as 0\.7"),
        (lambda: pl.OuterSGD(momentum=1.0), r"an outer momentum of 1.0 .* below 1 \(nearest 0\.99\)"),
        (lambda: pl.DiLoCo(4, outer_momentum=-0.5), r"an outer momentum of -0.5 .* \(nearest 0\)"),
        (lambda: pl.OuterSGD("fast"), "OuterSGD cannot have lr='fast': give a number"),  # type: ignore[arg-type]
        (lambda: pl.ModelAveraging(4, outer=0.7), "outer=0.7 is no outer optimizer: give OuterSGD"),  # type: ignore[arg-type]
        (lambda: pl.ModelAveraging(4, warm_up=-1), "a warm-up of -1 updates is not possible: at least 0"),
        (lambda: pl.ModelAveraging(4, weights="loss"),  # type: ignore[arg-type]
         "weights='loss' are unknown: choose one of waits, tokens, age"),
        (lambda: pl.ModelAveraging(4, pl.Asynchronous(), weights="tokens"), "'tokens' has no effect with Asynchronous"),
        (lambda: pl.ModelAveraging(4, pl.FastestK(2), weights="age"), "weights='age' has no effect with FastestK"),
        (lambda: pl.DiLoCo(4, waits=pl.LiveCompensation(2)), "cannot wait by LiveCompensation"),
        (lambda: pl.ModelAveraging(4, pl.Grouped([[0], [1]]), by_speed=True), "by_speed=True cannot wait by Grouped"),
        (lambda: pl.ModelAveraging(4, steps=8, by_speed=True), "different numbers of local steps, and steps= counts"),
        (lambda: pl.AdaComm(4, interval=0), r"an interval of 0 updates is not possible: at least 1 \(nearest 1\)"),
        (lambda: pl.FedBuff(4, 0), r"Buffered cannot have size=0: at least 1"),
        (lambda: pl.DecoupledDiLoCo(4, 9, 0.5).check(4, 8), r"a quorum of 9 does not fit 4 workers.*nearest 4"),
        (lambda: pl.ModelAveraging(4, pl.Buffered(4), steps=8), "cannot wait by Buffered, which has no common rounds"),
        (lambda: pl.ModelAveraging(4, pl.Rennala(4)), "cannot wait by Rennala"),
        (lambda: pl.FedAsync(0), "FedAsync cannot communicate every 0 steps: at least 1"),
        (lambda: pl.FedAsync(4, 1.5), r"mixing=1.5 is not possible: above 0 and at most 1 \(nearest 1\)"),
        (lambda: pl.FedAsync(4, decay=-1.0), r"decay=-1.0 is not possible: at least 0 \(nearest 0\)"),
        (lambda: pl.FedAsync(4, waits=pl.EASGD(2)), "cannot wait by EASGD, which itself says what is handed in"),
        (lambda: pl.EASGD(4, 1.0), r"elasticity=1.0 is not possible: above 0 and below 1 \(nearest 0.99\)"),
        (lambda: pl.EASGD(4, 0.5, pl.Synchronous()).check(4, 8), "0.5 of 4 workers at once .* at most 0.25, or"),
        (lambda: parse_strategy("ma:every=4,outer=sgd"), "unknown key 'outer'"),
        (lambda: parse_strategy("diloco:outer_lr=0.7"), "every is missing: give a whole number, as in diloco"),
        (lambda: parse_strategy("diloco:every=4,outer_lr=0").strategy(()), "an outer learning rate of 0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_reason(make: Callable[[], object], said: str) -> None:
    with pytest.raises(pl.ConfigError, match=said):
        make()
