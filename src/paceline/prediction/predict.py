"""From a strategy and a fleet to what can be said before a run: speed, staleness, and stable learning rates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.theory.estimate import Estimate, weakest
from paceline.theory.runtime.costs import Ages, Runtime, runtime
from paceline.theory.stability.net_weights import NetWeights, net_critical_step, net_decay, net_mean_square_step
from paceline.trace.measure import Measures

if TYPE_CHECKING:
    from paceline.learning.task import Task

TAIL = 0.99  # the share of what updates use that is not older than the shown staleness


@dataclass(frozen=True)
class Descent:
    """What ``torch.optim.SGD`` does with a gradient: momentum, dampening, Nesterov's form, and weight decay."""

    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(
                f"a momentum of {self.momentum} never forgets: choose at least 0 and below 1, such as 0.9"
            )
        if not 0 <= self.dampening < 1:
            raise ConfigError(f"a dampening of {self.dampening} leaves no gradient: at least 0 and below 1")

    @property
    def gain(self) -> float:
        """What of a gradient enters the momentum."""
        return 1 - self.dampening if self.momentum else 1.0

    def limit(self, weights: NetWeights) -> float:
        """The largest product of learning rate and curvature that is stable in mean square."""
        return net_mean_square_step(weights, self.momentum, nesterov=self.nesterov) / self.gain

    def limit_in_the_mean(self, weights: NetWeights) -> float:
        """The largest such product that is stable in the mean, which is not enough where ages vary."""
        return net_critical_step(weights, self.momentum, nesterov=self.nesterov) / self.gain

    def decay(self, product: float, weights: NetWeights) -> float:
        """By which factor an update shrinks the mean error in a direction; ``product``: learning rate x curvature."""
        return net_decay(product * self.gain, weights, self.momentum, nesterov=self.nesterov)

    def sharpness(self, curvature: float) -> float:
        """The curvature that updates meet: that of the loss, and of the weight decay."""
        return curvature + self.weight_decay


def descent_of(name: str, options: Mapping[str, Any]) -> Descent | None:
    """The descent of a torch optimizer by its name; None if it scales its updates by itself, and nothing is known."""
    if name != "SGD":
        return None
    known = {key: options[key] for key in ("momentum", "nesterov", "dampening", "weight_decay") if key in options}
    return Descent(**known)


@dataclass(frozen=True)
class Goal:
    """What is asked for besides the limits.

    margin     the recommended learning rate is this share of the largest stable one. A half is near the fastest
               without swinging about the optimum, for any delay
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
    r"""What can be said before a run. $\eta$ is a learning rate, $\lambda$ the largest curvature of the loss.

    runtime                    updates a second, wasted work and staleness, each with its source
    limit                      the largest $\eta\lambda$ that is stable in mean square, without momentum
    limit_as_optimized         the same with the optimizer's momentum
    limit_in_the_mean          with the optimizer's momentum, the largest that is stable in the mean only
    largest_learning_rate      the largest $\eta$ that is stable in mean square; None where no curvature is known
    recommended_learning_rate  $\eta$ with a margin; None where no curvature is known
    seconds_to_epsilon         until the mean error of a flat direction has shrunk to ``epsilon``, at the recommended
                               learning rate, noise left aside
    curvature                  what the learning rates rest on; None where it is not known
    """

    runtime: Runtime
    limit: Estimate
    limit_as_optimized: Estimate
    limit_in_the_mean: Estimate
    largest_learning_rate: Estimate | None
    recommended_learning_rate: Estimate | None
    seconds_to_epsilon: Estimate | None
    curvature: float | None = None

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON; the names are those of the first version."""
        found = self.runtime
        timing = {
            name: estimate_table(getattr(found, name))
            for name in ("updates_per_second", "seconds_per_update", "wasted_share", "mean_staleness")
        }
        weights = {"by_age": found.weights.by_age, "by_gap": found.weights.by_gap, "source": found.weights_source}
        former = {"largest_learning_rate": "largest_step", "recommended_learning_rate": "recommended"}
        limits = {
            former.get(each.name, each.name): estimate_table(getattr(self, each.name))
            for each in fields(self)
            if each.name not in ("runtime", "curvature")
        }
        full = found.saturation
        saturation = full and {
            "workers": estimate_table(full.workers),
            "updates_per_second": estimate_table(full.updates_per_second),
            "busiest": full.busiest,
        }
        more = {"saturation": saturation} if saturation else {}
        return {**timing, "staleness": asdict(found.staleness), "weights": weights, **limits, **more}


