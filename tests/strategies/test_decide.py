"""What each rule decides, compared by value, and the exact weights that come of it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings

from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Joined,
    Left,
    Recall,
    Start,
    Step,
    Ticket,
    Within,
    Work,
    gradient,
)
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped, groups_by_speed
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.synchronous import Synchronous
from paceline.testing import Moment, Move, Rehearsal, scripts
from support.silent import Silent

ONE, HALF, THIRD = Fraction(1), Fraction(1, 2), Fraction(1, 3)


class Scene:
    """A ledger put together by hand. The n-th ticket is ``scene[n]``."""

    def __init__(self, workers: int) -> None:
        self.coordinator = Coordinator(Silent())
        self.given: list[Ticket] = []
        self.coordinator.receive(*(Joined(0.0, worker) for worker in range(workers)))

    def __getitem__(self, number: int) -> Ticket:
        return self.given[number]

    @property
    def ledger(self) -> Ledger:
        return self.coordinator.ledger

    def give(self, *workers: int, work: Work = gradient()) -> "Scene":
        started = self.coordinator.carry_out([Assign(worker, work) for worker in workers])
        self.given += [start.ticket for start in started if isinstance(start, Start)]
        return self

    def arrive(self, *numbers: int) -> "Scene":
        for number in numbers:
            self.coordinator.receive(Arrived(self.ledger.now + 1, self[number], self[number].work.units))
        return self

    def step(self, *numbers: int, keep: Sequence[int] = ()) -> "Scene":
        weights = dict.fromkeys((self[number] for number in numbers), Fraction(1, len(numbers)))
        self.coordinator.carry_out([Step(weights, keep=[self[number] for number in keep])])
        return self


RULES: list[Strategy] = [
    Synchronous(),
    Asynchronous(),
    FastestK(2),
    FastestK(2, stop_late=False),
    LiveCompensation(2, 1),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_rule_gives_work_to_the_idle(rule: Strategy) -> None:
    assert rule.decide(Scene(3).ledger) == [Assign(0), Assign(1), Assign(2)]
    assert rule.decide(Scene(3).give(1).ledger) == [Assign(0), Assign(2)]
    assert rule.decide(Scene(0).ledger) == []


class TestSynchronous:
    def test_waits_for_the_slowest(self) -> None:
        assert Synchronous().decide(Scene(2).give(0, 1).arrive(0).ledger) == []

    def test_steps_on_the_mean_of_all(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(2, 0, 1)
        assert Synchronous().decide(scene.ledger) == [Step({scene[0]: THIRD, scene[1]: THIRD, scene[2]: THIRD})]

    def test_waits_for_whoever_joined(self) -> None:
        scene = Scene(1).give(0).arrive(0)
        scene.coordinator.receive(Joined(2.0, 1))
        assert Synchronous().decide(scene.ledger) == [Assign(1)]
        assert Synchronous().decide(scene.give(1).ledger) == []


class TestAsynchronous:
    def test_steps_on_each_alone_and_gives_its_worker_more(self) -> None:
        scene = Scene(2).give(0, 1).arrive(1)
        assert Asynchronous().decide(scene.ledger) == [Step({scene[1]: ONE}), Assign(1)]

    def test_those_that_arrive_together_are_used_in_the_order_of_arrival(self) -> None:
        scene = Scene(3).give(0, 1).arrive(1, 0)
        assert Asynchronous().decide(scene.ledger) == [
            Step({scene[1]: ONE}), Step({scene[0]: ONE}), Assign(2), Assign(1), Assign(0),
        ]  # fmt: skip

    @pytest.mark.parametrize("order", [(1, 2), (2, 1)])
    def test_whether_given_out_before_or_after_the_last_update(self, order: tuple[int, int]) -> None:
        scene = Scene(2).give(0, 1).arrive(0).step(0).give(0).arrive(*order)
        assert {*scene.ledger.late} == {scene[1]}
        assert {*scene.ledger.fresh} == {scene[2]}
        first, second = (scene[number] for number in order)
        assert Asynchronous().decide(scene.ledger) == [
            Step({first: ONE}), Step({second: ONE}), Assign(first.worker), Assign(second.worker),
        ]  # fmt: skip

    def test_gives_nothing_to_whoever_left_or_works_again(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(0, 1, 2).step(2).give(1)
        scene.coordinator.receive(Left(9.0, 0))
        assert Asynchronous().decide(scene.ledger) == [Step({scene[0]: ONE}), Step({scene[1]: ONE}), Assign(2)]


class TestFastestK:
    def test_steps_on_the_first_quorum(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(2, 0)
        assert FastestK(quorum=2).decide(scene.ledger) == [Step({scene[2]: HALF, scene[0]: HALF})]

    def test_takes_no_more_than_the_quorum(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(2, 0, 1)
        assert FastestK(quorum=2).decide(scene.ledger) == [Step({scene[2]: HALF, scene[0]: HALF})]
        assert FastestK(quorum=2).decide(scene.step(2, 0).ledger) == [Drop(scene[1])]

    def test_stops_late_workers(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(0, 1).step(0, 1)
        assert FastestK(quorum=2).decide(scene.ledger) == [Drop(scene[2])]

    def test_or_lets_them_finish_and_drops_what_they_hand_in(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(0, 1).step(0, 1)
        rule = FastestK(quorum=2, stop_late=False)
        assert rule.decide(scene.ledger) == [Assign(0), Assign(1)]
        assert rule.decide(scene.give(0, 1).arrive(2).ledger) == [Drop(scene[2])]

    def test_takes_all_when_they_are_fewer_than_the_quorum(self) -> None:
        scene = Scene(2).give(0, 1).arrive(0)
        assert FastestK(quorum=3).decide(scene.ledger) == []
        assert FastestK(quorum=3).decide(scene.arrive(1).ledger) == [Step({scene[0]: HALF, scene[1]: HALF})]

    def test_waits_for_everybody_while_it_warms_up(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(0, 1)
        assert FastestK(quorum=1, warm_up=1).decide(scene.ledger) == []
        scene.arrive(2)
        assert FastestK(quorum=1, warm_up=1).decide(scene.ledger) == [Step({scene[i]: THIRD for i in range(3)})]


class TestLiveCompensation:
    def scene(self, blocks: int = 4) -> Scene:
        """Three workers of which the first two have made a step; the third is behind."""
        return Scene(3).give(0, 1, 2, work=gradient(blocks)).arrive(0, 1).step(0, 1, keep=(0, 1))

    def test_keeps_the_fastest_while_somebody_is_late(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(0, 1)
        expected = Step({scene[0]: HALF, scene[1]: HALF}, keep=(scene[0], scene[1]))
        assert LiveCompensation(quorum=2).decide(scene.ledger) == [expected]

    def test_keeps_nothing_when_nobody_is_late(self) -> None:
        scene = Scene(2).give(0, 1).arrive(0, 1)
        assert LiveCompensation(quorum=2).decide(scene.ledger) == [Step({scene[0]: HALF, scene[1]: HALF})]

    def test_recalls_the_late_ones_once(self) -> None:
        scene = self.scene()
        rule = LiveCompensation(quorum=2, blocks=4)
        next_round: list[Decision] = [Assign(0, gradient(4)), Assign(1, gradient(4))]
        assert rule.decide(scene.ledger) == [Recall(scene[2]), *next_round]
        scene.coordinator.carry_out([Recall(scene[2])])
        assert rule.decide(scene.ledger) == next_round

    def test_without_recall_it_lets_them_finish_first(self) -> None:
        scene = self.scene()
        rule = LiveCompensation(quorum=2, blocks=4, recall=False)
        assert rule.decide(scene.ledger) == [Assign(0, gradient(4)), Assign(1, gradient(4))]
        scene.give(0, 1, work=gradient(4)).arrive(3, 4)
        assert rule.decide(scene.ledger) == []

    @pytest.mark.parametrize(
        ("scale", "done", "late", "back"),
        [
            (True, 4, THIRD, Fraction(-1, 6)),
            (True, 1, Fraction(1, 12), Fraction(-1, 6)),
            (True, 0, None, Fraction(-1, 6)),
            (False, 4, THIRD, Fraction(-1, 6)),
            (False, 1, THIRD, Fraction(-1, 6)),
            (False, 0, None, Fraction(0)),  # counts as the mean of the others: nothing to take back
        ],
    )
    def test_adds_the_late_ones_and_takes_back_the_excess(
        self, scale: bool, done: int, late: Fraction | None, back: Fraction
    ) -> None:
        scene = self.scene()
        scene.coordinator.carry_out([Recall(scene[2])])
        scene.coordinator.receive(Arrived(4.0, scene[2], done))
        scene.give(0, 1, 2, work=gradient(4)).arrive(4, 3)
        first = (scene[4], scene[3])
        weights = {scene[4]: HALF, scene[3]: HALF, scene[0]: back, scene[1]: back}
        if late is not None:
            weights[scene[2]] = late
        expected = [*([Drop(scene[2])] if late is None else []), Step(weights, keep=first)]
        assert LiveCompensation(quorum=2, blocks=4, scale=scale).decide(scene.ledger) == expected

    def test_has_nothing_to_make_up_for_when_the_late_one_left(self) -> None:
        scene = self.scene()
        scene.coordinator.receive(Left(3.0, 2))
        scene.give(0, 1, work=gradient(4)).arrive(3, 4)
        assert LiveCompensation(quorum=2, blocks=4).decide(scene.ledger) == [
            Drop(scene[0]),
            Drop(scene[1]),
            Step({scene[3]: HALF, scene[4]: HALF}),
        ]

    def test_waits_for_everybody_while_it_warms_up(self) -> None:
        scene = Scene(3).give(0, 1, 2).arrive(0, 1)
        rule = LiveCompensation(quorum=2, warm_up=1)
        assert rule.decide(scene.ledger) == []
        assert rule.decide(scene.arrive(2).ledger) == [Step({scene[i]: THIRD for i in range(3)})]


class TestGrouped:
    def test_decides_within_each_group(self) -> None:
        assert Grouped([[0, 2], [1]]).decide(Scene(3).ledger) == [
            Within(0, Assign(0)),
            Within(0, Assign(2)),
            Within(1, Assign(1)),
        ]

    def test_groups_of_groups_decide_within_both(self) -> None:
        rule = Grouped([[0, 1], [2]], inside=Grouped([[0], [1, 2]]))
        assert rule.decide(Scene(3).ledger) == [
            Within(0, Within(0, Assign(0))),
            Within(0, Within(1, Assign(1))),
            Within(1, Within(1, Assign(2))),
        ]

    def test_equals_another_of_the_same_groups(self) -> None:
        assert Grouped([[0, 1], [2]]) == Grouped(((0, 1), (2,)))
        assert hash(Grouped([[0, 1], [2]])) == hash(Grouped(((0, 1), (2,))))


# Over its life every gradient of live compensation carries the weight 1/N.

GROUPS = [[0, 2, 4], [1, 3]]
EVERYBODY = [[0, 1, 2, 3, 4]]


def total_weights(rehearsal: Rehearsal, members: Sequence[int]) -> list[dict[Ticket, tuple[int, Fraction]]]:
    """For each settled round of the group: ticket -> (units done, all the weight it ever had)."""
    rounds: list[dict[Ticket, tuple[int, Fraction]]] = [{}]
    round_of: dict[Ticket, int] = {}
    weights: dict[Ticket, Fraction] = defaultdict(Fraction)
    for fact in rehearsal.history:
        if isinstance(fact, Start) and fact.ticket.worker in members:
            round_of[fact.ticket] = len(rounds) - 1
        elif isinstance(fact, Arrived) and fact.ticket.worker in members:
            rounds[round_of[fact.ticket]][fact.ticket] = (fact.done, ONE)
        elif isinstance(fact, Drop) and round_of.get(fact.ticket) == len(rounds) - 1:
            del rounds[-1][fact.ticket]  # parts of those who are leaving, where nobody has done all: there is no round
        elif isinstance(fact, Step) and not fact.weights.keys().isdisjoint(round_of):
            rounds.append({})
            for ticket, weight in fact.weights.items():
                weights[ticket] += weight
    return [{t: (done, weights[t]) for t, (done, _) in handed_in.items()} for handed_in in rounds[:-2]]


@pytest.mark.parametrize("groups", [EVERYBODY, GROUPS], ids=["alone", "in groups"])
@pytest.mark.parametrize(
    "rule",
    [
        LiveCompensation(quorum=1, blocks=4),
        LiveCompensation(quorum=2, blocks=4),
        LiveCompensation(quorum=2, blocks=4, warm_up=1),
        LiveCompensation(quorum=3, blocks=2, recall=False),
        LiveCompensation(quorum=2, blocks=4, scale=False),
    ],
    ids=repr,
)
def test_over_its_life_every_gradient_carries_the_weight_one_over_n(
    rule: LiveCompensation, groups: list[list[int]]
) -> None:
    seen: set[int] = set()

    @settings(max_examples=60)
    @given(scripts(workers=5))
    def check(script: list[Moment]) -> None:
        strategy = rule if groups is EVERYBODY else Grouped(groups, inside=rule)
        rehearsal = Rehearsal(strategy, workers=5)
        for moment in script:
            rehearsal.play(moment)
        rehearsal.play_fairly(2)
        for members in groups:
            for handed_in in total_weights(rehearsal, members):
                seen.add(len(handed_in))
                n = len(handed_in)
                missing = sum(not done for done, _ in handed_in.values())
                assert handed_in  # a step is made of something
                for ticket, (done, weight) in handed_in.items():
                    if rule.scale:
                        assert weight == Fraction(done, ticket.work.units) / n
                    elif not missing or not done:
                        assert weight == (Fraction(1, n) if done else 0)
                if not rule.scale:
                    assert sum(weight for _, weight in handed_in.values()) == 1

    check()
    assert seen >= {1, 2, 3}


def test_a_quorum_of_all_is_synchronous() -> None:
    """J1: the same instructions, whatever happens, as long as nobody is added to the quorum."""
    script = [
        Moment(0, [Move("join")] * 4, True),
        *(Moment(1, [Move("arrive", which)]) for which in (3, 0, 1, 0, 2, 2, 0, 0, 1, 1, 0, 0)),
    ]
    histories = []
    for rule in (Synchronous(), FastestK(quorum=4), LiveCompensation(quorum=4, blocks=1)):
        rehearsal = Rehearsal(rule, workers=4)
        for moment in script:
            rehearsal.play(moment)
        histories.append(rehearsal.history)
    assert histories[0] == histories[1] == histories[2]
    assert sum(isinstance(fact, Step) for fact in histories[0]) == 3


def test_one_group_is_synchronous_and_singletons_are_asynchronous() -> None:
    """M1, M2."""

    @given(scripts(workers=4))
    def check(script: list[Moment]) -> None:
        for whole, grouped in (
            (Synchronous(), Grouped([[0, 1, 2, 3]])),
            (Asynchronous(), Grouped([[0], [1], [2], [3]])),
        ):
            first, second = Rehearsal(whole, workers=4), Rehearsal(grouped, workers=4)
            for moment in script:
                one_by_one = moment._replace(
                    at_once=False
                )  # who is first of those at one instant is the fleet's choice
                first.play(one_by_one)
                second.play(one_by_one)
            assert first.history == second.history

    check()


# Refusals


def grouped(groups: Sequence[Sequence[int]]) -> Callable[[], object]:
    return lambda: Grouped(groups)


def checked(rule: Strategy, workers: int = 4, batch_size: int | None = 32) -> Callable[[], object]:
    return lambda: rule.check(workers, batch_size)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (grouped([]), r"groups need at least one worker each: \(\)"),
        (grouped([[0], []]), r"groups need at least one worker each: \(\(0,\), \(\)\)"),
        (grouped([[0, 1], [1, 2]]), "groups overlap: worker 1 named more than once; put each worker in one group"),
        (grouped([[0, 1, 2], [2, 1]]), "groups overlap: workers 1, 2 named more than once"),
        (grouped([[0, 0]]), "groups overlap: worker 0 named more than once"),
        (checked(Grouped([[0, 1], [2]])), "groups miss worker 3: put each of the 4 workers in one group"),
        (checked(Grouped([[0], [3]])), "groups miss workers 1, 2"),
        (checked(Grouped([[0, 1, 2, 3, 9]])), "groups name worker 9: the fleet has workers 0 to 3"),
        (checked(FastestK(quorum=5)), "a quorum of 5 does not fit 4 workers: choose 1 to 4.*nearest 4"),
        (checked(FastestK(quorum=0)), "a quorum of 0 does not fit 4 workers: choose 1 to 4.*nearest 1"),
        (checked(LiveCompensation(quorum=-1)), "a quorum of -1 does not fit 4 workers"),
        (checked(LiveCompensation(quorum=3, blocks=5)), "5 blocks do not divide a batch of 32 evenly: nearest 4"),
        (checked(LiveCompensation(quorum=3, blocks=33)), "33 blocks do not divide a batch of 32 evenly: nearest 32"),
        (checked(LiveCompensation(quorum=3, blocks=0)), "a batch cannot have 0 blocks: at least 1"),
        (
            checked(Grouped([[0, 1, 2], [3]], inside=FastestK(quorum=2))),
            r"in the group \[3\]: a quorum of 2 does not fit 1 workers: choose 1 to 1.*nearest 1",
        ),
        (
            checked(Grouped([[0, 1], [2, 3]], inside=LiveCompensation(quorum=1, blocks=3))),
            r"in the group \[0, 1\]: 3 blocks",
        ),
        (lambda: groups_by_speed([1.0, 2.0], tolerance=-0.1), "a tolerance of -0.1 makes no groups: at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refused()


@pytest.mark.parametrize("rule", [*RULES, LiveCompensation(quorum=4, blocks=8), Grouped([[3, 0], [1, 2]])], ids=repr)
def test_what_fits_is_accepted(rule: Strategy) -> None:
    rule.check(4, 32)
    rule.check(4, None)


@pytest.mark.parametrize(
    ("durations", "tolerance", "groups"),
    [
        ([1.0] * 4 + [2.0] * 4 + [3.0] * 2, 0.25, ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))),
        ([3.0, 1.0, 1.2, 3.1, 1.3], 0.25, ((1, 2), (4,), (0, 3))),  # 1.3 is more than 1.25 times 1.0
        ([1.0, 1.25], 0.25, ((0, 1),)),
        (
            [1.0, 1.2, 1.4, 1.6],
            0.25,
            ((0, 1), (2, 3)),
        ),  # compared with the fastest of the group, not with the one before
        ([2.0, 1.0, 2.0], 0.0, ((1,), (0, 2))),
        ([5.0], 0.25, ((0,),)),
        ([4.0, 2.0, 1.0], 10.0, ((0, 1, 2),)),
    ],
)
def test_groups_by_speed(durations: list[float], tolerance: float, groups: tuple[tuple[int, ...], ...]) -> None:
    assert groups_by_speed(durations, tolerance) == groups
