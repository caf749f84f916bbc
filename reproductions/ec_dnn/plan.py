"""How much of EC-DNN is trained: the plans, and the runs that each comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from paceline import EnsembleCompression
from reproductions.ec_dnn.training import BATCH, Case, Size, Swept, Training, strategy_of
from reproductions.pipeline.plan import Plan, search

COMPRESSING = ("ec_s", "ec_r", "ec_m")
REGRESSION = ("ec_r", "ec_r_pooled")  # fitted on all relabelled samples, and so the longest runs
FIRST_SEED, FEWEST = 0, 4  # seed and workers of the runs that learning rate and tau are chosen by
FORWARD, TRAINED = 0.00005, 0.00018  # seconds of one core for a picture of LeNet, on the machine of docs/results
NIN_TIMES = 5.0

Results = Mapping[Training, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class EcDnnPlan(Plan):
    """What to train.

    learning_rates candidates; the one with which S-DNN, in as many steps as one worker makes, reaches the smallest
                   validation error is used by all methods of that network
    further        candidates that are tried one by one, while the smallest or the largest so far is the best
    averaging      tau of MA-DNN, and ``compressing`` of EC-DNN-S: candidates; the one with the smallest validation
                   error of the global model, 4 workers and seed 0, is used for all workers and seeds
    by_margin      tau of EC-DNN-M, and ``regressing`` of EC-DNN-R: candidates, chosen among in the same way; without
                   any they use that of EC-DNN-S
    influence      further tau of EC-DNN-S, for Fig. 5
    swept          the seeds for which other p and mu of the paper's Table 1 are tried, with EC-DNN-S and 4 workers
    grids          numbers of workers, and the seeds for which all methods are run with so many; the first is 4 workers
    nin            the size of the runs of the narrow NiN, if there are any
    task           lenet on CIFAR-10, or digits: MNIST with few labels
    """

    size: Size
    learning_rates: Sequence[float]
    averaging: Sequence[int]
    compressing: Sequence[int]
    by_margin: Sequence[int] = ()
    regressing: Sequence[int] = ()
    influence: Sequence[int] = ()
    further: Sequence[float] = ()
    grids: Sequence[tuple[int, Sequence[int]]] = ((4, (0, 1, 2)), (8, (0, 1, 2)))
    ablation: bool = True
    swept: Sequence[int] = ()
    nin: Size | None = None
    task: str = "lenet"

    @property
    def sizes(self) -> dict[str, Size]:
        return {self.task: self.size} | ({} if self.nin is None else {"nin": self.nin})

    @property
    def seeds(self) -> Sequence[int]:
        """Of the runs with 4 workers."""
        return self.grids[0][1]


# Under a minute of two cores.
QUICK = EcDnnPlan(
    name="reduced run",
    size=Size(samples=2_000, steps=160, followed=500, tested=1_000),
    learning_rates=(0.02,),
    averaging=(16,),
    compressing=(32,),
    grids=((4, (0,)),),
    ablation=False,
)
# About 40 minutes of one core.
SMALL = EcDnnPlan(
    name="scaled down",
    size=Size(),
    learning_rates=(0.005, 0.01, 0.02, 0.05),
    averaging=(1, 16, 50),
    compressing=(50, 100),
    influence=(250,),
    nin=Size(samples=5_000, steps=300, followed=500, tested=2_000),
)
# Near convergence: all pictures but those for validation, 40 epochs. Only what the next steps use is relabelled here,
# though the clock is charged with all of it; but for a regression, which is fitted on all of it: with a tau of 16 a run
# of EC-DNN-R would take one and a half hours of one core, so that it has the larger ones only.
FULL = EcDnnPlan(
    name="40 epochs of 48,000 pictures",
    size=Size(samples=48_000, steps=15_000, tested=10_000, in_all=True, decays=(0.5, 0.75)),
    learning_rates=(0.01, 0.02, 0.05),
    further=(0.001, 0.002, 0.005, 0.1),
    averaging=(16, 64, 256, 1_000),
    compressing=(16, 64, 256, 1_000),
    by_margin=(16, 64, 256, 1_000),
    regressing=(64, 256, 1_000),
    swept=(FIRST_SEED,),
)
# The task of few labels, where ensembles are known to help: the networks know all 1,000 pictures by heart in the end.
DIGITS = EcDnnPlan(
    name="MNIST with 1,000 labels, 77 epochs",
    task="digits",
    size=Size(samples=1_000, steps=600, tested=10_000, in_all=True, decays=(0.5, 0.75)),
    learning_rates=(0.01, 0.02, 0.05),
    further=(0.001, 0.002, 0.005, 0.1),
    averaging=(16, 64, 256),
    compressing=(16, 64, 256),
    grids=((4, (0, 1, 2, 3, 4)),),
    swept=(0, 1, 2, 3, 4),
)


def tuning(plan: EcDnnPlan, data: str, results: Results = MappingProxyType({})) -> list[Training]:
    """The runs by which the learning rates are chosen, as far as these results call for them.

    They are of S-DNN, which makes four times the steps of its ``Size``.
    """
    if len(plan.learning_rates) == 1:
        return []
    return [
        Training(data, model, Case("s", workers=1), lr, plan.seed + FIRST_SEED, _of_one_worker(size))
        for model, size in plan.sizes.items()
        for lr in _searched(plan, model, results)[0]
    ]


def _searched(plan: EcDnnPlan, model: str, results: Results) -> tuple[list[float], float | None]:
    """The learning rates to try for a network, and the best one once all of them were."""
    scores = {run.lr: _validation_error(result) for run, result in results.items() if run.model == model}
    return search(plan.learning_rates, plan.further, scores)


def _of_one_worker(size: Size) -> Size:
    """So that S-DNN makes as many steps as one worker of four."""
    return replace(size, steps=size.steps // 4)


def choose_learning_rates(plan: EcDnnPlan, results: Results) -> dict[str, float]:
    """For each network, the learning rate of the smallest validation error; of equal ones the smaller."""
    if len(plan.learning_rates) == 1:
        return dict.fromkeys(plan.sizes, plan.learning_rates[0])
    chosen = {model: _searched(plan, model, results)[1] for model in plan.sizes}
    return {model: lr for model, lr in chosen.items() if lr is not None}


@dataclass(frozen=True)
class Taus:
    """The steps between two communications that were chosen: of MA-DNN and EC-DNN-S, and of -M and -R if by them."""

    averaging: int
    compressing: int
    by_margin: int | None = None
    regressing: int | None = None

    def of(self, method: str) -> int:
        """Of a method that compresses its ensembles."""
        own = {"ec_m": self.by_margin, "ec_r": self.regressing, "ec_r_pooled": self.regressing}.get(method)
        return self.compressing if own is None else own


@dataclass(frozen=True)
class Runs:
    """Names the runs of a plan, given where the data are and the learning rates that were chosen."""

    plan: EcDnnPlan
    data: str
    learning_rates: Mapping[str, float]

    def run(self, case: Case, seed: int, model: str | None = None) -> Training:
        """One run; ``seed`` counts from that of the plan."""
        plan = self.plan
        model = model or plan.task
        return Training(self.data, model, case, self.learning_rates[model], plan.seed + seed, plan.sizes[model])

    def first(self) -> list[Training]:
        """Every tau, with 4 workers and seed 0."""
        plan = self.plan
        cases = [Case("ma", FEWEST, tau) for tau in plan.averaging]
        cases += [Case("ec_s", FEWEST, tau) for tau in (*plan.compressing, *plan.influence)]
        cases += [Case("ec_m", FEWEST, tau) for tau in plan.by_margin]
        cases += [Case("ec_r", FEWEST, tau) for tau in plan.regressing]
        return [self.run(case, FIRST_SEED) for case in (*cases, Case("e", FEWEST), Case("s", 1))]

    def others(self, taus: Taus) -> list[Training]:
        """Each once, the most telling first: NiN, the ablation and the pooled regression come behind the first grid."""
        plan = self.plan
        grids = [[self.run(case, seed) for seed in seeds for case in rows(k, taus)] for k, seeds in plan.grids]
        listed = [*grids[0], *self.of_nin()]
        if plan.ablation:
            listed += [self.run(case, seed) for seed in plan.seeds for case in ablation(taus)]
            listed.append(self.run(pooled(taus), FIRST_SEED))
        for (workers, _), grid in zip(plan.grids[1:], grids[1:], strict=True):
            rare = Case("ma", workers, max(plan.averaging))  # where averages may hurt, whatever was chosen
            listed += [*grid, self.run(rare, FIRST_SEED)]
        swept = [case for case in sweeps(taus).values() if not is_chosen(case)]
        listed += [self.run(case, seed) for seed in plan.swept for case in swept]
        return list(dict.fromkeys(listed))

    def of_nin(self) -> list[Training]:
        if self.plan.nin is None:
            return []
        steps = self.plan.nin.steps
        cases = (Case("ma", FEWEST, steps // 10), Case("e", FEWEST), Case("ec_s", FEWEST, steps // 5))
        return [self.run(case, FIRST_SEED, "nin") for case in cases]


def rows(workers: int, taus: Taus) -> list[Case]:
    """Those of the paper's Table 2."""
    compressing = [Case(method, workers, taus.of(method)) for method in COMPRESSING]
    return [Case("ma", workers, taus.averaging), Case("e", workers), *compressing, Case("s", 1)]


