"""The three samplers: fine-pruning, its control, and its rival."""

from collections.abc import Sequence
from typing import Literal

from paceline.pruning.plan import Attenuate, Schedule
from paceline.pruning.pruning_sampler import PruningSampler
from paceline.pruning.rules import FineRule, RandomRule, SoftRule
from paceline.pruning.selection import Ties


class FinePruning(PruningSampler):
    """Leave out, in some epochs of each window, the samples whose loss is most often above that of their batch.

        sampler = FinePruning(samples=len(dataset), window=60, start=30, block=5, count=3, fraction=0.3)
        loader = DataLoader(WithIndices(dataset), batch_size=128, sampler=sampler)
        for epoch in range(200):
            sampler.set_epoch(epoch)
            for indices, (inputs, targets) in loader:
                losses = cross_entropy(model(inputs), targets, reduction="none")
                sampler.observe(indices, losses)
                ...

    samples      how many the data set has
    window       epochs after which counting begins anew; or ``windows``, the periods of the learning rate, one by one
    start        the position in a window from which epochs are pruned; each window divides it by ``attenuation``
    block, count pruned are ``count`` epochs of every ``block``
    fraction     of the samples that a pruned epoch leaves out
    attenuate    "window", or "epoch": the algorithm as it is printed
    tolerance    a sample stands out if its loss is this share above the mean of its batch, or more
    ties         who of equals is left out: "random", by ``seed``, or by "index"
    until        the last epoch (from 1) that may be pruned
    prune        "high": those that stand out most, or "low": those that stand out least
    rank, ranks  this process, and how many share the samples; leave them where the loader shards (Accelerate)

    The rule is ``FineRule``, the plan ``Schedule``. Li et al., *Data Fine-Pruning*, 2019.
    """

    def __init__(
        self, *, samples: int, window: int | None = None, windows: Sequence[int] = (), start: int, block: int,
        count: int, fraction: float, attenuation: float = 1, attenuate: Attenuate = "window",
        until: int | None = None, tolerance: float = 0.0, ties: Ties = "random",
        prune: Literal["high", "low"] = "high", seed: int = 0, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        schedule = Schedule(start, block, count, window, tuple(windows), attenuation, attenuate, until)
        super().__init__(FineRule(schedule, fraction, tolerance, ties, prune), samples, seed, rank, ranks)


class RandomPruning(PruningSampler):
    """The control for ``FinePruning``: in the same epochs, leave out as many samples, but drawn by lot."""

    def __init__(
        self, *, samples: int, window: int | None = None, windows: Sequence[int] = (), start: int, block: int,
        count: int, fraction: float, attenuation: float = 1, attenuate: Attenuate = "window",
        until: int | None = None, seed: int = 0, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        schedule = Schedule(start, block, count, window, tuple(windows), attenuation, attenuate, until)
        super().__init__(RandomRule(schedule, fraction), samples, seed, rank, ranks)


class SoftPruning(PruningSampler):
    """Skip samples whose last loss is below the mean with probability ``fraction``; weigh the others of them more.

        losses = cross_entropy(model(inputs), targets, reduction="none")
        sampler.observe(indices, losses)
        (losses * sampler.weights(indices)).mean().backward()

    The rule is ``SoftRule``. How many samples an epoch has is known when it begins, not before: the plan says at most.
    """

    def __init__(
        self, *, samples: int, fraction: float, until: int | None = None, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(SoftRule(fraction=fraction, until=until), samples, seed, rank, ranks)
