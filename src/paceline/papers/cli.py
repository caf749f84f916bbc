"""``paceline reproduce``: a paper's experiments from the command line. What runs them is imported when it is needed."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, cast

import typer

from paceline.core.errors import CannotWrite, ConfigError
from paceline.engine.signals import Interrupted, terminable
from paceline.files import check_parent, check_place

if TYPE_CHECKING:
    from paceline.papers.card import Card, Options

PAPERS = {
    "group-sgd": "paceline.papers.group_sgd",
    "lgc": "paceline.papers.lgc",
    "ec-dnn": "paceline.papers.ec_dnn",
    "sdde": "paceline.papers.sdde",
    "fine-pruning": "paceline.papers.fine_pruning",
}


class Paper(Protocol):
    """What the module of a paper has."""

    def reproduce(self, options: "Options", /) -> "Card": ...

    def figures(self, card: "Card", directory: Path, /) -> list[Path]:
        """Draw the card's runs; the files that were written."""
        ...


def reproduce(  # noqa: PLR0917 - typer names the options
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="group-sgd, lgc, ec-dnn, fine-pruning or sdde.")],
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets are.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute: training on a reduced scale.")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write card and runs there.")] = None,
    work_directory: Annotated[
        Path | None, typer.Option("--work", metavar="DIR", help="Keeps finished runs; else runs/reproduce-PAPER.")
    ] = None,
    figures: Annotated[Path | None, typer.Option("--figures", metavar="DIR", help="Draw the figures there.")] = None,
) -> None:
    """Run a paper's experiments and set its claims beside what is found; a claim that does not hold is shown so."""
    module = paper_module(paper)
    if json is not None:
        check_place(json)
    if figures is not None:
        check_place(figures / "figure.png")
    work = work_directory or Path("runs") / f"reproduce-{paper}"
    check_parent(work / "run.json")
    from paceline.comparison.tables import console
    from paceline.papers.card import Options, card_table

    try:
        with terminable():
            card = module.reproduce(Options(data, quick, work))
    except KeyboardInterrupt as asked:
        kept = f"finished runs are in {work}: the same command goes on from there" if work.exists() else "nothing kept"
        raise Interrupted(f"; {kept}", asked) from None
    except CannotWrite as error:
        raise CannotWrite(f"{error}; finished runs are in {work}: the same command goes on from there") from None
    console().print(card_table(card))
    if json is not None:
        card.write(json)
        typer.echo(f"Card and runs: {json}")
    if figures is not None:
        typer.echo(f"Figures: {', '.join(map(str, module.figures(card, figures)))}")


def paper_module(name: str) -> Paper:
    """The module of a paper by its name."""
    from paceline.config.toml import nearest

    if name not in PAPERS:
        raise ConfigError(f"there is no paper {name!r} to reproduce: {nearest(name, PAPERS)}")
    return cast(Paper, import_module(PAPERS[name]))
