"""The original formats, read from small files; and what is said of files that are not as they should be."""

import gzip
import io
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.data.images import CIFAR10_FILES, MNIST_FILES, read_cifar10, read_idx, read_mnist
from support.idx import idx

RECORDS = 4
Bytes = NDArray[np.uint8]


def random_bytes(*shape: int, below: int = 256, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(below, size=shape, dtype=np.uint8)


def write_mnist(folder: Path, packed: bool = True) -> list[tuple[Bytes, Bytes]]:
    """Five digits to train on and three to test on."""
    folder.mkdir(parents=True)
    written = []
    for (images_name, labels_name), count in zip(MNIST_FILES, (5, 3), strict=True):
        arrays = random_bytes(count, 28, 28, seed=count), random_bytes(count, below=10, seed=count)
        for name, array in zip((images_name, labels_name), arrays, strict=True):
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
            else:
                (folder / name).write_bytes(idx(array))
        written.append(arrays)
    return written


def cifar10_records() -> Bytes:
    """Six files of four records: a label and the pixels, each."""
    records = random_bytes(6, RECORDS, 3073)
    records[:, :, 0] %= 10
    return records


def write_cifar10(folder: Path) -> Bytes:
    folder.mkdir(parents=True)
    records = cifar10_records()
    for name, each in zip(CIFAR10_FILES, records, strict=True):
        (folder / name).write_bytes(each.tobytes())
    return records


@pytest.mark.parametrize("inside", ["mnist", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_as_it_was_written(tmp_path: Path, inside: str, packed: bool) -> None:
    written = write_mnist(tmp_path / "data" / inside, packed)
    found = read_mnist(str(tmp_path / "data"))
    for split, (images, labels) in zip((found.train, found.test), written, strict=True):
        assert np.array_equal(split.images, images)
        assert np.array_equal(split.labels, labels)
        assert (split.images.dtype.name, split.labels.dtype.name) == ("uint8", "int64")
        assert split.images.flags.writeable
        assert len(split) == len(labels)


def test_cifar10_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = write_cifar10(tmp_path / "cifar10").reshape(6 * RECORDS, 3073)
    found = read_cifar10(tmp_path, records=RECORDS)
    assert found.train.images.shape == (5 * RECORDS, 3, 32, 32)
    assert found.test.images.shape == (RECORDS, 3, 32, 32)
    images = np.concatenate([found.train.images, found.test.images])
    labels = np.concatenate([found.train.labels, found.test.labels])
    assert np.array_equal(images.reshape(-1, 3072), records[:, 1:])
    assert np.array_equal(labels, records[:, 0])
    # a record has all of red, then all of green, then all of blue, row by row
    assert images[7, 1, 2, 3] == records[7, 1 + 1024 + 2 * 32 + 3]
    assert images.flags.writeable


def test_cifar10_is_read_from_its_archive_in_any_order(tmp_path: Path) -> None:
    records = cifar10_records()
    (tmp_path / "cifar10").mkdir()
    with tarfile.open(tmp_path / "cifar10/cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, each in reversed(list(zip(CIFAR10_FILES, records, strict=True))):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = each.nbytes
            archive.addfile(member, io.BytesIO(each.tobytes()))
    found = read_cifar10(tmp_path, records=RECORDS)
    assert np.array_equal(found.train.images.reshape(5, RECORDS, 3072), records[:5, :, 1:])
    assert np.array_equal(found.test.labels, records[5, :, 0])


def refusal(folder: Path | None, name: str = "mnist") -> str:
    """The one line that says why a folder cannot be read."""
    with pytest.raises(ConfigError) as caught:
        read_mnist(folder) if name == "mnist" else read_cifar10(folder, records=RECORDS)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_data_is_one_line_that_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    assert refusal(None, name) == (
        f"{name} is needed, and no folder was given: python -m reproductions fetch {name} --to DIR"
    )
    for folder in (tmp_path, tmp_path / "none"):
        assert refusal(folder, name) == (
            f"there is no {name} in {folder}: python -m reproductions fetch {name} --to {folder}"
        )


def test_a_folder_with_spaces_can_be_pasted(tmp_path: Path) -> None:
    assert f"--to '{tmp_path}/my data'" in refusal(tmp_path / "my data")


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_cifar10(tmp_path / "cifar10")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    (tmp_path / "cifar10/data_batch_4.bin").unlink()
    assert refusal(tmp_path) == (
        f"there is no t10k-labels-idx1-ubyte.gz in {tmp_path}/mnist; "
        f"to get it whole: python -m reproductions fetch mnist --to {tmp_path}"
    )
    assert f"there is no data_batch_4.bin in {tmp_path}/cifar10; to get it whole" in refusal(tmp_path, "cifar10")


def test_a_part_of_a_download_is_not_taken_for_the_file(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-images-idx3-ubyte.gz.partial").write_bytes(b"")
    assert "there is no mnist" in refusal(tmp_path)


IMAGES = idx(random_bytes(2, 28, 28))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (IMAGES[:-1], "images is truncated: 1,567 bytes, and its header says 2 x 28 x 28 = 1,568"),
        (IMAGES + b"x", "images is too long: 1,569 bytes or more, and its header says 2 x 28 x 28 = 1,568"),
        (IMAGES[:10], "images is truncated: 10 bytes, and its header alone has 16"),
        (b"", "images is truncated: 0 bytes, and its header alone has 16"),
        (idx(random_bytes(2)), "no idx file of 3 dimensions: it begins with 0x00000801 and not 0x00000803"),
        (b"\x00\x00\x0d\x03" + IMAGES[4:], "begins with 0x00000d03 and not 0x00000803"),
        (b"<html>", "begins with 0x3c68746d and not 0x00000803"),
        (struct.pack(">IIII", 0x803, *[2**32 - 1] * 3), "is truncated: 0 bytes, and its header says 4294967295 x "),
    ],
)
def test_an_idx_file_that_is_not_as_it_should_be_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_idx(tmp_path / "images", 3)
    assert why in str(caught.value)


def test_a_gzip_file_that_is_not_as_it_should_be_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    assert f"{path} is truncated: {len(whole) - 200:,} bytes, and its end is missing; to get it" in refusal(tmp_path)
    path.write_bytes(whole[:200] + bytes(100) + whole[300:])
    assert f"{path} is damaged: " in refusal(tmp_path)
    path.write_bytes(b"<html>")
    assert f"{path} is damaged: Not a gzipped file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        ("train-labels-idx1-ubyte.gz", random_bytes(4, below=10), "holds 5 images, but train-labels-idx1-ubyte.gz 4 "),
        ("train-images-idx3-ubyte.gz", random_bytes(5, 14, 28), "holds images of 14 x 28 pixels, not 28 x 28"),
        ("t10k-labels-idx1-ubyte.gz", np.array([1, 10, 2], np.uint8), "holds the label 10, and there are only 0 to 9"),
    ],
)
def test_mnist_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, array: Bytes, why: str) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / name).write_bytes(gzip.compress(idx(array)))
    assert why in refusal(tmp_path)


