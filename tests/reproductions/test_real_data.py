"""The real MNIST and CIFAR-10: ``make test DATA=DIR``."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.data.images import CIFAR10_FILES, ImageSet, read_cifar10, read_mnist
from reproductions.cli import main
from reproductions.datasets.check import check_data
from reproductions.datasets.fetch import fetch

DATA = os.environ.get("PACELINE_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="needs real data: make test DATA=DIR")


@pytest.fixture(scope="module")
def mnist() -> ImageSet:
    return read_mnist(DATA)


@pytest.fixture(scope="module")
def cifar10() -> ImageSet:
    return read_cifar10(DATA)


def test_mnist_has_its_images_and_labels(mnist: ImageSet) -> None:
    assert mnist.train.images.shape == (60_000, 28, 28)
    assert mnist.test.images.shape == (10_000, 28, 28)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.train.labels).tolist() == counts
    assert np.bincount(mnist.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def test_mnist_has_its_pixels(mnist: ImageSet) -> None:
    assert int(mnist.train.images.sum(dtype=np.int64)) == 1_567_298_545
    assert int(mnist.test.images.sum(dtype=np.int64)) == 264_923_200
    # the mean that everybody normalises by
    assert mnist.train.images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)


def test_mnist_has_the_largest_eigenvalue_of_the_specification(mnist: ImageSet) -> None:
    """Of X^T X / N for pixels / 255, on which the stable steps depend; the next one is ten times smaller."""
    pixels = mnist.train.images.reshape(60_000, 784) / np.float32(255)
    vector: NDArray[np.floating] = pixels.mean(axis=0)
    for _ in range(6):
        vector = pixels.T @ (pixels @ (vector / np.linalg.norm(vector)))
    vector /= np.linalg.norm(vector)
    eigenvalue = np.mean(np.square(pixels @ vector, dtype=np.float64))
    assert eigenvalue == pytest.approx(38.0911, abs=1e-3)


def test_cifar10_has_its_images_and_labels(cifar10: ImageSet) -> None:
    assert cifar10.train.images.shape == (50_000, 3, 32, 32)
    assert cifar10.test.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(cifar10.train.labels).tolist() == [5000] * 10
    assert np.bincount(cifar10.test.labels).tolist() == [1000] * 10
    assert cifar10.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert cifar10.test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_cifar10_has_its_pixels(cifar10: ImageSet) -> None:
    sums = cifar10.train.images.sum(axis=(0, 2, 3), dtype=np.int64)
    assert sums.tolist() == [6_415_714_204, 6_295_060_180, 5_829_907_619]
    tests = cifar10.test.images.sum(axis=(0, 2, 3), dtype=np.int64)
    assert tests.tolist() == [1_290_492_328, 1_266_775_083, 1_176_108_223]
    # the means of red, green and blue that everybody normalises by
    assert sums / (50_000 * 1024 * 255) == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)


def test_pixels_that_were_changed_are_noticed_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "cifar10"
    place.mkdir()
    for name in CIFAR10_FILES:
        (place / name).symlink_to((Path(DATA or "") / "cifar10" / name).resolve())
    check_data(["cifar10"], tmp_path)
    damaged = place / "data_batch_3.bin"
    content = bytearray(damaged.read_bytes())
    content[5_000:5_004] = bytes(255 - value for value in content[5_000:5_004])
    damaged.unlink()
    damaged.write_bytes(content)
    assert main(["lgc", "--quick", "--data", str(tmp_path), "--work", str(tmp_path / "work")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {damaged} is damaged, its SHA-256 is not the published one")
    assert error.endswith(f"; to get it whole: python -m reproductions fetch cifar10 --to {tmp_path}\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_files_are_those_that_fetch_would_bring(name: str) -> None:
    """Their sums are the published ones: so nothing is asked for at an address where nobody answers."""
    assert DATA is not None
    assert fetch(name, DATA, base_url="http://127.0.0.1:9") == Path(DATA) / name
