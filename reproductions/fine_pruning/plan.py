"""What the reproduction of fine-pruning trains: sizes, ways to choose the samples, and the variants that are tried.

The paper names none of its settings. Ours are windows along the learning rate and a share of 15 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.pruning.rules import FineRule, RandomRule, SoftRule
from paceline.pruning.schedule import Schedule
from reproductions.fine_pruning.training import CURVE, Choice, Size, Training
from reproductions.pipeline.plan import Plan

ARMS = ("regular", "pruned", "random", "soft", "shortened")
Results = Mapping[Training, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class FinePruningPlan(Plan):
    """Sizes for each network, seeds, and the schedule of the pruned epochs, one for all."""

    sizes: Mapping[str, Size]
    seeds: Mapping[str, tuple[int, ...]]
    fine: FineRule
    soft: SoftRule
    late: int  # the last epoch that variants with full data at the end prune
    searched: Size
    search_seeds: tuple[int, ...]
    timed: tuple[int, int]  # samples of an epoch, and rounds

    @property
    def share(self) -> float:
        """Of the samples that is left."""
        size = self.sizes["lenet"]
        return 1 - self.fine.plan(size.samples, size.epochs).saved

    def seeds_of(self, model: str) -> list[int]:
        """The seeds of a network's runs."""
        return [self.seed + seed for seed in self.seeds[model]]

    @property
    def seeds_of_search(self) -> list[int]:
        return [self.seed + seed for seed in self.search_seeds]

    def run(self, data: str, model: str, arm: str, seed: int) -> Training:
        """One of the five ways to train."""
        rules: dict[str, Choice | None] = {
            "pruned": self.fine,
            "random": as_random(self.fine),
            "soft": self.soft,
        }
        share = self.share if arm == "shortened" else 1.0
        return Training(data, model, seed, self.sizes[model], rules.get(arm), share)

    def arms(self, data: str) -> list[tuple[str, str, Training]]:
        """All of them, longest first: (network, arm, run)."""
        listed = [
            (model, arm, self.run(data, model, arm, seed))
            for model in self.seeds
            for seed in self.seeds_of(model)
            for arm in ARMS
        ]
        return sorted(listed, key=lambda each: -cost(each[2]))

    def variants(self) -> dict[str, Choice | None]:
        """What the search tries, beside shortened training: all of them save at least as much as the schedule."""
        fine, late = self.fine, ending(self.fine, self.late, self.searched)
        return {
            "paper": fine,
            "paper, full data at the end": late,
            "paper, tolerance 1": replace(fine, tolerance=1.0),
            "easy ones pruned": replace(fine, prune="low"),
            "easy ones pruned, full data at the end": replace(late, prune="low"),
            "random": as_random(fine),
            "random, full data at the end": as_random(late),
            "soft, weighed": self.soft,
        }

    def search(self, data: str) -> list[tuple[str, Training]]:
        """The runs of the search, evaluated on validation samples, with seeds of their own."""
        made = [
            (name, Training(data, "lenet", seed, self.searched, rule))
            for name, rule in self.variants().items()
            for seed in self.seeds_of_search
        ]
        cut = [
            ("shortened", Training(data, "lenet", seed, self.searched, None, self.share))
            for seed in self.seeds_of_search
        ]
        return made + cut

    def confirmed(self, data: str, name: str) -> list[Training]:
        """The chosen variant at full size, on test samples and the seeds of the five ways."""
        rule = self.variants()[name]
        return [Training(data, "lenet", seed, self.sizes["lenet"], rule) for seed in self.seeds_of("lenet")]


def as_random(rule: FineRule) -> RandomRule:
    """The control of a rule."""
    return RandomRule(rule.schedule, rule.fraction)


def ending(rule: FineRule, until: int, size: Size) -> FineRule:
    """The same saving, or a little more, without pruning after epoch ``until``: more samples in fewer epochs."""
    wanted = rule.plan(size.samples, size.epochs).saved
    late = replace(rule, schedule=replace(rule.schedule, until=until))
    epochs = len(late.plan(size.samples, size.epochs).pruned_epochs)
    return replace(late, fraction=-(-wanted * size.epochs * 1000 // epochs) / 1000)


def cost(training: Training) -> float:
    """Of a run, in passes of LeNet."""
    size = training.size
    trained = size.samples * size.epochs * training.share
    evaluated = 0.35 * size.tested * (size.last_epochs + size.epochs / CURVE)
    return (trained + evaluated) * (1.0 if training.model == "lenet" else 2.5)


SMALL = FinePruningPlan(
    name="scaled down",
    sizes={"lenet": Size(4_000, 30, tested=5_000), "vgg": Size(1_200, 30, tested=2_500)},
    seeds={"lenet": (0, 1, 2), "vgg": (0,)},
    fine=FineRule(Schedule(3, 4, 3, windows=(9, 9, 6, 6)), fraction=0.3),
    soft=SoftRule(0.3, until=26),
    late=24,
    searched=Size(1_200, 30, tested=3_000, validation=True),
    search_seeds=(10, 11),
    timed=(2_560, 20),
)
QUICK = FinePruningPlan(
    name="quick",
    sizes={"lenet": Size(1_000, 10, tested=1_000, last_epochs=3), "vgg": Size(300, 10, tested=500, last_epochs=3)},
    seeds={"lenet": (0,), "vgg": (0,)},
    fine=FineRule(Schedule(1, 1, 1, windows=(3, 3, 2, 2)), fraction=0.25),
    soft=SoftRule(0.3, until=8),
    late=8,
    searched=Size(300, 10, tested=500, last_epochs=3, validation=True),
    search_seeds=(10,),
    timed=(2_560, 3),
)