def test_empty_mnist_files_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(random_bytes(0, 28, 28))))
    (tmp_path / "mnist/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(random_bytes(0))))
    assert "train-labels-idx1-ubyte.gz is empty" in refusal(tmp_path)


def test_cifar10_files_that_are_not_as_they_should_be_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar10")
    path = tmp_path / "cifar10/data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3073])
    assert f"{path} is truncated: 9,219 bytes, not 4 records of 3,073; to get it" in refusal(tmp_path, "cifar10")
    path.write_bytes(whole + b"x")
    assert f"{path} is too long: 12,293 bytes or more, not 4 records of 3,073" in refusal(tmp_path, "cifar10")
    path.write_bytes(b"\x0b" + whole[1:])
    assert f"{path} holds the label 11, and there are only 0 to 9" in refusal(tmp_path, "cifar10")


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "files")
    archive = tmp_path / "cifar10/cifar-10-binary.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as packed:
        for name in CIFAR10_FILES[:5]:
            packed.add(tmp_path / "files" / name, f"cifar-10-batches-bin/{name}")
    assert "there is no test_batch.bin in" in refusal(tmp_path, "cifar10")
    archive.write_bytes(archive.read_bytes()[:-2000])
    assert f"{archive} is damaged or truncated: " in refusal(tmp_path, "cifar10")
    archive.write_bytes(b"<html>")
    assert f"{archive} is damaged or truncated: " in refusal(tmp_path, "cifar10")


# Small files that hold gigabytes of zeros


def zeros(path: Path, beginning: bytes, length: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", 1) as packed:
        packed.write(beginning)
        for _ in range(length >> 24):
            packed.write(bytes(1 << 24))


def peak_of(act: Callable[[], object]) -> int:
    """The bytes that Python and numpy held at most meanwhile."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_more_is_unpacked_than_the_header_says(tmp_path: Path) -> None:
    path = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    write_mnist(tmp_path / "mnist")
    zeros(path, IMAGES, 1 << 28)
    assert peak_of(lambda: refusal(tmp_path)) < 1 << 24
    assert f"{path} is too long: 1,569 bytes or more, and its header says 2 x 28 x 28" in refusal(tmp_path)
    zeros(path, b"", 1 << 28)
    assert peak_of(lambda: refusal(tmp_path)) < 1 << 24
    assert "begins with 0x00000000" in refusal(tmp_path)


def test_nor_more_than_any_data_set_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.images.LARGEST", 1 << 20)
    write_mnist(tmp_path / "mnist")
    zeros(tmp_path / "mnist/train-images-idx3-ubyte.gz", struct.pack(">IIII", 0x803, 1 << 20, 28, 28), 1 << 28)
    assert peak_of(lambda: refusal(tmp_path)) < 1 << 24
    assert "is too long: no more than 1,048,576 bytes are read" in refusal(tmp_path)
    zeros(tmp_path / "cifar10/cifar-10-binary.tar.gz", b"", 1 << 28)
    assert peak_of(lambda: refusal(tmp_path, "cifar10")) < 1 << 24
    assert "is too long: no more than 1,048,576 bytes are unpacked" in refusal(tmp_path, "cifar10")


def test_a_member_of_an_archive_is_not_read_beyond_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says that it is of holes, and is a terabyte long."""
    monkeypatch.setattr("paceline.data.images.LARGEST", 1 << 20)
    archive = tmp_path / "cifar10/cifar-10-binary.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as packed:
        member = tarfile.TarInfo("data_batch_1.bin")
        member.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,0"}
        packed.addfile(member)
    assert peak_of(lambda: refusal(tmp_path, "cifar10")) < 1 << 24
    assert "data_batch_1.bin is too long: 12,293 bytes or more" in refusal(tmp_path, "cifar10")


def test_a_file_that_is_in_an_archive_twice_is_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "files")
    (tmp_path / "cifar10").mkdir()
    with tarfile.open(tmp_path / "cifar10/cifar-10-binary.tar.gz", "w:gz") as packed:
        for name in ("data_batch_1.bin", "data_batch_1.bin"):
            packed.add(tmp_path / "files" / name, name)
    assert "data_batch_1.bin is there twice" in refusal(tmp_path, "cifar10")
