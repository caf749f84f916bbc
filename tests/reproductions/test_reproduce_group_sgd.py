"""The reproduction of *Group SGD*: what needs no data always, training on made-up digits, and on real ones if given."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.data.batches import Resampled
from paceline.data.images import read_mnist
from paceline.data.partition import Equal, deal
from paceline.data.samples import TensorSamples
from paceline.engine.limits import Stop
from paceline.randomness import stream
from reproductions.group_sgd.claims import timing_claims
from reproductions.group_sgd.paper import PAPER
from reproductions.group_sgd.plan import GroupSgdPlan
from reproductions.group_sgd.theorem import Move, Toy, second_moments, theorem_3_1
from reproductions.group_sgd.training import (
    MODELS,
    Training,
    run_training,
    time_grid,
    update_grid,
    updates_of,
)
from reproductions.pipeline.card import Card
from reproductions.pipeline.plan import Options

TINY = GroupSgdPlan(name="tiny", seeds=(0,), tuning_seeds=(0,), octaves=(0, 2), units=12.0, reduced="a test")
NAMES = ("ssgd", "gsgd", "asgd")


def write_idx(path: Path, array: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), compresslevel=1))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in MNIST's format: noise, and a bright half, left for even and right for odd digits."""
    folder = tmp_path_factory.mktemp("data") / "mnist"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name, count in (("train", 640), ("t10k", 100)):
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        images = generator.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, slice(14, 28) if label % 2 else slice(0, 14)] += 60
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels)
    return folder.parent


@pytest.fixture(scope="module")
def card(digits: Path) -> Card:
    return PAPER.reproduce_plan(TINY, Options(digits, processes=1))


def test_timing_claims_hold_exactly() -> None:
    claims = {claim.name: claim for claim in timing_claims()}
    assert [claims[f"updates_per_6_units.{name}"].ours for name in NAMES] == [2, 11, 52]
    assert [claims[f"mean_staleness.{name}"].ours for name in NAMES] == [0, 2, 15]
    assert all(claims[f"{what}.{name}"].holds for what in ("updates_per_6_units", "mean_staleness") for name in NAMES)
    assert [claims[f"theorem_3_1.{name}"].holds for name in NAMES] == [True, True, None]
    assert "assumption 3.5 (gamma <= 1) is not met" in claims["theorem_3_1.asgd"].note


def moves(strategy: str, updates: int) -> list[Move]:
    return [made.move for made in updates_of(strategy, Stop(updates=updates))]


def test_theorem_3_1_has_the_values_of_the_specification() -> None:
    bound = theorem_3_1(moves("gsgd", 220), Toy(lr=0.02))
    assert bound.gamma == pytest.approx(0.0969751, abs=5e-8)
    assert bound.alpha == pytest.approx(0.9819395, abs=5e-8)
    assert bound.left[-1] == pytest.approx(8.378737e-5, rel=1e-6)
    assert bound.right[-1] == pytest.approx(9.147013e-3, rel=1e-6)
    assert bound.holds
    assert bound.applies


def test_second_moments_are_those_of_sampled_runs() -> None:
    """20,000 runs: the mean of w^2 has a relative standard error of at most sqrt(2/20000) = 1 %; four of them."""
    toy, steps, count = Toy(lr=0.1, batch_size=2), moves("gsgd", 30), 20_000
    generator = np.random.default_rng(1)
    paths = [np.ones(count)]
    for workers, staleness in steps:
        noise = generator.normal(0, (toy.variance / (toy.batch_size * workers)) ** 0.5, count)
        paths.append(paths[-1] - toy.lr * (paths[len(paths) - 1 - staleness] + noise))
    exact = second_moments(steps, toy).diagonal()
    assert np.square(paths).mean(axis=1) == pytest.approx(exact, rel=0.04)


def test_a_learning_rate_beyond_the_theorem_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"theorem 3\.1 is not for a learning rate of 1\.5"):
        Toy(lr=1.5)


