"""MNIST and CIFAR-10 in their original formats, from a folder, into numpy arrays.

    DIR/mnist/      train-images-idx3-ubyte.gz and the three other idx files, packed or not
    DIR/cifar10/    data_batch_1.bin to data_batch_5.bin and test_batch.bin, or cifar-10-binary.tar.gz

That is what ``python -m reproductions fetch`` makes, in a checkout of the repository. Files that lie in DIR itself are
found too.

A packed file of a megabyte may hold a gigabyte of zeros: no more is unpacked than a data set has.
"""

import gzip
import math
import os
import shlex
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.files import open_named, why

CLASSES = 10
MNIST_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
MNIST_PIXELS = (28, 28)
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_PIXELS = (3, 32, 32)
RECORD = 1 + math.prod(CIFAR10_PIXELS)  # bytes of an image, and of its class
CIFAR10_RECORDS = 10_000  # in each file
LARGEST = 1 << 28  # bytes that are read of a file; the largest, CIFAR-10's archive, has 184 million when unpacked


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Images as bytes, the first axis over the images, and their classes, 0 to 9."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """A data set, split as it was published."""

    train: Labelled
    test: Labelled


def read_mnist(folder: Path | str | None) -> ImageSet:
    """MNIST: 60,000 and 10,000 digits, 28 by 28 (LeCun, Cortes and Burges, 1998). None means: no folder was given."""
    place = _place("mnist", folder, [end for pair in MNIST_FILES for name in pair for end in (f"{name}.gz", name)])
    try:
        train, test = (_mnist_split(place, images, labels) for images, labels in MNIST_FILES)
    except ConfigError as error:
        raise ConfigError(f"{error}; to get it whole: {_command('mnist', folder)}") from None
    return ImageSet(train, test)


def read_cifar10(folder: Path | str | None, *, records: int = CIFAR10_RECORDS) -> ImageSet:
    """CIFAR-10: 50,000 and 10,000 pictures, 3 colours by 32 by 32 (Krizhevsky, 2009), ``records`` in each file."""
    place = _place("cifar10", folder, [*CIFAR10_FILES, CIFAR10_ARCHIVE])
    images = np.empty((len(CIFAR10_FILES) * records, *CIFAR10_PIXELS), dtype=np.uint8)
    labels = np.empty(len(CIFAR10_FILES) * records, dtype=np.int64)
    missing = list(CIFAR10_FILES)
    try:
        for name, path, data in _cifar10_contents(place, records):
            if name not in missing:
                raise ConfigError(f"{path} is there twice")
            begin = CIFAR10_FILES.index(name) * records
            batch = _cifar10_batch(data, path, records)
            labels[begin : begin + records] = batch[:, 0]
            images[begin : begin + records] = batch[:, 1:].reshape(records, *CIFAR10_PIXELS)
            missing.remove(name)
        if missing:
            raise ConfigError(f"there is no {missing[0]} in {place}")
    except ConfigError as error:
        raise ConfigError(f"{error}; to get it whole: {_command('cifar10', folder)}") from None
    ends = (len(CIFAR10_FILES) - 1) * records
    return ImageSet(Labelled(images[:ends], labels[:ends]), Labelled(images[ends:], labels[ends:]))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the idx format, packed by gzip or not.

    A file is the bytes 0, 0, 8 (for "unsigned bytes") and the number of dimensions, then the dimensions, each of four
    bytes with the highest first, then the array in C order.
    """
    with _unpacked(path) as file:
        shape = _idx_shape(path, file.read(4 + 4 * dimensions), dimensions)
        size = math.prod(shape)
        data = file.read(min(size, LARGEST) + 1)
    if len(data) > LARGEST:
        raise ConfigError(f"{path} is too long: no more than {LARGEST:,} bytes are read")
    if len(data) != size:
        sizes = " x ".join(map(str, shape))
        raise ConfigError(f"{path} {_wrong_length(data, size)}, and its header says {sizes} = {size:,}")
    # a copy, because torch wants memory that can be written to
    return np.frombuffer(data, dtype=np.uint8).reshape(shape).copy()


