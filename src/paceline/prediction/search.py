"""From many rules to the best few: short simulations of all, longer ones of those that are left, then draws."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.delays import Constant, Delay, PerSample, sized
from paceline.fleets.base import medians_at
from paceline.prediction.candidates import Option
from paceline.prediction.pace import Case, Pace, pace_of, with_formula
from paceline.prediction.progress import Worth, speed
from paceline.prediction.times import Recorded

PIECES = (400, 1600, 6400)  # of work, in each round of successive halving
PIECES_OF_A_WORKER = 40  # at least
FEWEST_LEFT = 4
DRAWS = 24
PIECES_OF_A_DRAW = 600, 4000  # of a simulated fleet; of a recording, at most
TELL = 1.02  # a smaller difference than this is none
TIE = 1.05  # the same for samples a second, where nothing is known of the loss
BISECTIONS = 6
FARTHEST = 8.0  # times as slow as it is: how far a worker is thought to change
NOISE_RANGE = 1000.0

Speeds = dict[str, list[float]]


@dataclass(frozen=True)
class Contest:
    """What is known about the options: the fleet, what the loss makes of a rule, and the recording that may be drawn.

    ``worth`` None: nothing is known of the loss, and samples a second are compared. Rules under which workers hand in
    ``models`` are compared with each other only. ``prices`` of a second of each worker, if they count.
    """

    case: Case
    worth: Worth | None
    recorded: Recorded | None = None
    models: bool = False
    prices: Sequence[float] = ()

    def share(self, option: Option) -> float:
        """The price of a second of the workers of an option, by that of all; 1 without prices."""
        if not (total := sum(self.prices)):
            return 1.0
        return sum(price for worker, price in enumerate(self.prices) if worker not in option.without) / total

    def points(self, pace: Pace, option: Option) -> float:
        """What options are chosen by: progress a second, or for a price where workers have prices."""
        return self.ranked(pace, option) / self.share(option)

    def ordered(self, options: Sequence[Option], paces: dict[str, Pace]) -> list[Option]:
        """The best first, each once; with prices, those that are slower than the first of them last."""
        now = self.ranked(paces[options[0].label], options[0])

        def key(each: Option) -> tuple[bool, float]:
            pace = paces[each.label]
            return bool(self.prices) and self.ranked(pace, each) < now / TELL, -self.points(pace, each)

        return sorted(dict.fromkeys(options), key=key)

    def ranked(self, pace: Pace, option: Option) -> float:
        """Progress a second; minus infinity where theory does not tell."""
        if option.hands_in_models is not self.models:
            return -math.inf
        return speed(pace, self.worth)

    def paces(self, options: Sequence[Option]) -> dict[str, Pace]:
        """Successive halving: every option's pace, of the better ones from longer simulations. The first stays in.

        Rounds compare simulations of the same durations. Formulas come last, so that no rule is left out because
        chance was against it and not against another.
        """
        found: dict[str, Pace] = {}
        remaining = list(options)
        for pieces in PIECES:
            enough = max(pieces, PIECES_OF_A_WORKER * self.case.fleet.workers)
            for option in remaining:
                found[option.label] = pace_of(option.strategy, self.case, enough, option.without)
            order = self.ordered([options[0], *remaining], found)
            kept = order[: max(FEWEST_LEFT, len(order) // 2)]
            remaining = [options[0], *(each for each in kept if each is not options[0])]
        return {each.label: with_formula(found[each.label], each.strategy, self.case, each.without) for each in options}

    def drawn(self, options: Sequence[Option], paces: dict[str, Pace]) -> Speeds:
        """The speed of options on draws of the fleet, the same draws for all: blocks of the recording, or seeds."""
        found: Speeds = {option.label: [] for option in options}
        worths = {
            option.label: self.ranked(paces[option.label], option) / paces[option.label].weight_per_second
            for option in options
        }
        certain = self.recorded is None and all(isinstance(each, Constant) for each in self.case.fleet.worker_delays)
        pieces = PIECES_OF_A_DRAW[0]
        if self.recorded is not None:
            pieces = min(PIECES_OF_A_DRAW[1], sum(len(own.seconds) for own in self.recorded.pieces.values()))
        for number in range(1 if certain else DRAWS):
            fleet = self.case.fleet if self.recorded is None else self.recorded.drawn(number)
            case = replace(self.case, fleet=fleet, seed=self.case.seed + 1 + number)
            for option in options:
                pace = pace_of(option.strategy, case, pieces, option.without)
                found[option.label].append(pace.weight_per_second * worths[option.label])
        return found

    def slowness(self) -> tuple[int, float]:
        """The slowest worker, and how many times as long as the middle one of the others it takes."""
        speeds = medians_at(self.case.fleet, self.case.batch_size) or (1.0,) * self.case.fleet.workers
        worker = max(range(len(speeds)), key=lambda each: speeds[each])
        others = sorted(each for who, each in enumerate(speeds) if who != worker)
        return worker, speeds[worker] / others[len(others) // 2]

    def best_with(self, worker: int, factor: float, options: Sequence[Option]) -> Option:
        """Which option were best if a worker took so many times as long; the first, unless another is told from it."""
        delays = list(self.case.fleet.worker_delays)
        delays[worker] = _times(delays[worker], factor)
        case = replace(self.case, fleet=replace(self.case.fleet, delays=delays))
        pieces = max(PIECES[1], PIECES_OF_A_WORKER * case.fleet.workers)
        speeds = [self.points(pace_of(each.strategy, case, pieces, each.without), each) for each in options]
        best = max(range(len(options)), key=lambda place: speeds[place])
        margin = TIE if self.worth is None else TELL
        return options[best] if speeds[best] > margin * speeds[0] else options[0]


def turning_point(leaves: Callable[[float], bool], stays: float, goes: float) -> float | None:
    """Between two numbers, where the answer changes, by bisection of their logarithms; None if it does not."""
    if leaves(stays) or not leaves(goes):
        return None
    for _ in range(BISECTIONS):
        middle = math.sqrt(stays * goes)
        stays, goes = (stays, middle) if leaves(middle) else (middle, goes)
    return math.sqrt(stays * goes)


def interval(over: Sequence[float], under: Sequence[float], point: float) -> tuple[float, float]:
    """80 % of the ratios in pairs, about the point: short simulations begin alike, which biases their middle."""
    ratios = np.array(over) / np.array(under)
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    return float(point * low / middle), float(point * high / middle)


# The standard error of the logarithm of a gain, besides that of the times: as found in the cases of
# benchmarks/advice.py that are for tuning.
ERROR = {"trial": 0.25, "theory": 0.5, "samples": 0.5}
Z = 1.2816  # standard deviations, of 80 %


def widened(around: tuple[float, float], gain: float, basis: str) -> tuple[float, float]:
    """An interval of the times, with the error of what the gain is based on: as found in benchmarks/advice.py."""
    low, high = (math.log(each / gain) if each > 0 else -math.inf for each in around)
    error = Z * ERROR[basis]
    return gain * math.exp(-math.hypot(low, error)), gain * math.exp(math.hypot(high, error))


def best_at_noise(
    factor: float, options: Sequence[Option], paces: dict[str, Pace], worth: Worth, chosen: Option
) -> Option:
    """Which option were best with so many times the noise; the chosen one, unless another is told from it."""
    changed = worth.with_noise(factor)
    known = [option for option in options if not option.hands_in_models]
    best = max(known, key=lambda each: speed(paces[each.label], changed))
    return best if speed(paces[best.label], changed) > TELL * speed(paces[chosen.label], changed) else chosen


def _times(delay: Delay, factor: float) -> Delay:
    if isinstance(delay, PerSample):
        return PerSample(delay.fixed * factor, sized(delay.each, factor, 1.0))
    return sized(delay, factor, 1.0)
