"""The time of EC-DNN and of averaging for other networks and sizes of model, from what runs counted.

A trade of messages for computing cannot be judged on one network. A run counts steps, mini-batches that are passed
forward to relabel, and messages with a model each; what these take follows from the network and the size of the model.
So nothing is run again: the models, and so the errors, are those of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import Network
from reproductions.ec_dnn.training import GIGABIT, SECONDS

LATENCY = 1e-4
NETWORKS = {"10 Gbit/s": 1.25e9, "1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}  # bytes a second
PARAMETERS = {"62 thousand": 62_006, "967 thousand": 966_986, "9.2 million": 9_225_610}  # LeNet, NiN, VGG-11
BYTES = 4
FORWARD = 1 / 3  # of a step, for a mini-batch that is only passed forward


@dataclass(frozen=True)
class Counts:
    """What one worker did in a run: training steps, mini-batches passed forward, messages with a model."""

    steps: float
    forwards: float
    messages: float

    def seconds(self, bandwidth: float, parameters: int, step: float = SECONDS["lenet"]) -> float:
        """With a step of so many seconds, whatever the model: larger ones are given faster machines."""
        return (
            self.steps * step
            + self.forwards * step * FORWARD
            + self.messages * (LATENCY + BYTES * parameters / bandwidth)
        )


def counts(costs: Mapping[str, float], parameters: int = PARAMETERS["62 thousand"]) -> Counts:
    """From the seconds that a run of LeNet was charged with on a gigabit network."""
    step, message = SECONDS["lenet"], message_seconds(GIGABIT, parameters)
    relabelled = costs["relabelling"] / (step * FORWARD)
    return Counts(costs["compute"] / step, relabelled, costs["communication"] / message)


def message_seconds(network: Network, parameters: int) -> float:
    assert network.bandwidth is not None
    return network.latency + BYTES * parameters / network.bandwidth


def times(runs: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The seconds of whole runs, by their label, for each network and size."""
    counted = {label: counts(costs) for label, costs in runs.items()}
    return [
        {
            "network": network, "parameters": size,
            **{label: each.seconds(NETWORKS[network], PARAMETERS[size]) for label, each in counted.items()},
        }
        for network in NETWORKS
        for size in PARAMETERS
    ]  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As Markdown, in seconds."""
    labels = [name for name in rows[0] if name not in ("network", "parameters")]
    lines = ["| network | parameters | " + " | ".join(labels) + " |", "|---|---|" + "---|" * len(labels)]
    for row in rows:
        values = " | ".join(f"{row[label]:.3g}" for label in labels)
        lines.append(f"| {row['network']} | {row['parameters']} | {values} |")
    return "\n".join(lines) + "\n"
