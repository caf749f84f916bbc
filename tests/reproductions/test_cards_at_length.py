"""What the cards of campaigns say of their runs is taken from the plans, and figures tell what they show."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from reproductions.cli import paper_of
from reproductions.ec_dnn.claims import settings
from reproductions.ec_dnn.findings import Findings
from reproductions.ec_dnn.long import LONG
from reproductions.ec_dnn.plan import SMALL, EcDnnPlan, Runs, Taus
from reproductions.pipeline.card import Card
from reproductions.pipeline.figures import Drawing
from reproductions.pipeline.plan import Options

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def drawings(name: str, file: str) -> Mapping[str, Drawing]:
    card = committed(file)
    return paper_of(name).drawings(Card(name, card["settings"], [], card["runs"]))


# EC-DNN


def told(plan: EcDnnPlan) -> dict[str, Any]:
    return settings(Findings(Runs(plan, "", dict.fromkeys(plan.sizes, 0.02)), Taus(16, 16), {}))


def test_digits_are_described_as_what_they_are() -> None:
    digits = told(LONG.parts["digits."])
    assert digits["data"]["digits"].startswith("1000 of 60000 training pictures, 2000 others for validation")
    assert "600 steps a worker with 4 workers, in all 2400 with any number" in digits["data"]["digits"]
    assert "mirrored" not in digits["as_in_the_paper"]
    assert digits["networks"] == {"digits": "LeNet, 61,706 parameters"}
    assert digits["ours"].endswith("learning rate / 10 after 1/2 and 3/4 of the steps")
    assert digits["clock"].startswith("seconds for a mini-batch: 0.01 (digits);")


def test_pictures_are_described_as_what_they_are() -> None:
    long, short = told(LONG.parts[""]), told(SMALL)
    assert long["data"]["lenet"].startswith("48000 of 50000 training pictures")
    assert "15000 steps a worker with 4 workers, in all 60000 with any number" in long["data"]["lenet"]
    assert long["networks"] == {"lenet": "LeNet, 62,006 parameters"}
    assert short["networks"] == {"lenet": "LeNet, 62,006 parameters", "nin": "NiN of width 0.125, 17,058 parameters"}
    assert "500 steps a worker (S-DNN: 2000)" in short["data"]["lenet"]
    assert long["ours"].endswith("learning rate / 10 after 1/2 and 3/4 of the steps")
    assert short["ours"].endswith("learning rate / 10 after 3/4 of the steps")
    assert "mirrored pictures" in long["as_in_the_paper"]


def test_describing_networks_draws_nothing_from_the_generator_of_torch() -> None:
    before = torch.get_rng_state()
    told(SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_committed_cards_have_these_descriptions() -> None:
    parts = committed("ec-dnn-full")["settings"]["parts"]
    for plan in LONG.parts.values():
        for name in ("data", "as_in_the_paper", "ours", "networks", "clock"):
            assert parts[plan.name][name] == told(plan)[name]
    assert committed("ec-dnn")["settings"]["networks"] == told(SMALL)["networks"]


@pytest.mark.parametrize("name", ["lgc", "group-sgd", "ec-dnn", "fine-pruning"])
def test_no_card_calls_a_learning_rate_a_step(name: str) -> None:
    for card in (committed(name), committed(f"{name}-full")):
        keys = {key for row in card["runs"] for key in row} | card["settings"].keys()
        assert not keys & {"step", "step_size", "step_sizes", "steps_tried", "step_rule", "step_size_rule"}
        assert "step size" not in (told := json.dumps(card["settings"]))
        assert "step / 10" not in told
        assert not [claim["name"] for claim in card["claims"] if claim["name"].endswith("_step")]


# Fine-pruning


def test_soft_pruning_at_length_has_a_claim_of_its_own() -> None:
    claim = paper_of("fine-pruning").reproduce(Options(full=True, runs=0)).claim("points_lost.soft")
    assert claim.table() == next(c for c in committed("fine-pruning-full")["claims"] if c["name"] == claim.name)
    assert "paired over 5 seeds" in claim.test
    assert (claim.paper, claim.tolerance) == ("(accuracy kept)", 0.5)


def test_a_way_to_train_has_one_colour_in_all_figures() -> None:
    tones = []
    for file in ("fine-pruning", "fine-pruning-full"):
        name = f"{file}.png" if file.endswith("full") else f"{file}-accuracy.png"
        figure = drawings("fine-pruning", file)[name]
        assert isinstance(figure, Figure)
        curves = figure.axes[0]
        tones.append({str(line.get_label()): to_hex(line.get_color()) for line in curves.lines})
        assert "means and ranges of" in curves.get_title()
        assert len(curves.collections) == len(curves.lines)
    assert tones[0] == tones[1]
    assert len({*tones[0].values()}) == 5


def test_no_entry_of_a_legend_is_there_twice() -> None:
    figure = drawings("sdde", "sdde")["sdde-moments.png"]
    assert isinstance(figure, Figure)
    for axis in figure.axes:
        legend = axis.get_legend()
        assert legend is not None
        entries = [text.get_text() for text in legend.get_texts()]
        assert len({*entries}) == len(entries)
        assert not axis.texts  # nothing lies on points