def _idx_shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    length, magic = 4 + 4 * dimensions, 0x800 | dimensions
    if len(header) >= 4 and (found := int.from_bytes(header[:4], "big")) != magic:
        raise ConfigError(
            f"{path} is no idx file of {dimensions} dimensions: it begins with {found:#010x} and not {magic:#010x}"
        )
    if len(header) < length:
        raise ConfigError(f"{path} is truncated: {len(header)} bytes, and its header alone has {length}")
    return tuple(map(int, np.frombuffer(header, dtype=">u4", offset=4)))


def _mnist_split(place: Path, images_name: str, labels_name: str) -> Labelled:
    images_path, labels_path = _packed_or_not(place, images_name), _packed_or_not(place, labels_name)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != MNIST_PIXELS:
        raise ConfigError(f"{images_path} holds images of {images.shape[1]} x {images.shape[2]} pixels, not 28 x 28")
    if len(images) != len(labels):
        raise ConfigError(f"{images_path} holds {len(images):,} images, but {labels_path.name} {len(labels):,} labels")
    _check_labels(labels, labels_path)
    return Labelled(images, labels.astype(np.int64))


def _packed_or_not(place: Path, name: str) -> Path:
    for path in (place / f"{name}.gz", place / name):
        if path.is_file():
            return path
    raise ConfigError(f"there is no {name}.gz in {place}")


def _cifar10_contents(place: Path, records: int) -> Iterator[tuple[str, Path, bytes]]:
    """The name of each file, where it is, and what it holds: of those that lie there, or else of the archive.

    Of a file that is longer than it should be, one byte more than that.
    """
    archive, most = place / CIFAR10_ARCHIVE, records * RECORD + 1
    if archive.is_file() and not all((place / name).is_file() for name in CIFAR10_FILES):
        yield from _archived(archive, most)
        return
    for name in CIFAR10_FILES:
        if (path := place / name).is_file():
            with _unpacked(path) as file:
                yield name, path, file.read(most)


def _archived(archive: Path, most: int) -> Iterator[tuple[str, Path, bytes]]:
    try:
        with open_named(archive) as packed, gzip.open(packed) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ConfigError(f"{archive} is too long: no more than {LARGEST:,} bytes are unpacked")
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as files:
            for member in files:
                name = PurePosixPath(member.name).name
                if name in CIFAR10_FILES and (content := files.extractfile(member)) is not None:
                    yield name, archive / name, content.read(most)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ConfigError(f"{archive} is damaged or truncated: {error}") from None


def _cifar10_batch(data: bytes, path: Path, records: int) -> NDArray[np.uint8]:
    if len(data) != (size := records * RECORD):
        raise ConfigError(f"{path} {_wrong_length(data, size)}, not {records:,} records of {RECORD:,}")
    batch = np.frombuffer(data, dtype=np.uint8).reshape(records, RECORD)
    _check_labels(batch[:, 0], path)
    return batch


def _wrong_length(data: bytes, size: int) -> str:
    what, more = ("truncated", "") if len(data) < size else ("too long", " or more")
    return f"is {what}: {len(data):,} bytes{more}"


def _check_labels(labels: NDArray[np.uint8], path: Path) -> None:
    if not len(labels):
        raise ConfigError(f"{path} is empty")
    if (highest := labels.max()) >= CLASSES:
        raise ConfigError(f"{path} holds the label {highest}, and there are only 0 to {CLASSES - 1}")


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    """What a file holds, to be read; it is unpacked on the way if it is packed by gzip."""
    with open_named(path) as packed:
        try:
            if path.suffix != ".gz":
                yield packed
                return
            with gzip.open(packed) as file:
                yield cast(BinaryIO, file)
        except EOFError:
            size = os.fstat(packed.fileno()).st_size
            raise ConfigError(f"{path} is truncated: {size:,} bytes, and its end is missing") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ConfigError(f"{path} is damaged: {error}") from None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {why(error)}") from None


def _place(name: str, folder: Path | str | None, files: Sequence[str]) -> Path:
    """Where the files are: in the data set's own folder, or beside it."""
    if folder is None:
        raise ConfigError(f"{name} is needed, and no folder was given: {_command(name, folder)}")
    for place in (Path(folder) / name, Path(folder)):
        if any((place / file).is_file() for file in files):
            return place
    raise ConfigError(f"there is no {name} in {folder}: {_command(name, folder)}")


def _command(name: str, folder: Path | str | None) -> str:
    to = "DIR" if folder is None else shlex.quote(str(folder))
    return f"python -m reproductions fetch {name} --to {to}"
