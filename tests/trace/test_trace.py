"""A trace is read as it was written; a torn end is passed over, and anything else that is broken is refused."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Halt,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Resize,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
)
from paceline.trace.format import LONGEST_LINE, Computed, Fact, NonFinite
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter

numbers = st.integers(0, 10**6 - 1)
fractions = st.fractions(min_value=-3, max_value=3, max_denominator=10**9)
kinds = st.sampled_from(["gradient", "local_steps", "distilled_steps"])
texts = st.text('ab "\\\n[é', max_size=4)
groups = st.lists(st.lists(numbers, max_size=3).map(tuple), max_size=3).map(tuple)
remembered: st.SearchStrategy[Decision] = st.builds(Remember, texts, st.floats(allow_nan=False))
regrouped: st.SearchStrategy[Decision] = st.builds(Regroup, groups, texts)
resized = st.builds(Resize, st.dictionaries(numbers, st.integers(1, 10**6), max_size=3), texts)
nested = st.recursive(remembered | regrouped, lambda inner: st.builds(Within, st.integers(0, 9), inner), max_leaves=3)


class Possible:
    """Draws what can happen and be decided next, whatever a strategy would have thought of it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.now = 0.0
        self.serial = self.updates = 0
        self.here: set[int] = set()
        self.running: list[Ticket] = []
        self.recalled: list[Ticket] = []
        self.held: list[Ticket] = []

    def event(self) -> Fact:
        self.now += self.draw(st.floats(0, 1e9))
        choice = self.draw(st.integers(0, 4))
        if choice == 0 and self.running:
            ticket = self.running.pop(self.draw(st.integers(0, len(self.running) - 1)))
            self.held.append(ticket)
            return Arrived(
                self.now,
                ticket,
                self.draw(st.integers(1, ticket.work.units)) if ticket in self.recalled else ticket.work.units,
            )
        if choice == 1 and (free := sorted(self.here - {ticket.worker for ticket in self.running})):
            self.here.remove(worker := self.draw(st.sampled_from(free)))
            return Left(self.now, worker)
        if choice == 2:
            worker = self.draw(numbers.filter(lambda number: number not in self.here))
            self.here.add(worker)
            return Joined(self.now, worker)
        if choice == 3 and self.here:
            return Leaving(
                self.now, self.draw(st.sampled_from(sorted(self.here))), self.now + self.draw(st.floats(0, 9))
            )
        return Rang(self.now)

    def instruction(self) -> Fact:
        choice = self.draw(st.integers(0, 7))
        free = sorted(self.here - {ticket.worker for ticket in self.running})
        if choice <= 1 and free:
            self.serial += self.draw(st.integers(1, 10**9))
            work = Work(self.draw(kinds), self.draw(st.integers(1, 64)), self.draw(st.integers(0, 99)))
            version = self.draw(st.integers(0, self.updates))
            self.running.append(Ticket(self.serial, self.draw(st.sampled_from(free)), version, work))
            return Start(self.running[-1])
        if choice == 2 and self.running:
            return self.about_running()
        if choice == 3 and self.held:
            return Drop(self.held.pop(self.draw(st.integers(0, len(self.held) - 1))))
        if choice == 4 and self.held:
            used = self.draw(st.lists(st.sampled_from(self.held), unique=True, min_size=1))
            keep = self.draw(st.lists(st.sampled_from(used), unique=True))
            self.held = [ticket for ticket in self.held if ticket not in used or ticket in keep]
            self.updates += 1
            return Step({ticket: self.draw(fractions) for ticket in used}, tuple(keep))
        if choice == 7:
            return self.draw(resized)
        return self.draw(nested) if choice == 5 else WakeAt(self.draw(st.floats(0, 1e9)))  # type: ignore[return-value]

    def about_running(self) -> Fact:
        ticket = self.draw(st.sampled_from(self.running))
        kind = self.draw(st.integers(0, 2))
        if kind == 0:
            self.running.remove(ticket)
            return Halt(ticket)
        if kind == 1 and ticket not in self.recalled:
            self.recalled.append(ticket)
            return Recall(ticket)
        return Computed(ticket, self.draw(st.floats(0, 1e9)))


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[list[Fact], list[Fact]]]:
    possible = Possible(draw)
    lengths = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=8))
    return [
        ([possible.event() for _ in range(events)], [possible.instruction() for _ in range(instructions)])
        for events, instructions in lengths
    ]


