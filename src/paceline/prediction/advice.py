"""What advice says: the candidates with their numbers, and the three lines."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.coordinator import Strategy
from paceline.engine.limits import Target
from paceline.prediction.candidates import Option
from paceline.prediction.pace import Pace
from paceline.prediction.search import TIE, Contest
from paceline.prediction.trials import ROUNDS, SEEDS, Trials

UNHEARD = 0.9  # of its share: a worker that counts less is named where data differ


@dataclass(frozen=True)
class Candidate:
    """A rule that was looked at.

    gain           how many times as soon as now; None where theory does not reach
    interval       of it, 80 %; None for those that were not drawn again
    learning_rate  recommended, and ``largest`` that is stable; None where nothing is known of the loss
    price          of the same progress, times that of now; None without prices
    basis          of the gain: a trial, theory, or samples a second where nothing is known of the loss
    reached        seconds until the target, or the loss that what is done now came to, in the first trial
    """

    label: str
    strategy: Strategy
    without: tuple[int, ...]
    pace: Pace
    gain: float | None
    interval: tuple[float, float] | None = None
    learning_rate: float | None = None
    largest: float | None = None
    price: float | None = None
    basis: str = "theory"
    reached: float | None = None

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        pace = self.pace
        return {
            "strategy": self.label, "without": list(self.without), "gain": self.gain, "interval": self.interval,
            "learning_rate": self.learning_rate, "largest_learning_rate": self.largest, "price": self.price,
            "basis": self.basis, "reached": self.reached,
            "updates_per_second": pace.updates_per_second.value, "source": pace.updates_per_second.source,
            "samples_per_second": pace.samples_per_second, "samples_an_update": pace.batch,
            "mean_staleness": pace.mean_staleness, "least_say": pace.least_say, "simulated_pieces": pace.pieces,
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Advice:
    """What to do, what it brings, and what would change it; ``print`` shows three lines.

    strategy       the rule, for the fleet without the workers in ``without``
    learning_rate  inside the stable region; None where nothing is known of the loss
    gain           how many times as soon as what is done now, and the 80 % ``interval`` of it
    reason         in words: how the numbers come about, and where theory does not reach
    candidates     all that were looked at, the best first
    """

    strategy: Strategy
    without: tuple[int, ...]
    learning_rate: float | None
    gain: float
    interval: tuple[float, float]
    reason: str
    candidates: tuple[Candidate, ...]
    lines: tuple[str, str, str]
    now: str
    notes: tuple[str, ...] = ()
    label: str = ""

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"Advice({self.label}, {self.gain:.3g} times as soon as {self.now})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(each.label)}</td><td>{'-' if each.gain is None else f'{each.gain:.3g}'}</td>"
            f"<td>{each.pace.mean_staleness:.2f}</td></tr>"
            for each in self.candidates
        )
        head = "<tr><th>strategy</th><th>times as soon</th><th>staleness</th></tr>"
        return f"<p>{'<br>'.join(map(html.escape, self.lines))}</p><table>{head}{rows}</table>"

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "strategy": self.label, "without": list(self.without), "learning_rate": self.learning_rate,
            "gain": self.gain, "interval": list(self.interval), "now": self.now, "lines": list(self.lines),
            "reason": self.reason, "notes": list(self.notes), "candidates": [each.table() for each in self.candidates],
        }  # fmt: skip


@dataclass(frozen=True)
class Question:
    """All that an answer depends on.

    unlike   do the workers' data differ?
    prices   of a second of each worker
    budget   seconds that there are; ``reached``: after how many what is done now reaches the ``target``
    """

    contest: Contest
    now: Strategy
    unlike: bool = False
    prices: Sequence[float] = ()
    budget: float | None = None
    target: Target | None = None
    reached: float | None = None
    notes: Sequence[str] = field(default=())
    trials: Trials | None = None


@dataclass(frozen=True)
class Texts:
    """The lines of an answer."""

    question: Question
    best: Candidate
    now: str
    alike: Sequence[Option]
    found: Sequence[Candidate]

    @property
    def stays(self) -> bool:
        return self.best.label == self.now

    @property
    def soon(self) -> str:
        return "as many samples a second" if self.best.basis == "samples" else "as soon"

    def do(self) -> str:
        best, rate = self.best, ""
        if best.learning_rate is not None:
            stable = "" if best.largest is None else f" (stable up to {best.largest:.3g})"
            rate = f", with a learning rate of {best.learning_rate:.3g}{stable}"
        others = [each.label for each in self.alike if each.label != best.label]
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        apart = f"; not enough to tell apart: {best.label} and {others[0]}{more}" if others else ""
        return f"Do this: {'stay with ' if self.stays else ''}{best.label}{rate}{apart}"

    def expected(self) -> str:
        best, question = self.best, self.question
        assert best.gain is not None
        assert best.interval is not None
        if self.stays:
            text = "Expected gain: none; "
            others = [each for each in self.found if each.label != self.now and each.interval is not None]
            if others and others[0].interval is not None:
                low, high = others[0].interval
                text += f"{others[0].label}: {others[0].gain:.2f} times {self.soon} (80 %: {low:.2f} to {high:.2f})"
        else:
            low, high = best.interval
            text = f"Expected gain: {best.gain:.2f} times {self.soon} as {self.now} (80 %: {low:.2f} to {high:.2f})"
        if question.budget is not None:
            text += f"; {question.budget:,.4g} s then do what {question.budget * best.gain:,.4g} s do now"
        if question.target is not None:
            text += self._target(question.target)
        if best.price is not None:
            soonest = max((each for each in self.found if each.basis == best.basis), key=lambda each: each.gain or 0.0)
            text += f"; for {best.price:.2f} times the price, the least (soonest: {soonest.label}, {soonest.gain:.2f})"
        return text

    def _target(self, target: Target) -> str:
        """When it is reached: in a trial, or by the recorded run and the gain."""
        best, now = self.best, next(each for each in self.found if each.label == self.now)
        if self.question.reached is not None:
            after, instead = self.question.reached / (best.gain or 1.0), f"{self.question.reached:,.4g}"
        else:
            assert best.reached is not None
            after, instead = best.reached, "in the trial" if now.reached is None else f"{now.reached:,.4g}"
        return f"; {target.words} after {after:,.4g} s" + ("" if self.stays else f", not {instead}")

    def reason(self, paces: dict[str, Pace]) -> str:
        own, now, worth = self.best.pace, paces[self.now], self.question.contest.worth
        unit = "mini-batches" if self.question.contest.case.batch_size is None else "samples"
        parts = [
            f"{self.best.label} makes {own.updates_per_second.value:.3g} updates a second, each worth {own.batch:.3g} "
            f"{unit}, {own.mean_staleness:.2f} updates stale; {self.now} makes {now.updates_per_second.value:.3g}, "
            f"each worth {now.batch:.3g}, {now.mean_staleness:.2f} stale."
        ]
        if len(self.alike) > 1:
            parts.append(f"Not enough to tell apart: {' and '.join(each.label for each in self.alike)}.")
        if self.best.basis == "trial":
            beyond = "" if worth is not None else "; theory does not reach this optimizer or this loss"
            until = "target" if self.question.target else f"loss of {ROUNDS} updates of {self.now}"
            parts.append(
                f"Gains are those of trials: {SEEDS} short trainings of each rule on simulated workers of these "
                f"speeds, until the {until}{beyond}. What comes later in training is not seen."
            )
        elif worth is None:
            parts.append(
                "Nothing is known of the loss (no task, or an optimizer that theory does not reach): samples a second "
                f"are compared, and of rules within {TIE - 1:.0%} the least stale is chosen. A stale gradient is worth "
                "at most as much as a fresh one; how much less is not known."
            )
        else:
            parts.append(
                "Progress is compared by curvature, noise scale and stable learning rate of the initial weights. Both "
                "change in training; noise mostly grows, and makes staleness matter less."
            )
        if any(each.gain is None for each in self.found):
            parts.append("Rules under which workers take steps of their own are beyond this theory: not compared.")
        parts += self._bias()
        return " ".join(parts)

    def _bias(self) -> list[str]:
        best = self.best
        if not self.question.unlike or (best.pace.least_say >= UNHEARD and not best.without):
            return []
        if best.without:
            return ["The workers' data differ: those of the workers that are left out would be lost."]
        return [
            f"The workers' data differ, and one worker counts {best.pace.least_say:.2f} times its share: the model "
            "leans towards the data of the others."
        ]
