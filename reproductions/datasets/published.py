"""What the authors of data sets published: where it is, and by which sums it is known."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file by its name, its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """The files of a data set, and the folders of the web that have them: one by one, or packed into ``archive``."""

    name: str
    mirrors: tuple[str, ...]
    files: tuple[PublishedFile, ...]
    archive: PublishedFile | None = None


def is_whole(path: Path, file: PublishedFile) -> bool:
    """Is there a file, and is it the published one?"""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


# Sizes and SHA-256 as in tensorflow-datasets (url_checksums/mnist.txt); the MD5 of the same files are torchvision's.
MNIST = PublishedSet(
    name="mnist",
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    files=(
        PublishedFile(
            "train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        PublishedFile(
            "train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
        ),
        PublishedFile(
            "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
        PublishedFile(
            "t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
        ),
    ),
)
# The archive's size and SHA-256 as in tensorflow-datasets (url_checksums/cifar10.txt); the sums of the six
# files in it are those of files that agree with the MD5 sums in public use (SHA-256 of the first three too).
CIFAR10 = PublishedSet(
    name="cifar10",
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://cave.cs.toronto.edu/kriz/",
        "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
    ),
    files=(
        PublishedFile("data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        PublishedFile("data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        PublishedFile("data_batch_3.bin", 30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        PublishedFile("data_batch_4.bin", 30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        PublishedFile("data_batch_5.bin", 30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        PublishedFile("test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    archive=PublishedFile(
        "cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    ),
)
PUBLISHED = {each.name: each for each in (MNIST, CIFAR10)}
