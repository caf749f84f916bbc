"""A trace is read as it was written; a torn end is passed over, and anything else that is broken is refused."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.facts import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Halt,
    Instruction,
    Joined,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
)
from paceline.core.ledger import Ledger
from paceline.trace import Computed, Fact, Spoiled, Trace, TraceWriter
from paceline.trace_lines import tickets_of

times = st.floats(0, 1e9, allow_nan=False, allow_infinity=False)
numbers = st.integers(0, 10**6)
fractions = st.fractions(min_value=-3, max_value=3, max_denominator=10**9)
kinds = st.sampled_from(["gradient", "local_steps", "distilled_steps"])


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[list[Fact], list[Fact]]]:
    """Tickets are started first; then anything may be said of them until they are settled."""
    works = st.builds(Work, kinds, st.integers(1, 64))
    tickets = [Ticket(serial, draw(numbers), draw(numbers), draw(works)) for serial in range(draw(st.integers(1, 6)))]
    known = st.sampled_from(tickets)
    remembered: st.SearchStrategy[Decision] = st.builds(
        Remember, st.text('ab "\\\n[é', max_size=4), st.floats(allow_nan=False)
    )
    groups = st.lists(st.lists(numbers, max_size=3).map(tuple), max_size=3).map(tuple)
    regrouped: st.SearchStrategy[Decision] = st.builds(Regroup, groups, st.text('ab "\\\n[é', max_size=4))
    nested = st.recursive(
        remembered | regrouped, lambda inner: st.builds(Within, st.integers(0, 9), inner), max_leaves=3
    )

    def steps(chosen: list[Ticket]) -> st.SearchStrategy[Step]:
        weights = st.fixed_dictionaries(dict.fromkeys(chosen, fractions))
        kept = st.lists(st.sampled_from(chosen), unique=True).map(tuple) if chosen else st.just(())
        return st.builds(Step, weights, kept)

    events = st.one_of(
        st.builds(Joined, times, numbers),
        st.builds(Left, times, numbers),
        st.builds(Rang, times),
        st.builds(Arrived, times, known, st.integers(0, 64)),
    )
    instructions: st.SearchStrategy[Instruction | Computed] = st.one_of(
        st.builds(Halt, known),
        st.builds(Drop, known),
        st.builds(Recall, known),
        st.builds(WakeAt, times),
        st.lists(known, unique=True).flatmap(steps),
        nested,
        st.builds(Computed, known, times),
    )
    history: list[tuple[list[Fact], list[Fact]]] = [([Joined(0.0, 0)], [Start(ticket) for ticket in tickets])]
    history += draw(st.lists(st.tuples(st.lists(events, max_size=3), st.lists(instructions, max_size=4)), max_size=5))
    settled: set[Ticket] = set()
    return [([*_unsettled(events, settled)], [*_unsettled(instructions, settled)]) for events, instructions in history]


def _unsettled(facts: Sequence[Fact], settled: set[Ticket]) -> Iterator[Fact]:
    for fact in facts:
        if settled.isdisjoint(tickets_of(fact)):
            yield fact
            if isinstance(fact, Step):
                settled |= fact.weights.keys() - fact.keep
            elif isinstance(fact, Halt | Drop):
                settled.add(fact.ticket)


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


def test_spoiled_contributions_are_read_as_they_were_written() -> None:
    ticket = Ticket(0, 4, 0)
    writer = TraceWriter(None, {})
    writer.record([Joined(0.0, 4)], [Start(ticket), Step({ticket: Fraction(1)})])
    writer.spoiled([ticket])
    assert list(writer.close()) == [Joined(0.0, 4), Start(ticket), Step({ticket: Fraction(1)}), Spoiled(ticket)]


def test_a_settled_ticket_is_forgotten_and_may_not_be_named_again() -> None:
    lines = ['{"paceline_trace":1}', '["start",0,4,0,"gradient",1]', '["halt",0]', '["rang",1.0]', '["drop",0]']
    with pytest.raises(pl.PacelineError, match="line 5 of the trace cannot be understood"):
        list(Trace(lambda: lines))


@dataclass(frozen=True)
class Wakeful(pl.Strategy):
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
def test_a_simulated_run_is_the_same_in_a_file_and_in_memory(strategy: pl.Strategy, tmp_path: Path) -> None:
    fleet = pl.SimulatedFleet(
        pl.ShiftedExponential(0.5, 1.0), workers=5, changes=[pl.Left(3.3, 1), pl.Joined(4.4, 1), pl.Left(5.5, 4)]
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
    fleet = pl.SimulatedFleet(pl.ShiftedExponential(0.5, 1.0), workers=3)
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
