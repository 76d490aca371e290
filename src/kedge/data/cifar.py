"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): batches pickled by Python 2, in one tar archive.

A batch is a dict with data, uint8 [n, 3072] as three planes of 32×32, and labels or fine_labels. Only numpy
arrays are unpickled: a pickle that asks for anything else is refused. Addresses and checksums are
torchvision's.
"""

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import DataError
from kedge.data.archive import Archive, Given, located
from kedge.data.dataset import Dataset, Source
from kedge.data.folder import KNOWN
from kedge.data.known import from_torchvision
from kedge.data.members import Members, opened

ADDRESS = "https://www.cs.toronto.edu/~kriz/"
ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-python.tar.gz",
        (f"{ADDRESS}cifar-10-python.tar.gz",),
        ("md5:c58f30108f718f92721af3b95e74349a",),
        170_498_071,
    ),
    "cifar100": Archive(
        "cifar-100-python.tar.gz",
        (f"{ADDRESS}cifar-100-python.tar.gz",),
        ("md5:eb9058c3a382ffc7106e4002c42a8d85",),
        169_001_437,
    ),
}


def cifar10(path: Given = None) -> Source:
    """50,000 / 10,000 color images, 32×32, 10 classes (170 MB).

    `path` is cifar-10-python.tar.gz or the folder it unpacks to.
    """
    return _source("cifar10", path, [f"data_batch_{k}" for k in range(1, 6)], "test_batch", "labels", 10)


def cifar100(path: Given = None) -> Source:
    """50,000 / 10,000 color images, 32×32, 100 classes (169 MB).

    `path` is cifar-100-python.tar.gz or the folder it unpacks to.
    """
    return _source("cifar100", path, ["train"], "test", "fine_labels", 100)


def _source(name: str, path: Given, train: list[str], test: str, key: str, classes: int) -> Source:
    with opened(located(name, ARCHIVES[name], path, partial(from_torchvision, name.upper()))) as members:
        parts = [_batch(members, file, key) for file in train]
        x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
        held = Dataset(*_batch(members, test, key))
    return Source(name, Dataset(x, y), held, classes, *KNOWN[name], scale=1 / 255)


def _batch(members: Members, file: str, key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    name = members.only(file)
    content = members.read(name)
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
    """Unpickles dicts, lists, numbers, strings and numpy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names a pickled array needs; numpy's inner module was renamed since CIFAR was made."""
        if (module.replace("_core", "core"), name) in ALLOWED:
            return ALLOWED[module.replace("_core", "core"), name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _dtype(kind: str, align: object = False, copy: object = True) -> np.dtype[Any]:
    return np.dtype(kind, False, True)  # CIFAR says 0 and 1: numpy 2.4.0 to 2.4.4 warn


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],  # type: ignore[dict-item]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}
