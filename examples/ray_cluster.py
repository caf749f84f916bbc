"""Train on a Ray cluster of three nodes, and lose one of them half-way.

    pip install 'paceline[ray]'
    python examples/ray_cluster.py

The nodes are all on this machine here, each with a raylet and an object store of its own. On a cluster of yours only
the address is another one: paceline.RayFleet(workers=3, address="10.0.0.1:6379"). See docs/cluster.md.
"""

import logging
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster
from sklearn.datasets import load_digits

import paceline
from paceline.delays import Constant

UPDATES = 300


def digits() -> paceline.Task:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    return paceline.Task(
        torch.nn.Linear(64, 10),
        torch.nn.functional.cross_entropy,
        train=(x[:1500], y[:1500]),
        test=(x[1500:], y[1500:]),
    )


class Losing:
    """Evaluates the model as Paceline would, and kills a node without a word when training is half-way."""

    def __init__(self, node: Any, test: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.node, self.test, self.evaluations = node, test, 0

    def __call__(self, model: torch.nn.Module) -> dict[str, float]:
        self.evaluations += 1
        if self.evaluations == 6:  # of 11: before training, and after each tenth of it
            self.node.kill_raylet()
        inputs, targets = self.test
        outputs = model(inputs)
        right = (outputs.argmax(1) == targets).float().mean()
        return {"loss": torch.nn.functional.cross_entropy(outputs, targets).item(), "accuracy": right.item()}


def main() -> None:
    logging.basicConfig(format="  %(message)s")
    # a head for the server, with a second of patience for nodes that do not answer, and three nodes for one worker each
    patience = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 0}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": patience},
    )
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")  # its obituaries come anyway
    try:
        *_, doomed = [cluster.add_node(num_cpus=1, object_store_memory=10**8) for _ in range(3)]
        # worker 2 is made slow; none shares the server's memory, as if the nodes were on machines of their own
        fleet = paceline.RayFleet(
            workers=3, address=cluster.address, share_memory=False,
            slow={0: Constant(0.02), 1: Constant(0.02), 2: Constant(0.06)},
        )  # fmt: skip
        task = digits()
        run = paceline.train(
            replace(task, evaluate=Losing(doomed, task.test)),
            strategy=paceline.LiveCompensation(quorum=2, blocks=4),
            fleet=fleet,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            stop=paceline.Stop(updates=UPDATES),
            every=paceline.Every(updates=UPDATES // 10),
            progress=False,
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
    left = [fact.worker for fact in run.trace if isinstance(fact, paceline.Left)]
    print(f"workers that were lost: {left}")
    print(f"{run.history[-1].updates} updates, accuracy {run.history[-1].accuracy:.1%}, ended by {run.ended}")


if __name__ == "__main__":
    main()
