"""What a mini-batch took is read back from a trace, whatever the kind of work was."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest

import paceline as pl
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Step, Work
from paceline.prediction.what_if import Survey
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter


@dataclass(frozen=True)
class Always(pl.strategy.Strategy):
    """Everybody does the same kind of work; each contribution is an update."""

    kind: str
    units: int

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in ledger.handed_in:
            return [Step({ticket: Fraction(1)})]
        return [Assign(worker, Work(self.kind, self.units)) for worker in ledger.idle]


STRATEGIES: dict[str, pl.strategy.Strategy] = {
    "gradients": pl.Synchronous(),
    "gradients in blocks": Always("gradient", 4),
    "blocks, some of them recalled": pl.LiveCompensation(2, blocks=4),
    "models": pl.ModelAveraging(every=16),
    "models, nobody waits": pl.ModelAveraging(every=3, waits=pl.Asynchronous()),
    "distilled models": pl.EnsembleCompression(8, compression_steps=3),
    "one long piece": pl.FinalEnsemble(steps=32),
    "local steps of a rule of one's own": Always("local_steps", 5),
    "distilled steps of a rule of one's own": Always("distilled_steps", 5),
    "in groups": pl.Grouped([[0, 1], [2]]),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_a_mini_batch_takes_what_it_took_whatever_the_kind_of_work(name: str, latency: float) -> None:
    later: list[pl.Left | pl.Joined] = [pl.Joined(0.4, 2)]  # so that it is recalled in the middle of a mini-batch
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3, network=pl.Network(latency=latency), changes=later)
    trace = pl.simulate(STRATEGIES[name], fleet, pl.Stop(seconds=50.0))
    survey = Survey(trace)
    assert sorted(survey.durations) == [0, 1, 2]
    for own in survey.durations.values():
        assert len(own.seconds) >= 12
        assert own.seconds == pytest.approx([1.0] * len(own.seconds))
    assert pl.delays.Empirical.from_trace(trace, worker=1).values == tuple(survey.durations[1].seconds)
    assert len(list(trace.durations())) == sum(len(own.seconds) for own in survey.durations.values())


def test_recalled_blocks_are_scaled_up_and_what_is_not_known_is_counted() -> None:
    """Worker 2 takes 2 s. It is recalled after 1 s, with two of its four blocks done."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(2.0)])
    partly = Survey(pl.simulate(pl.LiveCompensation(2, blocks=4), fleet, pl.Stop(updates=5))).durations[2]
    assert partly.seconds == pytest.approx([2.0] * partly.scaled)
    assert partly.scaled > 0
    halted = Survey(pl.simulate(pl.FastestK(2), fleet, pl.Stop(updates=5))).durations[2]
    assert ([*halted.seconds], halted.scaled, halted.cut) == ([], 0, 5)


def test_a_worker_that_the_first_line_does_not_tell_of_is_measured_too() -> None:
    lines = (
        '{"paceline_trace": 1, "workers": 1}',
        '["joined",0.0,3]',
        '["start",0,3,0,"local_steps",2]',
        '["billed",0,0.5,1.0,0.25]',
        '["arrived",4.75,0,2]',
    )
    survey = Survey(Trace(lambda: lines))
    assert ([*survey.durations[3].seconds], [*survey.durations[0].seconds]) == ([1.5, 1.5], [])


def test_more_mini_batches_than_memory_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.trace.durations.MOST_DURATIONS", 20)
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=1)
    trace = pl.simulate(pl.ModelAveraging(every=16), fleet, pl.Stop(updates=2))
    with pytest.raises(pl.ConfigError, match="the workers went through more than 20 mini-batches"):
        Survey(trace)


def test_a_trace_without_work_has_no_durations() -> None:
    assert Survey(TraceWriter(None, {"workers": 2}).close()).durations.keys() == {0, 1}


def test_all_workers_together_have_that_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.trace.durations.MOST_DURATIONS", 20)
    trace = pl.simulate(
        pl.ModelAveraging(every=8), pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3), pl.Stop(updates=1)
    )
    with pytest.raises(pl.ConfigError, match="the workers went through more than 20 mini-batches"):
        Survey(trace)
