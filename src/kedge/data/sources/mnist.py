"""MNIST and Fashion-MNIST: four idx files, gzipped or not.

An idx file has two zero bytes, a type (8: unsigned bytes), the number of axes, their lengths as big-endian
32-bit integers, and the values. Addresses and checksums are copied from torchvision.
"""

import gzip
import math
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, PathOption, check_content, existing_path, fetch
from kedge.data.download.archive_members import Members, open_members
from kedge.data.npz_files import NORMALIZATION

PARTS = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
         "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip
MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/",
              "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
}  # fmt: skip
SUMS = {
    "mnist": {
        "train-images-idx3-ubyte.gz": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        "train-labels-idx1-ubyte.gz": ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        "t10k-images-idx3-ubyte.gz": ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        "t10k-labels-idx1-ubyte.gz": ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    },
}
ARCHIVES = {
    name: tuple(
        Archive(file, tuple(f"{mirror}{file}" for mirror in MIRRORS[name]), f"md5:{md5}", size)
        for file, (md5, size) in sums.items()
    )
    for name, sums in SUMS.items()
}

UNZIPPED = {  # md5 of the unzipped files, as listed by several public loaders
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}


def mnist(path: PathOption = None, verify: bool = True) -> Source:
    """60,000 / 10,000 handwritten digits, 28×28 gray, 10 classes (12 MB).

    `path` is a folder, zip or tar of the four idx files, gzipped or not; verify = false skips the checksums.
    """
    return _source("mnist", path, verify)


def fashion_mnist(path: PathOption = None, verify: bool = True) -> Source:
    """60,000 / 10,000 images of clothes, 28×28 gray, 10 classes (31 MB).

    `path` is a folder, zip or tar of the four idx files, gzipped or not; verify = false skips the checksums.
    """
    return _source("fashion-mnist", path, verify)


def _source(name: str, path: PathOption, verify: bool) -> Source:
    sums = {archive.file: archive.checksum for archive in ARCHIVES[name]}
    sums |= {file: f"md5:{md5}" for file, md5 in UNZIPPED[name].items()}
    if path is None:
        files = [fetch(name, archive) for archive in ARCHIVES[name]]
        path = files[0].parent
        sums = {}  # `fetch` has compared them
    with open_members(existing_path(name, path, "the four idx files")) as members:
        train, test = (_part(members, part, sums if verify else {}) for part in ("train", "test"))
    return Source(name, train, test, 10, *NORMALIZATION[name], scale=1 / 255)


def _part(members: Members, part: str, sums: Mapping[str, str | None]) -> Dataset:
    images, labels = (_array(members, file, sums) for file in PARTS[part])
    if images.ndim != 3:
        raise DataError(f"{members.where}, {part} part: images of shape {images.shape}; need [n, h, w].")
    try:
        return Dataset(images[:, None], labels)
    except DataError as error:
        raise DataError(f"{members.where}, {part} part: {error}") from error


def _array(members: Members, file: str, sums: Mapping[str, str | None]) -> NDArray[np.uint8]:
    name = members.find(f"{file}.gz", file)
    content = members.read(name)
    if expected := sums.get(name.rpartition("/")[2]):
        check_content(members.where, name, content, expected)
    if name.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{members.where}: {name} is damaged ({error}); put a whole copy there."
            ) from error
    axes = content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    shape = np.frombuffer(content[4 : 4 + 4 * axes], dtype=">u4").tolist()
    if not axes or len(content) != 4 + 4 * axes + math.prod(shape):
        raise DataError(
            f"{members.where}: {name} is no idx file of bytes, or not whole: {len(content):,} bytes for the "
            f"shape {shape}. Put a whole copy there."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)
