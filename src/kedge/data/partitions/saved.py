"""A partition in a file: who trains on which samples and who is tested on which, as a run's folder keeps it.

`partition.npz` holds indices into the pool of data/local_tests.py: `train` and `test`, client after client,
cut by `train_sizes` and `test_sizes`; the dataset's name, how local tests were made, how many samples the
pool has, and the sha256 of its labels, which detects a file of other data. For data from outside the package
it also holds `inputs`, the sha256 of the samples and of the common test set (not in files of 0.1).
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from kedge.core.errors import DataError, RequestError
from kedge.data.dataset import Source
from kedge.data.federation import Federation, arranged
from kedge.data.folder import npz_arrays
from kedge.data.local_tests import LocalTests, pool_labels

Ints = NDArray[np.int64]
FILE = "partition.npz"
WANTED = ("train", "train_sizes", "test", "test_sizes", "dataset", "local", "local_test", "samples", "labels")


@dataclass(frozen=True, eq=False)
class Holdings:
    """What such a file says."""

    dataset: str
    local: LocalTests
    local_test: float
    samples: int  # in the pool
    labels: str  # sha256 of the pool's labels
    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    inputs: str = ""  # sha256 of the samples and the common test set; "" if unknown

    def packed(self) -> bytes:
        """The file's bytes."""
        file = io.BytesIO()
        known = {"inputs": np.array(self.inputs)} if self.inputs else {}
        np.savez_compressed(
            file,
            allow_pickle=False,
            **known,
            train=np.concatenate(self.train),
            train_sizes=np.array([len(own) for own in self.train]),
            test=np.concatenate(self.test),
            test_sizes=np.array([len(own) for own in self.test]),
            dataset=np.array(self.dataset),
            local=np.array(self.local),
            local_test=np.array(self.local_test),
            samples=np.array(self.samples),
            labels=np.array(self.labels),
        )
        return file.getvalue()

    def misfit(self, samples: int, labels: str) -> str | None:
        """How a pool differs from the one these holdings are of; None where it does not."""
        if samples != self.samples:
            return f"there are {samples} samples, there were {self.samples}"
        return None if labels == self.labels else f"the {samples} labels are not what they were"

    def difference(self, other: "Holdings") -> str | None:
        """What differs in the other holdings; None for nothing."""
        for name in ("dataset", "local", "local_test"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} is {getattr(other, name)!r}, it was {getattr(self, name)!r}"
        if problem := self.misfit(other.samples, other.labels):
            return problem
        if not (_same(self.train, other.train) and _same(self.test, other.test)):
            return "the clients' samples are not what they were"
        same = not self.inputs or not other.inputs or self.inputs == other.inputs
        return None if same else "the samples or the test set have changed, though the labels have not"


def holdings(
    federation: Federation, dataset: str, local: LocalTests, local_test: float, inputs: str = ""
) -> Holdings:
    """The holdings of a federation that is made of a dataset."""
    labels = federation.pool.y.cpu().numpy()
    dealt = federation.clients, federation.local_tests
    return Holdings(dataset, local, local_test, labels.size, checksum(labels), *dealt, inputs)


def inputs_of(federation: Federation) -> str:
    """The sha256 of a federation's samples, in their stored dtype, and of its common test set."""
    digest = hashlib.sha256()
    for data in (federation.pool, federation.test):
        for values in (data.x, data.y) if data else ():
            digest.update(f"{values.dtype} {tuple(values.shape)};".encode())
            digest.update(values.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(labels: NDArray[np.integer]) -> str:
    """The sha256 of labels, the same on every platform."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def read(file: Path) -> Holdings:
    """The holdings in a file, checked: disjoint, in range, nobody without training samples."""
    arrays = npz_arrays(file, WANTED)
    try:
        found = Holdings(
            dataset=str(arrays["dataset"].item()),
            local=arrays["local"].item(),
            local_test=float(arrays["local_test"].item()),
            samples=int(arrays["samples"].item()),
            labels=str(arrays["labels"].item()),
            train=_cut(arrays["train"], arrays["train_sizes"]),
            test=_cut(arrays["test"], arrays["test_sizes"]),
            inputs=str(arrays["inputs"].item()) if "inputs" in arrays else "",
        )
    except (ValueError, TypeError) as error:
        raise DataError(f"{file}: damaged ({error}); put a whole copy there.") from error
    everyone = np.concatenate([*found.train, *found.test])
    if found.local not in get_args(LocalTests):
        raise DataError(f"{file}: local is {found.local!r}; need one of {', '.join(get_args(LocalTests))}.")
    if len(found.train) != len(found.test) or not all(len(own) for own in found.train):
        raise DataError(f"{file}: need training samples for every client, and a test list, empty or not.")
    if everyone.min() < 0 or everyone.max() >= found.samples or np.unique(everyone).size != everyone.size:
        raise DataError(f"{file}: need every sample at most once, as a number from 0 to {found.samples - 1}.")
    return found


@dataclass(frozen=True)
class Saved:
    """The clients of another run with their local tests; `path` is its folder, or the partition.npz in it."""

    path: str

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Ints]:
        """What each client holds of the pool that these are the labels of, tests included; ascending."""
        found = self.holdings()
        self._check(found, labels)
        return [np.sort(np.concatenate(pair)) for pair in zip(found.train, found.test, strict=True)]

    def federation(self, source: Source, dataset: str, local: LocalTests, local_test: float) -> Federation:
        """The federation of a dataset in which everybody holds what the file says."""
        found = self.holdings()
        if found.dataset != dataset:
            raise RequestError(
                f"partition saved(path={self.path}): it is of the dataset {found.dataset!r}, this run's is "
                f"{dataset!r}. Set data.name = {found.dataset!r}, or use another partition."
            )
        if (found.local, found.local_test) != (local, local_test):
            raise RequestError(
                f"partition saved(path={self.path}): its local tests were made with local = {found.local!r}, "
                f"local_test = {found.local_test}; this run asks for {local!r}, {local_test}. Set "
                f"evaluation.local = {found.local!r} and evaluation.local_test = {found.local_test}."
            )
        self._check(found, pool_labels(source, local))
        return arranged(source, local, found.train, found.test)

    def holdings(self) -> Holdings:
        """What the file says."""
        given = Path(self.path).expanduser()
        file = given / FILE if given.is_dir() else given
        if not file.is_file():
            raise RequestError(
                f"partition saved(path={self.path}): there is no file {file}. Name the folder of a run, or "
                f"the {FILE} in it."
            )
        return read(file)

    def _check(self, found: Holdings, labels: NDArray[np.integer]) -> None:
        if problem := found.misfit(labels.size, checksum(labels)):
            raise DataError(
                f"partition saved(path={self.path}) is of other data: {problem}. Use the data it was made "
                "of, or draw a new partition."
            )


def _cut(indices: NDArray[np.generic], sizes: NDArray[np.generic]) -> tuple[Ints, ...]:
    if indices.dtype != np.int64 or sizes.dtype != np.int64 or sizes.sum() != indices.size or sizes.min() < 0:
        raise ValueError(f"{indices.size} indices, {indices.dtype}, for sizes that sum to {sizes.sum()}")
    return tuple(np.split(indices.astype(np.int64), np.cumsum(sizes.astype(np.int64))[:-1]))


def _same(left: Sequence[Ints], right: Sequence[Ints]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))