def ablation(taus: Taus) -> list[Case]:
    """Cases 1 and 2 of Fig. 6; case 3 is the whole method."""
    return [Case("ec_s", FEWEST, taus.compressing, without) for without in ("local", "diversity")]


def sweeps(taus: Taus) -> dict[tuple[str, float], Swept]:
    """The values of Table 1 that the paper tried for CIFAR-10 and did not choose; it chose p = 0.1 and mu = 0.7."""
    whole = Swept("ec_s", FEWEST, taus.compressing)
    return {("p", p): replace(whole, compression=p) for p in (0.05, 0.15, 0.2)} | {
        ("mu", mu): replace(whole, relabel=mu) for mu in (0.3, 0.5)
    }


def is_chosen(case: Swept) -> bool:
    """Is it what the paper chose after all? 10 and 15 % of 16 steps are two steps."""
    tried, chosen = (strategy_of(each, case.tau) for each in (case, Case(case.method, case.workers, case.tau)))
    assert isinstance(tried, EnsembleCompression)
    assert isinstance(chosen, EnsembleCompression)
    return (tried.compressed, tried.relabel) == (chosen.compressed, chosen.relabel)


def pooled(taus: Taus) -> Case:
    return Case("ec_r_pooled", FEWEST, taus.of("ec_r_pooled"))