def predict(
    strategy: Strategy | str,
    fleet: SimulatedFleet,
    *,
    batch_size: int | Sequence[int] | None = None,
    task: "Task | None" = None,
    curvature: float | None = None,
    descent: Descent = Descent(),
    message_bytes: int | None = None,
    margin: float = 0.5,
    epsilon: float = 0.01,
    condition: float = 100.0,
    seed: int = 0,
) -> Prediction:
    """Predict updates a second, staleness and stable learning rates of ``strategy`` on ``fleet``, without training.

    strategy       who waits for whom; or its name, as in ``"lgc:quorum=5,blocks=4"``
    fleet          the workers; those of a recorded run are ``SimulatedFleet([Empirical.from_trace(trace, 0), ...])``
    batch_size     of all workers, or a list with one for each: for ``PerSample`` delays, or unequal sizes
    task           its largest curvature, at the initial weights, and the size of its model are looked up
    curvature      the largest of the loss, if it is known; without it, and without a task, learning rates are unknown
    descent        what the optimizer does: momentum, Nesterov's form, dampening, weight decay
    message_bytes  the size of the model, for the time of transfers; by default that of the task's model
    margin         the recommended learning rate is this share of the largest stable one
    epsilon        ``seconds_to_epsilon`` is the time until the error is this share of the first one ...
    condition      ... in a direction so many times flatter than the sharpest
    seed           of a simulation, where no formula is known

    Each number says where it is from: exact, quadrature, simulation or measured. Stability is meant *in mean square*,
    near an optimum: below the limit the expected square of the error along every direction of a quadratic dies out, or
    settles where noise keeps it, for ages drawn independently. A pattern in the ages may shift the limit a little
    (``paceline.theory.schedule_critical_step`` tells); a loss whose curvature changes on the way shifts it as much.
    """
    from paceline.engine.arguments import check_arguments, strategy_for

    goal, strategy = Goal(margin, epsilon, condition), strategy_for(strategy, fleet, batch_size)
    if task is not None:
        check_arguments(task=task)
        from paceline.learning.curvature import curvature as find_curvature
        from paceline.learning.model_state import message_bytes as size_of

        if message_bytes is None:
            message_bytes = size_of(task.model)
        if curvature is None and (found := find_curvature(task).value) > 0:
            curvature = found
    timing = runtime(strategy, fleet, batch_size=batch_size, message_bytes=message_bytes or 0, seed=seed)
    return conclude(timing, descent, curvature, goal)


def prediction_of(measures: Measures, descent: Descent, curvature: float | None, goal: Goal) -> Prediction:
    """The same, of what a recorded run did."""
    if not measures.updates:
        raise ConfigError("the trace has no updates, so there is nothing to tell: record a longer run")
    found = Runtime(
        updates_per_second=Estimate(measures.updates / measures.seconds, "measured"),
        wasted_share=Estimate(measures.wasted_share, "measured"),
        mean_staleness=Estimate(measures.mean_staleness, "measured"),
        staleness=Ages(measures.weight_by_age, "measured"),
        weights=NetWeights(measures.weight_by_age, measures.weight_by_gap),
        weights_source="measured",
    )
    return conclude(found, descent, curvature, goal)


def conclude(found: Runtime, descent: Descent, curvature: float | None, goal: Goal) -> Prediction:
    """What follows for the learning rate."""
    if curvature is not None and not 0 < curvature < math.inf:
        raise ConfigError(f"a curvature of {curvature:g} bounds no learning rate: give a finite number above 0")
    weights, source, rate = found.weights, found.weights_source, found.updates_per_second
    optimized = descent.limit(weights)
    largest = None if curvature is None else optimized / descent.sharpness(curvature)
    decay = descent.decay(goal.margin * optimized / goal.condition, weights)
    updates = math.log(goal.epsilon) / math.log(decay)
    return Prediction(
        runtime=found,
        limit=Estimate(Descent().limit(weights), source),
        limit_as_optimized=Estimate(optimized, source),
        limit_in_the_mean=Estimate(descent.limit_in_the_mean(weights), source),
        largest_learning_rate=None if largest is None else Estimate(largest, source),
        recommended_learning_rate=None if largest is None else Estimate(goal.margin * largest, source),
        seconds_to_epsilon=Estimate(updates / rate.value, weakest(source, rate.source)) if rate.value > 0 else None,
        curvature=curvature,
    )


def estimate_table(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    value = estimate.value if math.isfinite(estimate.value) else None
    return {"value": value, "source": estimate.source, "error": estimate.error}
