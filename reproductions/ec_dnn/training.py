"""One training run of the reproduction of EC-DNN: CIFAR-10 on K workers, one of its methods.

As the paper has it: flipped pictures, dropout, momentum 0.9, alpha 0.6, beta 0.4, p a tenth, mu 70 %. Ours: how much
data, how many steps, a narrower network, and the clock: a mini-batch takes what it took one core here, and models go
over a gigabit network.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

from paceline import EnsembleCompression, Equal, ModelAveraging, Network, Shuffled, SimulatedFleet, Task
from paceline.config.named_tasks import lenet
from paceline.core.errors import Diverged
from paceline.core.stateful import check_stateful
from paceline.data.partition import deal
from paceline.delays import Constant
from paceline.engine.build import launch
from paceline.engine.loop import Loop
from paceline.fleets.simulated.fleet import SimulatedWorkers
from paceline.learning.cost import Costs
from paceline.learning.models.server import ModelServer
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import workload_of
from paceline.randomness import stream
from paceline.trace.writing import TraceWriter
from reproductions.datasets.cifar import ChannelsLast, Cifar10, cifar10, few_digits
from reproductions.ec_dnn.evaluation import evaluate, training_losses
from reproductions.models.compiled import lenet as compiled_lenet
from reproductions.models.convolutional import nin
from reproductions.pipeline.resuming import keep, kept
from reproductions.pipeline.samples import packed, right
from reproductions.pipeline.values import rounded

VERSION = 3  # of the campaign's experiment: raise it when settings, arithmetic or data change, not rounding
BATCH = 32
VALIDATED = 2_000  # training pictures that no run trains on
EVALUATIONS = 20  # of the global model in a run, at most: not all communications that come more often
DROPOUT = 0.25
NIN_WIDTH = 1 / 8
SECONDS = {"lenet": 0.01, "nin": 0.05, "digits": 0.01}  # for a mini-batch
GIGABIT = Network(latency=1e-4, bandwidth=125e6)
COSTS = ("compute", "relabelling", "communication")
WEIGHTS = {"ec_s": "simple", "ec_r": "regression", "ec_r_pooled": "regression", "ec_m": "margin"}


@dataclass(frozen=True)
class Size:
    """How much is trained on, how many steps each worker makes, and how many test pictures it is evaluated on.

    With ``in_all`` the steps are those of four workers, and others make as many in all together; the learning rate is
    divided by 10 after each share of them in ``decays``.
    """

    samples: int = 10_000
    steps: int = 500
    followed: int = 1_000  # on the way
    tested: int = 4_000  # at the end
    in_all: bool = False
    decays: tuple[float, ...] = (0.75,)


@dataclass(frozen=True)
class Case:
    """A method, how many workers it has, and how many steps (tau) they make between two communications.

    ``without`` is for the ablation of Fig. 6: "local" lets all steps distil, "diversity" leaves that term out.
    """

    method: str  # s, ma, e, ec_s, ec_r, ec_r_pooled, ec_m
    workers: int = 4
    tau: int = 0
    without: str = ""


@dataclass(frozen=True)
class Swept(Case):
    """The same with another share of samples that are relabelled (mu), or of the steps that distil (p)."""

    relabel: float = 0.7
    compression: float = 0.1


@dataclass(frozen=True)
class Training:
    """One run."""

    data: str
    model: str  # lenet, nin; digits: LeNet on MNIST, of which few pictures have labels
    case: Case
    lr: float
    seed: int
    size: Size

    @property
    def steps(self) -> int:
        """Of each worker; the only one of S-DNN makes as many as four of them."""
        if self.size.in_all:
            return self.size.steps * 4 // self.case.workers
        return self.size.steps * (4 if self.case.method == "s" else 1)

    @property
    def name(self) -> str:
        """For people: what differs between the runs of a campaign."""
        case = self.case
        tau = f"-tau{case.tau}" if case.tau else ""
        without = f"-without-{case.without}" if case.without else ""
        if isinstance(case, Swept):
            without += f"-mu{case.relabel:g}-p{case.compression:g}"
        return (
            f"{self.model}-{case.method}-k{case.workers}{tau}{without}-{self.steps}-steps-lr{self.lr:g}-seed{self.seed}"
        )


class Communication(NamedTuple):
    """The local models were aggregated, after so many steps of each worker, at a virtual time."""

    steps: int
    seconds: float
    costs: Costs  # of all workers together


def run_in_campaign(training: Training, scratch: Path | None = None) -> dict[str, Any]:
    """The same run, with which test pictures the global model gets right, and without losses of local models.

    With a ``scratch`` folder it writes a checkpoint there at each evaluation, and continues an interrupted run.
    """
    data = data_of(training)
    result, model = trained(training, data, scratch)
    curve = [{name: value for name, value in row.items() if name != "losses"} for row in result["curve"]]
    return {**result, "curve": curve, "right": packed(right(model, data.test))}


def run_training(training: Training) -> dict[str, Any]:
    """Train, and evaluate local and global models on the way and at the end."""
    return trained(training, data_of(training))[0]


def data_of(training: Training) -> Cifar10:
    size = training.size
    read = few_digits if training.model == "digits" else cifar10
    return read(training.data, trained=size.samples, validated=VALIDATED, tested=size.tested)


def trained(training: Training, data: Cifar10, scratch: Path | None = None) -> tuple[dict[str, Any], nn.Module]:
    """What a run came to, and its global model."""
    size, workers = training.size, training.case.workers
    followed = data.test[0][: size.followed], data.test[1][: size.followed]
    run = Run(training, network(training, in_campaign=scratch is not None), data.train)
    curve: list[dict[str, Any]] = []
    problem = None
    if (before := kept(scratch)) is not None:
        run.restore(before["run"])
        curve = list(before["curve"])
    try:
        for at in run.communications():
            if at.steps * EVALUATIONS >= training.steps * (len(curve) + 1) or at.steps == training.steps:
                seen = evaluate(run.server.model, run.members, followed)
                costs = {name: rounded(getattr(at.costs, name) / workers) for name in COSTS}
                row = {"steps": at.steps, "seconds": rounded(at.seconds), **costs, **seen._asdict()}
                curve.append({**row, "losses": [rounded(loss) for loss in seen.losses]})
                keep(scratch, {"run": run.state(), "curve": curve})
    except Diverged as diverged:
        problem = str(diverged)
    return {"problem": problem, "curve": curve, **_final(run, data)}, run.server.model


class Run:
    """The pieces that ``paceline.train`` is made of, put together so that the local models can be evaluated."""

    def __init__(self, training: Training, model: nn.Module, pictures: tuple[Tensor, Tensor]) -> None:
        case, seed = training.case, training.seed
        self.strategy = strategy_of(case, training.steps)
        task = Task(model, cross_entropy, pictures)
        shards = deal(Equal(), task.training_samples(), case.workers, BATCH, stream(seed, "partition"))
        recipe = Recipe(
            lambda parameters: SGD(parameters, lr=training.lr, momentum=0.9, weight_decay=1e-4),
            lambda optimizer: MultiStepLR(
                optimizer, [int(training.steps * d) for d in training.size.decays], gamma=0.1
            ),
        )
        batches = Shuffled().open(shards, BATCH, seed)
        fleet = fleet_of(training)
        workers, server = launch(
            self.strategy, fleet, workload_of(task, shards, BATCH), recipe, batches=batches, seed=seed
        )
        assert isinstance(server, ModelServer)
        assert isinstance(workers, SimulatedWorkers)
        self.workers, self.server = workers, server
        self._loop = Loop(self.strategy, workers, server, TraceWriter(None, workers.about))
        self._steps = 0
        self._parts = check_stateful(
            {
                "server": server, "sampling": batches, "crew": workers, "contributions": server.contributions,
                "loop": self._loop,
            }
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """After a communication: with it another run of the same training goes on with the same bits."""
        return {"steps": self._steps, **{name: part.state() for name, part in self._parts.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        for name, part in self._parts.items():
            part.restore(state[name])
        self._loop.check_restored()

    @property
    def members(self) -> list[nn.Module]:
        """The local models as they were handed in: model averaging leaves them so until they are trained again."""
        return [trainer.model for trainer in self.server.trainers]

    def communications(self) -> Iterator[Communication]:
        """One after each aggregation; those that only follow a compression are left out."""
        strategy, workers = self.strategy, self.workers
        twice = isinstance(strategy, EnsembleCompression) and strategy.exchanges_twice
        if self.server.updates == strategy.rounds:  # it was interrupted after that
            return
        for update in self._loop:
            self._steps += strategy.work(update.version).units
            if not (twice and update.version % 2):
                yield Communication(self._steps, update.at, workers.costs)
            if self.server.updates == strategy.rounds:
                return


def strategy_of(case: Case, steps: int) -> ModelAveraging | EnsembleCompression:
    """The rule of a method; S-DNN is an average of one, and E-DNN an ensemble that is only evaluated on the way."""
    if case.method in ("s", "ma"):
        return ModelAveraging(every=case.tau or steps // 5, steps=steps)
    if case.method == "e":
        every = steps // 10
        return EnsembleCompression(
            every=every, steps=steps, compression_steps=0, distillation=0, diversity=0, relabel=0
        )
    whole = EnsembleCompression(
        every=case.tau,
        steps=steps,
        weights=WEIGHTS[case.method],  # type: ignore[arg-type]
        compression_steps=case.tau if case.without == "local" else None,
        diversity=0.0 if case.without else 0.6,
        pooled=case.method == "ec_r_pooled",
    )
    if isinstance(case, Swept):
        return replace(whole, relabel=case.relabel, compression_steps=max(1, round(case.compression * case.tau)))
    return whole


def fleet_of(training: Training) -> SimulatedFleet:
    """Workers of equal speed. Those of S-DNN and E-DNN have nothing to send but the last model."""
    alone = training.case.method in ("s", "e")
    delay = Constant(SECONDS[training.model])
    return SimulatedFleet(delay, workers=training.case.workers, network=Network() if alone else GIGABIT)


def network(training: Training, *, in_campaign: bool = False) -> nn.Module:
    torch.manual_seed(training.seed)
    if training.model == "nin":
        return nn.Sequential(Flipped(), ChannelsLast(), nin(NIN_WIDTH, DROPOUT))
    colours, pixels = (1, 28) if training.model == "digits" else (3, 32)
    if in_campaign:
        own = compiled_lenet(DROPOUT, colours, pixels)
    else:
        own = nn.Sequential(ChannelsLast(), lenet(DROPOUT, colours=colours, pixels=pixels))
    return own if training.model == "digits" else nn.Sequential(Flipped(), *own)  # mirrored digits are no digits


class Flipped(nn.Module):
    """In training, every other picture is its mirror image, at random; else all are as they are."""

    def forward(self, pictures: Tensor) -> Tensor:
        if not self.training:
            return pictures
        mirrored = torch.rand(len(pictures), 1, 1, 1) < 0.5
        return torch.where(mirrored, pictures.flip(3), pictures)


def _final(run: Run, data: Cifar10) -> dict[str, Any]:
    """Errors on test and validation pictures, and which local model is chosen by which loss."""
    model, members = run.server.model, run.members
    test, validation = (evaluate(model, members, part) for part in (data.test, data.validation))
    losses = training_losses(members, data.train)
    by_training, by_validation = (
        min(range(len(members)), key=each.__getitem__) for each in (losses, validation.losses)
    )
    return {
        "error_g": test.error,
        "error_l": test.errors[by_training],
        "error_l_validated": test.errors[by_validation],
        "validation_error_g": validation.error,
        "local": by_training,
        "errors": test.errors,
        "training_losses": [rounded(loss) for loss in losses],
        "validation_losses": [rounded(loss) for loss in validation.losses],
        "weights": [rounded(each) for each in getattr(model, "weights", torch.empty(0)).tolist()],
    }
