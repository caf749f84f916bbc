"""Is there room in a cluster for what is wanted? What no waiting will make possible is refused at once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.config.toml import nearest
from paceline.core.errors import ConfigError

NUMBER = "ray.io/node-id"  # the label that Ray itself gives to each node
CONDITIONS = ("!", "in(")  # how a label's value begins that is none


def check_room(each: Mapping[str, float], workers: int, nodes: Sequence[Mapping[str, Any]], which: str = "") -> None:
    """Refuse at once what no waiting will make possible."""
    for name, amount in each.items():
        amounts = [node["Resources"].get(name, 0) for node in nodes]
        total, largest = sum(amounts), max(amounts, default=0)
        if amount > largest:
            raise ConfigError(
                f"a worker of {shown(each)} fits no node{which} of the cluster: none has more than {largest:g} of "
                f"{name}"
            )
        if amount * workers > total:
            raise ConfigError(
                f"{workers} workers of {shown(each)} need {amount * workers:g} of {name}, and the cluster has "
                f"{total:g} on {len(nodes)} nodes{which}: {amount * workers - total:g} is missing"
            )


def check_labels(
    each: Mapping[str, float], labels: Sequence[Mapping[str, str]], nodes: Sequence[Mapping[str, Any]]
) -> None:
    """Nodes with the labels must be there, with room for the workers that ask for them."""
    for (name, value), workers in Counter(pair for label in labels for pair in label.items()).items():
        if value.startswith(CONDITIONS):
            continue  # only Ray knows what fits it
        having = [node for node in nodes if node["Labels"].get(name) == value]
        if not having:
            known = listed(node["Labels"] for node in nodes)
            missing = f"no node of the cluster has the label {name}={value}, wanted for {workers} of the workers"
            raise ConfigError(
                f"{missing}: {nearest(f'{name}={value}', known)}" if known
                else f"{missing}: its nodes have no labels, which ray start --labels {name}={value} would give them"
            )  # fmt: skip
        check_room(each, workers, having, f" labelled {name}={value}")


def listed(labels: Iterable[Mapping[str, str]]) -> list[str]:
    return sorted({f"{name}={value}" for label in labels for name, value in label.items() if name != NUMBER})


def shown(resources: Mapping[str, float]) -> str:
    """Amounts by name, without those that Ray counts for itself."""
    internal = ("node:", "object_store", "bundle")
    own = {name: amount for name, amount in resources.items() if not (name.startswith(internal) or "_group_" in name)}
    told = [
        f"{amount / 2**30:.3g} GiB {name}" if name == "memory" else f"{amount:g} {name}" for name, amount in own.items()
    ]
    return ", ".join(told) or "nothing"
