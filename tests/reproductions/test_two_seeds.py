"""What is marked as holding does not depend on the seed; and the page that counts claims counts those of the cards."""

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from reproductions.group_sgd.claims import training_claims
from reproductions.pipeline.plan import Options
from reproductions.sdde.paper import PAPER

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CARDS = ("lgc", "group-sgd", "ec-dnn", "fine-pruning", "sdde")


def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("seeds", list(combinations(range(5), 3)))
def test_three_of_the_five_seeds_of_group_sgd_contradict_nothing_that_holds(seeds: tuple[int, ...]) -> None:
    card = committed("group-sgd")
    runs = [run for run in card["runs"] if run["steps"] != "search"]
    whole = {claim.name: claim.holds for claim in training_claims(runs, card["settings"]["horizon"], "")}
    assert whole == {claim["name"]: claim["holds"] for claim in card["claims"] if claim["name"] in whole}
    some = training_claims([run for run in runs if run["seed"] in seeds], card["settings"]["horizon"], "")
    assert [claim.name for claim in some if claim.holds is False and whole[claim.name] is True] == []
    assert sum(claim.holds is True for claim in some) >= 8


def test_another_seed_of_the_delay_equations_has_the_same_verdicts() -> None:
    card = PAPER.reproduce(Options(quick=True, seed=1))
    held = {claim["name"] for claim in committed("sdde")["claims"] if claim["holds"]}
    assert {claim.name for claim in card.claims if claim.holds} == held


@pytest.mark.parametrize("name", CARDS)
def test_every_committed_claim_has_a_verdict_and_every_order_a_test(name: str) -> None:
    claims = committed(name)["claims"]
    for claim in claims:
        assert claim["verdict"] in ("yes", "no", "cannot be told", "not run yet", "-")
        assert (claim["verdict"] == "yes") == (claim["holds"] is True)
        assert (claim["verdict"] == "no") == (claim["holds"] is False)
    said = ("lower", "above 0", "nearly equal", "(pruned is better)")
    orders = [claim for claim in claims if claim["paper"] in said and not claim["name"].startswith("diff_lg")]
    assert all("95 % interval" in claim["test"] or "no test" in claim["test"] for claim in orders)


def test_the_table_of_all_papers_has_the_counts_of_the_committed_cards() -> None:
    page = (RESULTS.parent / "evidence.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[[^]]+\]\(results/([a-z-]+)\.md\) \|[^|]*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE
    )
    assert {name for name, *_ in rows} == set(CARDS)
    for name, *told in rows:
        count = Counter(claim["verdict"] for claim in committed(name)["claims"])
        found = [count[verdict] for verdict in ("yes", "no", "cannot be told")]
        assert [int(number) for number in told] == [sum(found), *found], name
