"""The reproduction of *Differential Equations for Modeling Asynchronous Algorithms*, with few paths."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproductions.cli import app
from reproductions.pipeline.card import Card
from reproductions.pipeline.paper import Paper
from reproductions.pipeline.plan import Options
from reproductions.sdde.claims import exact_claims
from reproductions.sdde.experiment import DELAYS, GRIDS
from reproductions.sdde.paper import PAPER, SddePlan

REQUIRED = [
    "dominant_root",
    "critical_step.l10",
    "stationary_variance.continuous",
    "stationary_variance.discrete",
    "mean.k50.history",
    "error_slope",
    "bound_violations.cor43",
    "bound_violations.thm31",
]
FEW = SddePlan(name="few", paths=200, grids=GRIDS[:-1])


@pytest.fixture(scope="module")
def card() -> Card:
    return PAPER.reproduce_plan(FEW, Options())


def test_exact_claims_hold_without_sampling() -> None:
    claims = {claim.name: claim for claim in exact_claims()}
    assert all(claim.holds for claim in claims.values())
    assert claims["dominant_root"].ours == pytest.approx(-2.236651183, abs=5e-10)
    assert claims["stationary_variance.discrete"].ours == pytest.approx(0.00555469948, abs=5e-12)


def test_the_card_has_every_claim_that_it_must_and_they_hold(card: Card) -> None:
    assert set(REQUIRED) <= {claim.name for claim in card.claims}
    assert [claim.name for claim in card.claims if not claim.holds] == []
    assert card.settings["scale"] == "few"


def test_the_card_is_the_same_every_time(card: Card) -> None:
    assert PAPER.reproduce_plan(FEW, Options()).table() == card.table()


def test_figures_are_drawn_from_the_card(card: Card, tmp_path: Path) -> None:
    paths = PAPER.figures(card, tmp_path)
    assert [path.name for path in paths][:4] == [
        f"sdde-{name}.png" for name in ("paths", "moments", "errors", "bounds")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_command_writes_the_card_in_json(tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paper, "reproduce", lambda paper, options: card)
    result = CliRunner().invoke(app, ["sdde", "--quick", "--json", str(tmp_path / "card.json")])
    assert result.exit_code == 0, result.output
    assert "dominant_root" in result.output
    written = json.loads((tmp_path / "card.json").read_text())
    assert [run["method"] for run in written["runs"] if run["what"] == "paths"] == [*DELAYS]
