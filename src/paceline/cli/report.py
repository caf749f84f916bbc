"""``paceline report``: writes an HTML page about runs, or a timeline for Perfetto."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.main import echo
from paceline.core.errors import ConfigError, PacelineError
from paceline.files import check_writable, write_atomically

if TYPE_CHECKING:
    from paceline.storage.reading import SavedRun


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of runs, written by paceline train.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Write a page that works without network access.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write a timeline for https://ui.perfetto.dev.")
    ] = None,
) -> None:
    """Show runs side by side: learning curves, a timeline of the workers, staleness, and who was waited for.

    Needs --out, --perfetto, or both. Nothing is written if one of the runs cannot be read.
    """
    if out is None and perfetto is None:
        raise ConfigError("nothing to write: give --out FILE.html, --perfetto FILE.json, or both")
    if not runs:
        raise ConfigError("no run to report: give the directory of one, written by paceline train")
    for path, suffix in ((out, ".html"), (perfetto, ".json")):
        if path is not None:
            check_writable(path, suffix)
    from paceline.storage.reading import names_of, read_run

    saved = dict(zip(names_of(runs), map(read_run, runs), strict=True))
    if out is not None:
        _write_page(saved, out)
    if perfetto is not None:
        _write_perfetto(saved, perfetto)


def _write_page(saved: Mapping[str, "SavedRun"], out: Path) -> None:
    from paceline.reports.page import describe, page

    described = []
    for name, run in saved.items():
        with _naming(run):
            described.append(describe(name, run))
    text = page(described)
    write_atomically(out, text)
    echo(f"Page: {out} ({len(text.encode()) / 1e6:.1f} MB, needs no network)")


def _write_perfetto(saved: Mapping[str, "SavedRun"], path: Path) -> None:
    from paceline.reports.perfetto import LIMIT, write_perfetto
    from paceline.reports.picture import gather

    pictures = {}
    for name, run in saved.items():
        with _naming(run):
            pictures[name] = gather(run.trace, limit=LIMIT, end=run.stopped_at)
    write_perfetto(pictures, path)
    echo(f"Timeline: {path} (open it at https://ui.perfetto.dev)")


@contextmanager
def _naming(run: "SavedRun") -> Iterator[None]:
    """Put the directory of the run into errors about its trace."""
    try:
        yield
    except KeyError as error:
        raise ConfigError(f"{run.path}: the trace contradicts itself at {error}") from None
    except PacelineError as error:
        raise ConfigError(f"{run.path}: {error}") from None