def write(path: Path | None, history: Sequence[tuple[list[Fact], list[Fact]]]) -> list[Fact]:
    writer = TraceWriter(path, {"workers": 3})
    for events, instructions in history:
        writer.record(events, instructions)  # type: ignore[arg-type]
    return list(writer.close())


@given(history=_histories())
def test_every_fact_is_read_as_it_was_written(history: list[tuple[list[Fact], list[Fact]]]) -> None:
    assert write(None, history) == [fact for pair in history for part in pair for fact in part]


@given(history=_histories())
def test_a_file_holds_what_memory_holds(history: list[tuple[list[Fact], list[Fact]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.jsonl"
        assert (
            write(path, history) == write(None, history) == list(pl.read_trace(path)) == list(pl.read_trace(directory))
        )


def test_contributions_that_are_not_finite_are_read_as_they_were_written() -> None:
    ticket = Ticket(0, 4, 0)
    writer = TraceWriter(None, {})
    writer.record([Joined(0.0, 4)], [Start(ticket)])
    writer.record([Arrived(1.0, ticket, 1)], [Step({ticket: Fraction(1)})])
    writer.non_finite([ticket])
    assert list(writer.close())[3:] == [Step({ticket: Fraction(1)}), NonFinite(ticket)]


# What no run has written. Each line follows those of a run in which worker 4 is here, t0 runs, and t1 was handed in.

LINES = [
    '{"paceline_trace":1}',
    '["joined",1.0,4]', '["joined",1.0,5]', '["start",0,4,0,"gradient",4]', '["start",1,5,0,"gradient",4]',
    '["arrived",2.0,1,4]',
]  # fmt: skip


def read(*lines: str) -> list[Fact]:
    return list(Trace(lambda: [*LINES, *lines]))


@pytest.mark.parametrize(
    "line",
    [
        '["joined",0.0,"<img src=x onerror=alert(1)>"]', '["joined",2.0,-1]', '["joined",2.0,1.0]',
        '["joined",2.0,true]', '["joined",2.0,1000000]', '["joined",NaN,6]', '["joined",1e999,6]', '["joined","2",6]',
        '["joined",2.0,6,7]', '["joined",1e16,6]', f'["joined",{"9" * 400},6]', '["joined",2.0,[]]',
        '["joined",true,6]', '["start",7,5,0,"gradient",0]', '["start",7,5,0,"gradient",1000000000]',
        '["start",7,5,0,"<b>",1]', '["start",[],5,0,"gradient",1]', '["start",7,5,0,[],1]',
        '["start",9007199254740993,5,0,"gradient",1]', '["step",{"1e999999999":[1]},[]]', '["step",{"1e9":[1]},[]]',
        '["step",{"0.5":[1]},[]]', '["step",{"1/0":[1]},[]]', '["step",{"1/ 2":[1]},[]]',
        '["step",{"10000000000":[1]},[]]', f'["step",{{"{"7" * 1001}":[1]}},[]]', '["step",{"nan":[1]},[]]',
        '["step",[1],[]]', '["step",{"1":"1"},[]]', '["step",{"1":[1]},{}]', '["step",{"1":[true]},[]]',
        '["step",{"1":[1,1]},[]]', '["step",{"1/2":[1],"1/3":[1]},[]]', '["remember",[],"a","b"]',
        '["remember",[],1,2]', '["remember",{},"a",2]', '["remember",["0"],"a",2]', '["regroup",[],[["a"]],"why"]',
        '["regroup",[],"ab","why"]', '["regroup",[],[[1]],7]', '["remember",[' + ",".join("0" * 65) + '],"a",2]',
        '["billed",0,1.0,NaN,1.0]', '["computed",0,-1.0]', '["wake",Infinity]', '["arrived",3.0,0,4] ["halt",0]',
        "[" * 100_000, '["unheard of",1]', "[]", "{}", "7", "null", '"joined"',
    ],
)  # fmt: skip
def test_a_line_that_is_no_fact_is_refused(line: str) -> None:
    read()
    with pytest.raises(pl.ConfigError, match=r"^line 7 of the trace (cannot be understood|is broken): [^\n]*$"):
        read(line, '["rang",9.0]')


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['["rang",1.5]'], "the time goes back from 2 to 1.5"),
        (['["joined",2.0,4]'], "worker 4 joins and is here already"),
        (['["left",2.0,6]'], "worker 6 leaves and is not here"),
        (['["arrived",3.0,1,4]'], "t1 arrives and does not run"),
        (['["arrived",3.0,9,4]'], "'9' is no piece of work that was given out"),
        (['["arrived",3.0,0,3]'], "t0 arrives with 3 of 4 units, and was not recalled"),
        (['["recall",0]', '["arrived",3.0,0,5]'], "t0 arrives with 5 of 4 units"),
        (['["recall",0]', '["recall",0]'], "t0 is recalled twice"),
        (['["recall",1]'], "t1 does not run"),
        (['["halt",1]'], "t1 does not run"),
        (['["billed",1,0.0,0.0,0.0]'], "t1 does not run"),
        (['["computed",1,0.0]'], "t1 does not run"),
        (['["drop",0]'], "t0 is dropped, and was not handed in"),
        (['["step",{"1":[0]},[]]'], "t0 is used, and was not handed in"),
        (['["step",{"1":[9]},[]]'], "'9' is no piece of work that was given out"),
        (['["step",{"1":[1]},[]]', '["step",{"1":[1]},[]]'], "t1 is used, and was not handed in or is used up"),
        (['["step",{"1":[1]},[0]]'], "what is kept was not used"),
        (['["step",{},[]]'], "a step on nothing"),
        (['["recall",0]', '["arrived",3.0,0,0]', '["step",{"1":[0]},[]]'], "t0 is used, and was not handed in"),
        (['["start",1,5,0,"gradient",4]'], "t1 is started twice"),
        (['["start",2,4,0,"gradient",4]'], "t2 is given to worker 4, which is not here or not free"),
        (['["start",2,6,0,"gradient",4]'], "t2 is given to worker 6, which is not here or not free"),
        (['["start",2,5,1,"gradient",4]'], "t2 begins with version 1, after 0 updates"),
        (['["spoiled",1]'], "t1 was in no update since the last event"),
        (['["step",{"1":[1]},[]]', '["rang",3.0]', '["drop",1]'], "'1' is no piece of work"),
        (['["halt",0]', '["rang",3.0]', '["drop",0]'], "'0' is no piece of work"),
    ],
)  # fmt: skip
def test_what_cannot_have_happened_is_refused_with_the_reason(lines: list[str], why: str) -> None:
    assert len(read(*lines[:-1])) == 4 + len(lines)
    with pytest.raises(pl.ConfigError) as refusal:
        read(*lines)
    assert f"line {6 + len(lines)} of the trace cannot be understood" in str(refusal.value)
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    "about",
    ['"workers":1000000000', '"workers":-1', '"workers":2.0',
     '"transfer_seconds":1e999', '"transfer_seconds":-1', '"server_seconds":"a"'],
)  # fmt: skip
def test_a_first_line_that_cannot_be_is_refused(about: str) -> None:
    trace = Trace(lambda: [f'{{"paceline_trace":1,{about}}}'])
    for look in (lambda: list(trace), lambda: trace.about, lambda: list(trace.durations())):
        with pytest.raises(pl.ConfigError, match="line 1 of the trace cannot be understood"):
            look()


