"""A paper's reproduction, from the options of the command line to its card and its figures."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar

from reproductions.pipeline.campaign import RESULTS, Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.plan import Options, Plan
from reproductions.pipeline.runs import Runner

P = TypeVar("P", bound=Plan)


@dataclass(frozen=True)
class Paper(Generic[P]):
    """What is run for a paper, and how its claims are checked.

    name    that of its command; its folder has the same, with underscores
    quick   the plan of ``--quick``, which takes under a minute
    usual   the plan without that option
    card    runs a plan on the data sets of a folder, and sets the claims beside the results
    data    reads the data set that the paper needs, or refuses; None if it needs none
    full    the plan of ``--full``; None if the usual one is of the paper's own length already
    needs   reads the data set that ``--full`` needs, if it needs another
    """

    name: str
    quick: P
    usual: P
    card: Callable[[P, str, Runner | Campaign], Card]
    data: Callable[[Path | None], object] | None = None
    full: P | None = None
    needs: Callable[[Path | None], object] | None = None

    def reproduce(self, options: Options) -> Card:
        """Run the plan that the options ask for."""
        plan = self.quick if options.quick else (self.full or self.usual) if options.full else self.usual
        return self.reproduce_plan(replace(plan, seed=options.seed), options)

    def reproduce_plan(self, plan: P, options: Options) -> Card:
        """Run any plan. Data that are missing are refused before anything is run; nothing to run needs none."""
        for read in (self.data, self.needs if options.full else None):
            if read is not None and options.runs != 0:
                read(options.data)
        folder = str(Path(options.data or ".").resolve())
        return self.card(plan, folder, self._runner(options))

    def _runner(self, options: Options) -> Runner | Campaign:
        if not options.full:
            return Runner(options.work, options.processes)
        scratch = options.work or Path("runs") / f"reproduce-{self.name}"
        return Campaign((options.results or RESULTS) / self.name, scratch / "full", options.runs)

    def figures(self, card: Card, directory: Path) -> list[Path]:
        """Draw the runs of a card; the files that were written."""
        from reproductions.pipeline.figures import write_drawings

        module = import_module(f"reproductions.{self.name.replace('-', '_')}.figures")
        return write_drawings(module.draw(card), directory)
