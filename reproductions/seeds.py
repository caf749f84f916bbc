"""Does what holds at reduced scale depend on the seed? The verdicts of ``--quick`` with two seeds, for all papers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.files import check_place, write_atomically
from reproductions.cli import PAPERS, paper_of
from reproductions.pipeline.campaign import RESULTS
from reproductions.pipeline.plan import Options

FILE = RESULTS / "quick-verdicts.json"
SEEDS = (0, 1)
Verdicts = dict[str, dict[str, str]]  # by seed and claim


def verdicts_of(name: str, data: Path | None, work: Path, seeds: Iterable[int] = SEEDS) -> Verdicts:
    """Run a paper's reduced plan with each seed; claims without a verdict are left out."""
    found = {}
    for seed in seeds:
        card = paper_of(name).reproduce(Options(data, quick=True, work=work / name, seed=seed))
        found[str(seed)] = {claim.name: claim.verdict for claim in card.claims if claim.verdict != "-"}
    return found


def differing(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The claims that hold with the first seed, and do not with another one."""
    first, *others = found.values()
    return [name for name, verdict in first.items() if verdict == "yes" and any(o[name] != "yes" for o in others)]


def write_verdicts(data: Path | None, work: Path, file: Path = FILE) -> dict[str, list[str]]:
    """Of all papers; which claims differ, by paper."""
    check_place(file)
    found = {name: verdicts_of(name, data, work) for name in PAPERS}
    lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()]
    write_atomically(file, "{" + ",\n".join(lines) + "}\n")
    return {name: differing(each) for name, each in found.items()}