def test_a_line_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(LINES[0] + "\n[" + " " * (LONGEST_LINE + 1))
    with pytest.raises(pl.ConfigError, match="has a line of more than 16,777,216 characters"):
        list(pl.read_trace(file))


@dataclass(frozen=True)
class Wakeful(pl.strategy.Strategy):
    """Steps on each arrival, sets itself an alarm, and remembers when it did, inside groups too."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in (*ledger.late, *ledger.fresh):
            return [Step({ticket: Fraction(1)}), Remember("stepped at", ledger.now)]
        if not ledger.alarms:
            return [WakeAt(ledger.now + 0.7)]
        return [Assign(worker) for worker in ledger.idle]


@pytest.mark.parametrize(
    "strategy",
    [
        pl.Synchronous(),
        pl.Asynchronous(),
        pl.FastestK(2),
        pl.FastestK(2, stop_late=False),
        pl.LiveCompensation(2, blocks=4),
        pl.Grouped([[0, 1, 2], [3, 4]], inside=pl.LiveCompensation(1, blocks=2)),
        Wakeful(),
        pl.Grouped([[0, 1, 2], [3, 4]], inside=Wakeful()),
    ],
    ids=repr,
)
def test_a_simulated_run_is_the_same_in_a_file_and_in_memory(strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    fleet = pl.SimulatedFleet(
        pl.delays.ShiftedExponential(0.5, 1.0), workers=5, changes=[pl.Left(3.3, 1), pl.Joined(4.4, 1), pl.Left(5.5, 4)]
    )
    stop = pl.Stop(seconds=10.0)
    in_memory = list(pl.simulate(strategy, fleet, stop, seed=5))
    in_a_file = list(pl.simulate(strategy, fleet, stop, seed=5, trace=tmp_path / "trace.jsonl"))
    assert in_a_file == in_memory == list(pl.read_trace(tmp_path / "trace.jsonl"))
    seen = {type(fact) for fact in in_memory}
    assert {Joined, Left, Arrived, Start, Step, Halt} <= seen
    if "Wakeful" in repr(strategy):
        assert {Rang, WakeAt, Within if isinstance(strategy, pl.Grouped) else Remember} <= seen


def a_trace(path: Path) -> list[Fact]:
    fleet = pl.SimulatedFleet(pl.delays.ShiftedExponential(0.5, 1.0), workers=3)
    return list(pl.simulate(pl.LiveCompensation(2, blocks=2), fleet, pl.Stop(updates=6), trace=path))


def test_the_first_line_tells_of_the_run(tmp_path: Path) -> None:
    a_trace(tmp_path / "trace.jsonl")
    about = pl.read_trace(tmp_path).about
    assert (about["clock"], about["workers"], about["transfer_seconds"]) == ("virtual", 3, 0.0)
    assert about["paceline_trace"] == 1


def test_every_line_is_json(tmp_path: Path) -> None:
    facts = a_trace(tmp_path / "trace.jsonl")
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(facts)
    assert [json.loads(line)[0] for line in lines[1:4]] == ["joined"] * 3


def test_a_trace_can_be_read_twice_and_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, {})
    writer.record([Joined(0.0, 0)], [])
    reading = pl.read_trace(path)
    assert list(reading) == list(reading) == [Joined(0.0, 0)]
    writer.record([Left(1.0, 0)], [])
    assert list(reading) == [Joined(0.0, 0), Left(1.0, 0)]
    writer.close()


def test_a_torn_last_line_is_passed_over_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    facts = a_trace(path)
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last + 1, len(data) - 1):
        path.write_bytes(data[:end])
        assert list(pl.read_trace(path)) == facts[:-1]
    for end in (last, len(data) - 1, len(data)):
        path.write_bytes(data[:end])
        assert list(pl.read_trace(path)) == (facts[:-1] if end == last else facts)


@pytest.mark.parametrize("garbage", ['["arrived", 1.0', "", "\x00\x00", "[]", '{"a": 1}', '["new fact", 3]', "7"])
def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path, garbage: str) -> None:
    path = tmp_path / "trace.jsonl"
    a_trace(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], garbage, *lines[5:]]) + "\n")
    with pytest.raises(pl.PacelineError, match=r"line"):
        list(pl.read_trace(path))


def test_a_line_about_an_unknown_ticket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    a_trace(path)
    with path.open("a") as file:
        file.write('["drop",999999]\n["rang",99.0]\n')
    with pytest.raises(pl.PacelineError, match=r"999999"):
        list(pl.read_trace(path))


@pytest.mark.parametrize("text", ["", "hello\n", "[1, 2]\n", '{"other": 1}\n', "7\n", "\x00\x01", '{"paceline_trace"'])
def test_a_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(pl.ConfigError, match="not a Paceline trace"):
        list(pl.read_trace(path))
    with pytest.raises(pl.ConfigError, match="not a Paceline trace"):
        _ = pl.read_trace(path).about


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(pl.ConfigError, match="not a Paceline trace"):
        list(pl.read_trace(path))


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"paceline_trace": 2}\n')
    with pytest.raises(pl.ConfigError, match="format 2"):
        list(pl.read_trace(path))


def test_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match="no trace at"):
        pl.read_trace(tmp_path)


@pytest.mark.parametrize("written", [False, True])
def test_a_clock_that_runs_on_for_ever_ends_the_run_and_not_the_trace(written: bool, tmp_path: Path) -> None:
    """A later time would be refused when the trace is read."""
    file = tmp_path / "trace.jsonl" if written else None
    fleet = pl.SimulatedFleet(pl.delays.Constant(9e11), workers=1)
    with pytest.raises(pl.ConfigError, match=r"has come to 1\.0\d*e\+15 s, and a trace ends at 1e\+15 s: make delays,"):
        pl.simulate("asgd", fleet, pl.Stop(updates=2000), trace=file)
    if file is not None:
        assert [fact.at for fact in pl.read_trace(file) if isinstance(fact, Arrived)][-1] == 1111 * 9e11
