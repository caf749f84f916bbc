"""A paper's reproduction, from the options of the command line to its card and its figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paceline.files import check_parent
from reproductions.datasets.check import check_data
from reproductions.pipeline.campaign import RESULTS, Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.plan import Options, Plan
from reproductions.pipeline.runs import Runner

if TYPE_CHECKING:
    from reproductions.pipeline.figures import Drawing

P = TypeVar("P", bound=Plan)
Q = TypeVar("Q", bound=Plan)


@dataclass(frozen=True)
class AtLength(Generic[Q]):
    """What ``--full`` runs: a plan of the paper's own length, its card, the names of the data sets that it needs."""

    plan: Q
    card: Callable[[Q, str, Campaign], Card]
    data: Sequence[str]


@dataclass(frozen=True)
class Paper(Generic[P]):
    """What is run for a paper, and how its claims are checked.

    name    that of its command; its folder has the same, with underscores
    quick   the plan of ``--quick``, which takes under a minute
    usual   the plan without that option
    card    runs a plan on the data sets of a folder, and sets the claims beside the results
    data    the names of the data sets that the paper needs
    full    what ``--full`` runs, if there is more than the usual plan
    """

    name: str
    quick: P
    usual: P
    card: Callable[[P, str, Runner], Card]
    data: Sequence[str] = ()
    full: AtLength[Any] | None = None

    def reproduce(self, options: Options) -> Card:
        """Run the plan that the options ask for."""
        if options.full:
            return self.reproduce_at_length(options)
        plan = self.quick if options.quick else self.usual
        return self.reproduce_plan(replace(plan, seed=options.seed), options)

    def reproduce_plan(self, plan: P, options: Options) -> Card:
        """Run any plan. Data that are missing or damaged are refused before anything is run."""
        check_data(self.data, options.data)
        return self.card(plan, _folder(options), Runner(options.work, options.processes))

    def reproduce_at_length(self, options: Options) -> Card:
        """Continue the campaign. To read only what there is needs no data, and no place for more."""
        assert self.full is not None
        results = (options.results or RESULTS) / self.name
        if options.runs != 0:
            check_parent(results / "run.json")
            check_data(self.full.data, options.data)
        scratch = options.work or Path("runs") / f"reproduce-{self.name}"
        campaign = Campaign(results, scratch / "full", options.runs)
        card = self.full.card(replace(self.full.plan, seed=options.seed), _folder(options), campaign)
        return replace(card, settings={**card.settings, "runs": campaign.progress})

    def figures(self, card: Card, directory: Path) -> list[Path]:
        """Draw the runs of a card; the files that were written."""
        from reproductions.pipeline.figures import write_drawings

        return write_drawings(self.drawings(card), directory)

    def drawings(self, card: Card) -> "Mapping[str, Drawing]":
        """The figures and tables of a card by the names of their files."""
        module = import_module(f"reproductions.{self.name.replace('-', '_')}.figures")
        drawn: Mapping[str, Drawing] = module.draw(card)
        return drawn


def _folder(options: Options) -> str:
    return str(Path(options.data or ".").resolve())
