"""The reproduction of *Differential Equations for Modeling Asynchronous Algorithms*, with few paths."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproductions.cli import app
from reproductions.pipeline.card import Card
from reproductions.sdde import paper as sdde
from reproductions.sdde.claims import exact_claims
from reproductions.sdde.paper import reproduce_with

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


@pytest.fixture(scope="module")
def card() -> Card:
    return reproduce_with(200, quick=True)


def test_exact_claims_hold_without_sampling() -> None:
    claims = {claim.name: claim for claim in exact_claims()}
    assert all(claim.holds for claim in claims.values())
    assert claims["dominant_root"].ours == pytest.approx(-2.236651183, abs=5e-10)
    assert claims["stationary_variance.discrete"].ours == pytest.approx(0.00555469948, abs=5e-12)


def test_the_card_has_every_claim_that_it_must_and_they_hold(card: Card) -> None:
    assert set(REQUIRED) <= {claim.name for claim in card.claims}
    assert [claim.name for claim in card.claims if not claim.holds] == []
    assert card.settings["scale"] == "reduced: 200 of 4000 paths"


def test_the_card_is_the_same_every_time(card: Card) -> None:
    assert reproduce_with(200, quick=True).table() == card.table()


def test_figures_are_drawn_from_the_card(card: Card, tmp_path: Path) -> None:
    paths = sdde.figures(card, tmp_path)
    assert [path.name for path in paths][:4] == [
        f"sdde-{name}.png" for name in ("paths", "moments", "errors", "bounds")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_command_writes_the_card_in_json(tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdde, "reproduce", lambda options: card)
    result = CliRunner().invoke(app, ["sdde", "--quick", "--json", str(tmp_path / "card.json")])
    assert result.exit_code == 0, result.output
    assert "dominant_root" in result.output
    written = json.loads((tmp_path / "card.json").read_text())
    assert [run["method"] for run in written["runs"] if run["what"] == "paths"] == [*sdde.DELAYS]
