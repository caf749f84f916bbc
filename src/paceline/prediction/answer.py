"""From a strategy and a fleet to what can be said before a run."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.prediction.descent import Descent
from paceline.theory.estimate import Estimate, weakest
from paceline.theory.runtime.costs import Ages, Runtime, runtime
from paceline.theory.stability.net_weights import NetWeights
from paceline.trace.measure import Measures

TAIL = 0.99  # the share of what updates use that is not older than the shown staleness


@dataclass(frozen=True)
class Wishes:
    """What is asked for.

    margin     the recommended step is this share of the largest stable one. A half is near the fastest without
               swinging about the optimum, for any delay
    epsilon    the time is that until the error is this share of the first one
    condition  along a direction so many times flatter than the sharpest. Flatter ones take longer, in proportion
    """

    margin: float = 0.5
    epsilon: float = 0.01
    condition: float = 100.0

    def __post_init__(self) -> None:
        for name in ("margin", "epsilon"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name}={value:g} cannot be asked for: between 0 and 1")
        if not 1 <= self.condition < math.inf:
            raise ConfigError(f"condition={self.condition:g} cannot be asked for: at least 1, the sharpest direction")


@dataclass(frozen=True)
class Prediction:
    r"""What can be said before a run. Steps are learning rates $\eta$; $\lambda$ is the largest curvature of the loss.

    limit               the largest $\eta\lambda$ that is stable in mean square, without momentum
    limit_as_optimized  the same with the optimizer's momentum
    limit_in_the_mean   with the optimizer's momentum, the largest that is stable in the mean only
    largest_step        the largest $\eta$ that is stable in mean square; None where no curvature is known
    recommended         $\eta$ with a margin; None where no curvature is known
    seconds_to_epsilon  until the mean error of a flat direction has shrunk, at the recommended step, noise left aside
    """

    runtime: Runtime
    limit: Estimate
    limit_as_optimized: Estimate
    limit_in_the_mean: Estimate
    largest_step: Estimate | None
    recommended: Estimate | None
    seconds_to_epsilon: Estimate | None

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = self.runtime
        timing = {
            name: estimate_table(getattr(found, name))
            for name in ("updates_per_second", "seconds_per_update", "wasted_share", "mean_staleness")
        }
        weights = {"by_age": found.weights.by_age, "by_gap": found.weights.by_gap, "source": found.weights_source}
        steps = {each.name: estimate_table(getattr(self, each.name)) for each in fields(self) if each.name != "runtime"}
        return {**timing, "staleness": asdict(found.staleness), "weights": weights, **steps}


def predict(
    strategy: Strategy,
    fleet: SimulatedFleet,
    *,
    descent: Descent = Descent(),
    curvature: float | None = None,
    message_bytes: int = 0,
    wishes: Wishes = Wishes(),
    seed: int = 0,
) -> Prediction:
    """Speed, staleness and stable steps of ``strategy`` on ``fleet``, each number with its source.

    descent        what the optimizer does: momentum, Nesterov's form, weight decay
    curvature      the largest of the loss, such as ``paceline.learning.curvature`` finds
    message_bytes  the size of the model, for the time of transfers

    Stability is meant *in mean square*, near an optimum: below the limit the expected square of the error along every
    direction of a quadratic dies out, or settles where noise keeps it, for ages drawn independently. A pattern in the
    ages may shift the limit a little (``theory.schedules`` tells); a loss whose curvature changes on the way shifts it
    as much.
    """
    return concluded(runtime(strategy, fleet, message_bytes=message_bytes, seed=seed), descent, curvature, wishes)


def recorded(measures: Measures, descent: Descent, curvature: float | None, wishes: Wishes) -> Prediction:
    """The same, of what a recorded run did."""
    if not measures.updates:
        raise ConfigError("the trace has no updates, so there is nothing to tell: record a longer run")
    weights = NetWeights(measures.weight_by_age, measures.weight_by_gap)
    found = Runtime(
        updates_per_second=Estimate(measures.updates / measures.seconds, "measured"),
        wasted_share=Estimate(measures.wasted_share, "measured"),
        mean_staleness=Estimate(measures.mean_staleness, "measured"),
        staleness=Ages(measures.weight_by_age, "measured"),
        weights=weights,
        weights_source="measured",
    )
    return concluded(found, descent, curvature, wishes)


def concluded(found: Runtime, descent: Descent, curvature: float | None, wishes: Wishes) -> Prediction:
    """What follows for the step."""
    if curvature is not None and not curvature > 0:
        raise ConfigError(f"a curvature of {curvature:g} bounds no step: more than 0, as at a minimum")
    weights, source, rate = found.weights, found.weights_source, found.updates_per_second
    optimized = descent.limit(weights)
    largest = None if curvature is None else optimized / descent.sharpness(curvature)
    decay = descent.decay(wishes.margin * optimized / wishes.condition, weights)
    updates = math.log(wishes.epsilon) / math.log(decay)
    return Prediction(
        runtime=found,
        limit=Estimate(Descent().limit(weights), source),
        limit_as_optimized=Estimate(optimized, source),
        limit_in_the_mean=Estimate(descent.limit_in_the_mean(weights), source),
        largest_step=None if largest is None else Estimate(largest, source),
        recommended=None if largest is None else Estimate(wishes.margin * largest, source),
        seconds_to_epsilon=Estimate(updates / rate.value, weakest(source, rate.source)) if rate.value > 0 else None,
    )


def estimate_table(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    value = estimate.value if math.isfinite(estimate.value) else None
    return {"value": value, "source": estimate.source, "error": estimate.error}