def choose_taus(runs: Runs, results: Results) -> Taus:
    """The tau of the smallest validation error; of equal ones the larger."""

    def best(method: str, candidates: Sequence[int]) -> int:
        reached = {t: _validation_error(results[runs.run(Case(method, FEWEST, t), FIRST_SEED)]) for t in candidates}
        return min(candidates, key=lambda tau: (reached[tau], -tau))

    plan = runs.plan
    return Taus(
        best("ma", plan.averaging),
        best("ec_s", plan.compressing),
        best("ec_m", plan.by_margin) if plan.by_margin else None,
        best("ec_r", plan.regressing) if plan.regressing else None,
    )


def _validation_error(result: Mapping[str, Any]) -> float:
    error = result["validation_error_g"]
    return float("inf") if error is None else float(error)


def cost(training: Training) -> float:
    """Seconds of one core, about."""
    case, size = training.case, training.size
    trained = training.steps * case.workers * BATCH * TRAINED
    evaluated = (10 * size.followed + size.tested + size.samples) * case.workers
    forwards = evaluated + (_relabelled(training) if case.tau and case.method != "ma" else 0.0)
    return (trained + forwards * FORWARD) * (NIN_TIMES if training.model == "nin" else 1.0)


def _relabelled(training: Training) -> float:
    """How many pictures are passed through how many models: those that are used, and for a regression all."""
    case, own = training.case, training.size.samples // training.case.workers
    mu, p = (case.relabel, case.compression) if isinstance(case, Swept) else (0.7, 0.1)
    used = [own if case.method in REGRESSION else min(p * case.tau * BATCH, own), min((1 - p) * case.tau * BATCH, own)]
    return (training.steps / case.tau - 1) * mu * sum(used) * case.workers**2
