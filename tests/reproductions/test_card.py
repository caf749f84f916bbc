"""The card of a reproduction: what is printed, and what is written."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reproductions.pipeline.card import Card, card_table
from reproductions.pipeline.claims import Claim, within

HELD = within("updates", 11, 11, 0)
FAILED = Claim("order", "gsgd lowest", "asgd lowest", "in every seed", False, "at the paper's [steps]")
UNCHECKED = Claim("loss", None, float("nan"), None, None)
CARD = Card(
    "some-paper", {"seeds": (0, 1), "data": Path("/data")}, [HELD, FAILED, UNCHECKED], [{"seed": 0, "loss": 0.25}]
)


def printed(card: Card) -> list[str]:
    console = Console(width=120, file=StringIO())
    with console.capture() as captured:
        console.print(card_table(card))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_claim_that_does_not_hold_is_printed_as_such() -> None:
    lines = printed(CARD)
    assert "some-paper: 1 of 2 claims hold, 1 do not" in lines[0]
    (held,) = [line for line in lines if "updates" in line]
    (failed,) = [line for line in lines if "asgd lowest" in line]
    (unchecked,) = [line for line in lines if "loss" in line]
    assert [held.split()[-1], failed.split()[-1], unchecked.split()[-1]] == ["yes", "NO", "-"]
    assert any("at the paper's [steps]" in line for line in lines)


def test_the_card_is_written_as_json_with_null_for_what_is_not_finite(tmp_path: Path) -> None:
    CARD.write(tmp_path / "new" / "card.json")
    assert json.loads((tmp_path / "new" / "card.json").read_text()) == {
        "paper": "some-paper",
        "settings": {"seeds": [0, 1], "data": "/data"},
        "claims": [
            {"name": "updates", "paper": 11, "ours": 11, "tolerance": 0, "holds": True, "verdict": "yes"},
            {
                "name": "order",
                "paper": "gsgd lowest",
                "ours": "asgd lowest",
                "tolerance": "in every seed",
                "holds": False,
                "verdict": "no",
                "note": "at the paper's [steps]",
            },
            {"name": "loss", "paper": None, "ours": None, "tolerance": None, "holds": None, "verdict": "-"},
        ],
        "runs": [{"seed": 0, "loss": 0.25}],
    }
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["card.json"]


def test_a_card_without_runs_is_still_json(tmp_path: Path) -> None:
    Card("empty", {}, [HELD]).write(tmp_path / "card.json")
    assert json.loads((tmp_path / "card.json").read_text())["runs"] == []


@pytest.mark.parametrize(
    ("ours", "tolerance", "holds"), [(2.0, 0, True), (2.1, 0.1, False), (2.05, 0.1, True), (float("nan"), 1, False)]
)
def test_a_number_holds_within_its_tolerance(ours: float, tolerance: float, holds: bool) -> None:
    assert within("staleness", 2.0, ours, tolerance).holds is holds


def test_two_claims_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="one name"):
        Card("twice", {}, [HELD, HELD])
