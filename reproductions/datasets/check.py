"""Are the data sets there that a paper needs, and are they what was published?"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.data.images import read_cifar10, read_mnist
from reproductions.datasets.published import PUBLISHED, PublishedFile, PublishedSet, is_whole

READERS = {"mnist": read_mnist, "cifar10": read_cifar10}


def check_data(names: Iterable[str], folder: Path | None) -> None:
    """Refuse data sets that are missing, are in no format that is read, or are damaged.

    A file with the name and the size of a published one must have its SHA-256. Files of other sizes are taken to be
    other data in the same format, such as made-up ones; they have no sum that is known.
    """
    for name in names:
        READERS[name](folder)
        assert folder is not None  # which is refused
        for path, file in _read(PUBLISHED[name], folder):
            if path.is_file() and path.stat().st_size == file.size and not is_whole(path, file):
                again = f"python -m reproductions fetch {name} --to {shlex.quote(str(folder))}"
                raise ConfigError(f"{path} is damaged, its SHA-256 is not the published one; to get it whole: {again}")


def _read(published: PublishedSet, folder: Path) -> Iterator[tuple[Path, PublishedFile]]:
    """The published files that are read, and where: in the data set's own folder, or else in that of all.

    Of an archive its files, if all of them lie beside it.
    """
    archive = () if published.archive is None else (published.archive,)
    files = (*published.files, *archive)
    own = folder / published.name
    place = own if any((own / file.name).is_file() for file in files) else folder
    whole = all((place / file.name).is_file() for file in published.files)
    packed = not whole and any((place / file.name).is_file() for file in archive)
    return ((place / file.name, file) for file in (archive if packed else published.files))
