"""What is marked as holding does not depend on the seed; and the page that counts claims counts those of the cards."""

import json
import re
from itertools import combinations
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
from matplotlib.figure import Figure

from paceline import ConfigError
from reproductions.group_sgd.claims import training_claims
from reproductions.pages import BEGIN, END, settled, with_campaign, write_pages
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import Claim
from reproductions.pipeline.paper import Paper
from reproductions.pipeline.plan import Options
from reproductions.sdde.paper import PAPER
from reproductions.seeds import FILE, differing, verdicts_of

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CARDS = ("lgc", "group-sgd", "ec-dnn", "fine-pruning", "sdde")


def committed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("seeds", list(combinations(range(5), 3)))
def test_three_of_the_five_seeds_of_group_sgd_contradict_nothing_that_holds(seeds: tuple[int, ...]) -> None:
    card = committed("group-sgd")
    runs = [run for run in card["runs"] if run["rates"] != "search"]
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
def test_what_holds_at_reduced_scale_holds_with_another_seed(name: str) -> None:
    """Of runs whose verdicts are committed: ``python -m reproductions seeds --data DIR`` makes them again."""
    found = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert found.keys() == {"0", "1"}
    assert differing(found) == []
    first, second = found.values()
    assert first.keys() == second.keys()
    assert sum(verdict == "yes" for verdict in first.values()) >= 2 - (name == "ec-dnn")
    assert not [claim for claim in first if {first[claim], second[claim]} == {"yes", "no"}]


def test_the_verdicts_of_seeds_are_those_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def card(_: object, options: Options) -> Card:
        told = Claim("a", 1.0, 1.0, 0.1, holds=options.quick and options.seed == 0)
        return Card("sdde", {}, [told, Claim("of which nothing is said", None, 1.0, None, None)])

    monkeypatch.setattr(Paper, "reproduce", card)
    assert verdicts_of("sdde", None, tmp_path) == {"0": {"a": "yes"}, "1": {"a": "no"}}
    turned = {"0": {"a": "yes", "b": "cannot be told"}, "1": {"a": "no", "b": "yes"}}
    assert differing(turned) == ["a"]


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
    number = r" (\d+) \|"
    rows = re.findall(rf"^\| \[[^]]+\]\(results/([a-z-]+)\.md\) \|[^|]*\|{5 * number}", page, re.MULTILINE)
    assert {name for name, *_ in rows} == set(CARDS)
    for name, *told in rows:
        long = committed(f"{name}-full")["claims"] if (RESULTS / f"{name}-full.json").exists() else []
        run = {claim["name"] for claim in long if claim["verdict"] in ("yes", "no", "cannot be told")}
        counted = [claim for claim in long if claim["name"] in run]
        counted += [claim for claim in committed(name)["claims"] if claim["name"] not in run]
        found = [sum(claim["verdict"] == verdict for claim in counted) for verdict in ("yes", "no", "cannot be told")]
        waiting = sum(claim["verdict"] == "not run yet" for claim in long)
        assert [int(each) for each in told] == [sum(found), *found, waiting], name


def test_pages_are_written_anew_of_what_there_is_and_nothing_else_changes(tmp_path: Path) -> None:
    copytree(RESULTS, tmp_path / "results", ignore=lambda _, names: [name for name in names if name.endswith(".png")])
    copy(RESULTS.parent / "evidence.md", tmp_path)
    written = write_pages(tmp_path)
    page = (tmp_path / "results" / "lgc.md").read_text(encoding="utf-8").split(BEGIN)[1]
    assert "![At full length](lgc-full.png)" in page
    assert "| 3 | – | Full-SGD | – | " in page
    once = {path: path.read_bytes() for path in written}
    assert {path: path.read_bytes() for path in write_pages(tmp_path)} == once
    for name in ("lgc", "group-sgd", "ec-dnn", "fine-pruning"):
        old = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        new = (tmp_path / "results" / f"{name}.md").read_text(encoding="utf-8")
        assert (new.split(BEGIN)[0], new.split(END)[1]) == (old.split(BEGIN)[0], old.split(END)[1])
    (tmp_path / "results" / "lgc.md").write_text("# A page without marks\n")
    with pytest.raises(ConfigError, match="the page of lgc has no place for its campaign"):
        write_pages(tmp_path)


def test_what_a_campaign_has_settled_takes_the_place_of_short_runs_and_what_waits_is_not_counted() -> None:
    usual = [
        {"name": name, "verdict": verdict} for name, verdict in (("a", "yes"), ("b", "cannot be told"), ("c", "-"))
    ]
    full = [{"name": name, "verdict": verdict} for name, verdict in (("b", "no"), ("a", "not run yet"), ("d", "yes"))]
    count, waiting = settled(usual, full)
    assert (count["yes"], count["no"], count["cannot be told"], waiting) == (2, 1, 0, 1)
    card = Card("lgc", {"runs": "3 of 9 runs made"}, [Claim("b", "lower", 1.0, "above 0", False)])
    text = with_campaign(f"before\n{BEGIN}\nformer\n{END}\nafter", card)
    assert (text[:7], text[-6:]) == ("before\n", "\nafter")
    assert "0 of 1 claims hold, 1 do not; 3 of 9 runs made." in text
    assert "| `b` | lower | 1 | above 0 | **no** |" in text
    assert "former" not in text
    shown = {"a.png": Figure(), "b.png": Figure()}
    text = with_campaign(f"![already](a.png)\n{BEGIN}\n{END}\n", card, shown)
    assert [text.count(f"]({name})") for name in shown] == [1, 1]
    assert text.index("(b.png)") > text.index(BEGIN) > text.index("(a.png)")
