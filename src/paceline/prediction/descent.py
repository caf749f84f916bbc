"""What an optimizer does with a gradient, as far as stability depends on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ConfigError
from paceline.theory.stability.net_weights import NetWeights, net_critical_step, net_decay, net_mean_square_step


@dataclass(frozen=True)
class Descent:
    """``torch.optim.SGD``: its momentum, dampening, Nesterov's form, and weight decay."""

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
        """The largest step times curvature that is stable in mean square."""
        return net_mean_square_step(weights, self.momentum, nesterov=self.nesterov) / self.gain

    def limit_in_the_mean(self, weights: NetWeights) -> float:
        """The largest step times curvature that is stable in the mean, which is not enough where ages vary."""
        return net_critical_step(weights, self.momentum, nesterov=self.nesterov) / self.gain

    def decay(self, scaled_step: float, weights: NetWeights) -> float:
        """By which factor an update shrinks the mean error in a direction, for a step times its curvature."""
        return net_decay(scaled_step * self.gain, weights, self.momentum, nesterov=self.nesterov)

    def sharpness(self, curvature: float) -> float:
        """The curvature that the steps meet: that of the loss, and of the weight decay."""
        return curvature + self.weight_decay


def descent_of(name: str, options: Mapping[str, Any]) -> Descent | None:
    """Of an optimizer by its name in torch, or None if it scales its steps by itself, and nothing is known of it."""
    if name != "SGD":
        return None
    known = {key: options[key] for key in ("momentum", "nesterov", "dampening", "weight_decay") if key in options}
    return Descent(**known)
