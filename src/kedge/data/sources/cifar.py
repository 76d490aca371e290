"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): batches pickled by Python 2, in one tar archive.

A batch is a dict: "data" is uint8 [n, 3072], three planes of 32×32; the labels are "labels" or "fine_labels".
A pickle that contains anything but plain values and numpy arrays is refused. Addresses and checksums are
copied from torchvision.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.dataset import Dataset, Source
from kedge.data.download.archive import Archive, PathOption, check_content, find_archive, is_published
from kedge.data.download.archive_members import Members, open_members
from kedge.data.npz_files import NORMALIZATION

ADDRESS = "https://www.cs.toronto.edu/~kriz/"
ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-python.tar.gz",
        (f"{ADDRESS}cifar-10-python.tar.gz",),
        "md5:c58f30108f718f92721af3b95e74349a",
        170_498_071,
    ),
    "cifar100": Archive(
        "cifar-100-python.tar.gz",
        (f"{ADDRESS}cifar-100-python.tar.gz",),
        "md5:eb9058c3a382ffc7106e4002c42a8d85",
        169_001_437,
    ),
}

BATCHES = {  # md5 of every file in the archive
    "cifar10": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    "cifar100": {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
}


def cifar10(path: PathOption = None, verify: bool = True) -> Source:
    """50,000 / 10,000 color images, 32×32, 10 classes (170 MB).

    `path` is cifar-10-python.tar.gz or the folder it unpacks to; verify = false skips the
    checksums.
    """
    return _source("cifar10", path, verify, "labels", 10)


def cifar100(path: PathOption = None, verify: bool = True) -> Source:
    """50,000 / 10,000 color images, 32×32, 100 classes (169 MB).

    `path` is cifar-100-python.tar.gz or the folder it unpacks to; verify = false skips the
    checksums.
    """
    return _source("cifar100", path, verify, "fine_labels", 100)


def _source(name: str, path: PathOption, verify: bool, key: str, classes: int) -> Source:
    archive, sums = ARCHIVES[name], BATCHES[name]
    file = find_archive(name, archive, path, verify)
    check_batches = verify and path is not None and not is_published(file, archive)
    with open_members(file) as members:
        *parts, test = (
            _batch(members, batch, key, md5 if check_batches else None) for batch, md5 in sums.items()
        )
        x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Source(name, Dataset(x, y), Dataset(*test), classes, *NORMALIZATION[name], scale=1 / 255)


def _batch(
    members: Members, file: str, key: str, md5: str | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    name = members.find(file)
    content = members.read(name)
    if md5 is not None:
        check_content(members.where, name, content, f"md5:{md5}")
    try:
        entry = Arrays(io.BytesIO(content), encoding="latin1").load()
        data, labels = np.asarray(entry["data"]), np.asarray(entry[key], dtype=np.int64)
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{members.where}: {name} is damaged, or no batch of CIFAR ({error!r}); put a whole copy there."
        ) from error
    if data.dtype != np.uint8 or data.shape != (len(labels), 3 * 32 * 32):
        raise DataError(
            f"{members.where}: {name} has data {data.dtype} of shape {data.shape} for {len(labels)} labels; "
            "need uint8 [n, 3072]."
        )
    return data.reshape(-1, 3, 32, 32), labels


class Arrays(pickle.Unpickler):
    """Unpickles dicts, lists, numbers, strings and numpy arrays; refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """The constructor of that name, if a pickled array needs it.

        numpy has renamed its inner module since CIFAR was pickled.
        """
        if (module.replace("_core", "core"), name) in ALLOWED:
            return ALLOWED[module.replace("_core", "core"), name]
        raise pickle.UnpicklingError(f"it contains {module}.{name}")


def _dtype(kind: str, align: object = False, copy: object = True) -> np.dtype[Any]:
    return np.dtype(kind, False, True)  # CIFAR has 0 and 1 here; numpy 2.4.0 to 2.4.4 warn about them


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],  # type: ignore[dict-item]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}
