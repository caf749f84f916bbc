"""What all reproductions share: plans and their seeds, the choice of a learning rate, what kept results depend on."""

import sys
from pathlib import Path

import pytest

import reproductions.lgc.training
from reproductions.ec_dnn import plan as ec_dnn
from reproductions.fine_pruning import plan as fine_pruning
from reproductions.group_sgd import plan as group_sgd
from reproductions.lgc import plan as lgc
from reproductions.lgc.timing import timings
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import listed, of_plan, seeds_in_words, within
from reproductions.pipeline.figures import blank, write_drawings
from reproductions.pipeline.fingerprint import files_behind
from reproductions.pipeline.paper import Paper
from reproductions.pipeline.plan import Options, Plan, best_learning_rate
from reproductions.pipeline.runs import Runner
from reproductions.sdde.experiment import ensemble, error_row


def card_of(plan: Plan, data: str, runner: Runner) -> Card:
    return Card("some-paper", {"plan": plan.name, "seed": plan.seed, "data": data, "work": runner.work}, [])


PAPER = Paper("some-paper", Plan(name="small"), Plan(name="large"), card_of)


def test_options_choose_the_plan_its_seed_and_where_results_are_kept(tmp_path: Path) -> None:
    assert PAPER.reproduce(Options(tmp_path, quick=True, seed=7)).settings == {
        "plan": "small", "seed": 7, "data": str(tmp_path), "work": None,
    }  # fmt: skip
    assert PAPER.reproduce(Options(work=tmp_path)).settings == {
        "plan": "large", "seed": 0, "data": str(Path.cwd()), "work": tmp_path,
    }  # fmt: skip


def test_the_seed_is_added_to_those_of_all_runs() -> None:
    def seeds_of_lgc(seed: int) -> list[int]:
        plan = lgc.LgcPlan(name="", seed=seed, size=lgc.SMALL.size, learning_rates=(0.1, 0.2), grids=lgc.SMALL.grids)
        runs = lgc.Runs(plan, "DIR", {model: lgc.Chosen(0.1, 0.05) for model in plan.models})
        return [run.seed for run in (*lgc.tuning(plan, "DIR"), *runs.all())] + [t.seed for t in timings(3, 10, seed)]

    def seeds_of_ec_dnn(seed: int) -> list[int]:
        fields = {**vars(ec_dnn.SMALL), "seed": seed}
        plan = ec_dnn.EcDnnPlan(**fields)
        runs = ec_dnn.Runs(plan, "DIR", dict.fromkeys(plan.sizes, 0.1))
        listed_runs = (*ec_dnn.tuning(plan, "DIR"), *runs.first(), *runs.others(ec_dnn.Taus(16, 50)))
        return [run.seed for run in listed_runs]

    def seeds_of_fine_pruning(seed: int) -> list[int]:
        plan = fine_pruning.FinePruningPlan(**{**vars(fine_pruning.SMALL), "seed": seed})
        found = [run for _, _, run in plan.arms("DIR")] + [run for _, run in plan.search("DIR")]
        return [run.seed for run in (*found, *plan.confirmed("DIR", "random"))]

    def seeds_of_group_sgd(seed: int) -> list[int]:
        plan = group_sgd.GroupSgdPlan(name="", seed=seed)
        search = group_sgd.Search(plan, "DIR", Runner())
        chosen = {(run.model, run.strategy): 0.1 for run in search.grid()}
        return [run.seed for run in (*search.grid(), *search.with_learning_rates(chosen))]

    for seeds_of in (seeds_of_lgc, seeds_of_ec_dnn, seeds_of_fine_pruning, seeds_of_group_sgd):
        first = seeds_of(0)
        assert seeds_of(100) == [100 + seed for seed in first]
        assert first
        assert min(first) == 0


def test_the_paths_of_the_delay_equation_have_the_seed() -> None:
    assert (ensemble("asgd", 5).first == ensemble("asgd", 5, 0).first).all()
    assert (ensemble("asgd", 5).first != ensemble("asgd", 5, 1).first).any()
    assert error_row(256, 1, 1)["coupled"] != error_row(256, 1)["coupled"] == error_row(256, 1, 0)["coupled"]


def test_the_best_learning_rate_has_the_lowest_score_and_is_the_smallest_of_equals() -> None:
    assert best_learning_rate({0.4: 3.0, 0.2: 1.0, 0.1: 1.0, 0.05: 2.0}) == 0.1
    assert best_learning_rate({0.4: float("inf"), 0.2: float("inf")}) == 0.2


def test_notes_of_claims() -> None:
    (claim,) = of_plan([within("updates", 2, 2, 0, "exact")], "reduced run")
    assert claim.note == "reduced run; exact"
    assert [seeds_in_words(1), seeds_in_words(3), listed([0.5, 1.234])] == ["one seed", "3 seeds", "0.50, 1.23"]


def test_drawings_are_written_and_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    written = write_drawings({"one.png": blank(1, 1), "two.png": None, "table.md": "| a |\n"}, tmp_path / "new")
    assert [path.name for path in written] == ["one.png", "table.md"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert written[1].read_text() == "| a |\n"


@pytest.mark.parametrize("module", [reproductions.lgc.training.__name__])
def test_kept_results_depend_on_the_code_behind_a_run_and_not_on_claims_and_figures(module: str) -> None:
    assert module in sys.modules
    files = {"/".join(file.parts[-2:]) for file in files_behind(module)}
    assert {"lgc/training.py", "lgc/timing.py", "models/convolutional.py", "engine/train.py"} <= files
    assert {"strategies/live_compensation.py", "simulated/fleet.py", "data/images.py", "delays.py"} <= {
        *files, *(file.split("/")[-1] for file in files),
    }  # fmt: skip
    assert {"lgc/claims.py", "lgc/figures.py", "lgc/paper.py", "pipeline/card.py", "cli/commands.py"} & files == set()