def test_the_card_has_every_claim_that_it_must(card: Card) -> None:
    required = [f"{what}.{name}" for what in ("updates_per_6_units", "mean_staleness") for name in NAMES]
    required += [f"{model}.loss_at_12.{name}" for model in MODELS for name in NAMES]
    assert set(required) <= {claim.name for claim in card.claims}
    for model in MODELS:
        for rule in ("common", "tuned"):
            assert card.claim(f"{model}.{rule}_rate.gsgd_lowest").note.startswith("control, not in the paper")
    trained = [claim for claim in card.claims if claim.name.startswith(tuple(MODELS))]
    assert all("reduced: a test" in claim.note for claim in trained)
    assert card.settings["scale"] == "reduced: a test"


def test_the_card_is_json_and_holds_the_runs(card: Card, tmp_path: Path) -> None:
    card.write(tmp_path / "card.json")
    written = json.loads((tmp_path / "card.json").read_text())
    assert [run["rates"] for run in written["runs"]].count("paper") == 6
    first = next(run for run in written["runs"] if (run["strategy"], run["model"]) == ("gsgd", "svm"))
    assert (first["updates"][0], first["units"][0], first["loss"][0]) == (0, 0.0, 0.5)
    assert (first["updates"][-1], first["units"][-1]) == (22, 12.0)


def test_figures_are_drawn_from_the_card(card: Card, tmp_path: Path) -> None:
    paths = PAPER.figures(card, tmp_path)
    assert [path.name for path in paths] == [
        f"group-sgd-{name}.png" for name in ("svm", "logistic", "controls", "theorem")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize("model", MODELS)
def test_evaluating_together_is_evaluating_one_by_one(digits: Path, model: str) -> None:
    """The loss after one SSGD step from w = 0, by its formula in double precision."""
    result = run_training(Training(model, "ssgd", 0.01, 3, 3.0, str(digits)))
    data = read_mnist(digits).train
    x, odd = data.images.reshape(640, 784) / 255, data.labels % 2
    samples = TensorSamples(torch.from_numpy(x), torch.from_numpy(odd))
    batches = Resampled().open(deal(Equal(), samples, 16, 32, stream(3, "partition")), 32, 3)
    chosen = np.concatenate([batches.draw(worker) for worker in range(16)])
    sign = 2 * odd - 1
    if model == "svm":
        weights = 0.01 * (sign[chosen, None] * x[chosen]).mean(axis=0)
        loss = 0.005 * weights @ weights + np.square(np.maximum(0, 1 - sign * (x @ weights))).mean() / 2
    else:
        weights = -0.01 * ((0.5 - odd[chosen, None]) * x[chosen]).mean(axis=0)
        scores = x @ weights
        loss = 0.0005 * weights @ weights + (np.logaddexp(0, scores) - odd * scores).mean()
    assert result["updates"] == [0, 1]
    assert result["loss"][1] == pytest.approx(loss, rel=1e-5)


def test_a_learning_rate_that_is_far_too_large_ends_its_run(digits: Path) -> None:
    result = run_training(Training("svm", "asgd", 4.0, 0, 60.0, str(digits)))
    assert result["ended"] == "diverged"
    assert result["loss"][-1] > result["loss"][0]


def test_places_that_are_evaluated() -> None:
    assert update_grid(25) == [*range(26)]
    assert all(after - before <= max(1, before * 0.05) for before, after in pairwise(update_grid(5200)))
    assert time_grid(48.0) == [*map(float, range(31)), 36.0, 42.0, 48.0]
    assert time_grid(600.0)[-1] == 600.0


@pytest.mark.parametrize("data", [None, Path("/nowhere")])
def test_missing_data_is_told_with_the_way_to_get_it(data: Path | None) -> None:
    with pytest.raises(ConfigError, match="python -m reproductions fetch mnist --to"):
        PAPER.reproduce(Options(data))
