"""The file `partition.npz` in a run's folder: the training and test samples of each client.

`train` and `test` are indices into the pool (see data/local_tests.py), concatenated over clients;
`train_sizes` and `test_sizes` are the clients' numbers of samples. The file also has the name of the dataset,
the kind and share of local tests, the size of the pool, and the sha256 of its labels, which detects other
data. For data from outside the package, `inputs` is the sha256 of the samples and the common test set (not in
files of 0.1).
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
from kedge.data.federation import Federation, federation_from_indices
from kedge.data.local_tests import LocalTests, pool_labels
from kedge.data.npz_files import npz_arrays

Ints = NDArray[np.int64]
PARTITION_FILE = "partition.npz"
REQUIRED_ARRAYS = (
    "train",
    "train_sizes",
    "test",
    "test_sizes",
    "dataset",
    "local",
    "local_test",
    "samples",
    "labels",
)


@dataclass(frozen=True, eq=False)
class PartitionRecord:
    """The contents of a partition file."""

    dataset: str
    local: LocalTests
    local_test: float
    samples: int  # size of the pool
    labels: str  # sha256 of the pool's labels
    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    inputs: str = ""  # sha256 of the samples and the common test set; "" if unknown

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        file = io.BytesIO()
        known = {"inputs": np.array(self.inputs)} if self.inputs else {}
        np.savez_compressed(
            file,
            allow_pickle=False,
            **known,
            train=np.concatenate(self.train),
            train_sizes=np.array([len(samples) for samples in self.train]),
            test=np.concatenate(self.test),
            test_sizes=np.array([len(samples) for samples in self.test]),
            dataset=np.array(self.dataset),
            local=np.array(self.local),
            local_test=np.array(self.local_test),
            samples=np.array(self.samples),
            labels=np.array(self.labels),
        )
        return file.getvalue()

    def pool_mismatch(self, samples: int, labels: str) -> str | None:
        """The reason why a pool with this size and checksum of labels is not the recorded pool, or None."""
        if samples != self.samples:
            return f"there are {samples} samples, there were {self.samples}"
        return None if labels == self.labels else f"the {samples} labels have changed"

    def difference(self, other: "PartitionRecord") -> str | None:
        """The first difference from another record, or None."""
        for name in ("dataset", "local", "local_test"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} is {getattr(other, name)!r}, it was {getattr(self, name)!r}"
        if problem := self.pool_mismatch(other.samples, other.labels):
            return problem
        if not (_same(self.train, other.train) and _same(self.test, other.test)):
            return "the clients' samples have changed"
        same = not self.inputs or not other.inputs or self.inputs == other.inputs
        return None if same else "the samples or the test set have changed, though the labels have not"


def partition_record(
    federation: Federation, dataset: str, local: LocalTests, local_test: float, inputs: str = ""
) -> PartitionRecord:
    """The record of a federation made from a dataset."""
    labels = federation.pool.y.cpu().numpy()
    return PartitionRecord(
        dataset,
        local,
        local_test,
        labels.size,
        labels_checksum(labels),
        tuple(federation.clients),
        federation.local_tests,
        inputs,
    )


def inputs_checksum(federation: Federation) -> str:
    """The sha256 of a federation's samples, in their stored dtype, and its common test set."""
    digest = hashlib.sha256()
    for data in (federation.pool, federation.test):
        for values in (data.x, data.y) if data else ():
            digest.update(f"{values.dtype} {tuple(values.shape)};".encode())
            digest.update(values.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def labels_checksum(labels: NDArray[np.integer]) -> str:
    """The sha256 of labels; it does not depend on the platform."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def read_partition(file: Path) -> PartitionRecord:
    """Read a partition file; raise unless samples are disjoint and in range, and every client can train."""
    arrays = npz_arrays(file, REQUIRED_ARRAYS)
    try:
        record = PartitionRecord(
            dataset=str(arrays["dataset"].item()),
            local=arrays["local"].item(),
            local_test=float(arrays["local_test"].item()),
            samples=int(arrays["samples"].item()),
            labels=str(arrays["labels"].item()),
            train=_split(arrays["train"], arrays["train_sizes"]),
            test=_split(arrays["test"], arrays["test_sizes"]),
            inputs=str(arrays["inputs"].item()) if "inputs" in arrays else "",
        )
    except (ValueError, TypeError) as error:
        raise DataError(f"{file}: damaged ({error}); put a whole copy there.") from error
    everyone = np.concatenate([*record.train, *record.test])
    if record.local not in get_args(LocalTests):
        raise DataError(f"{file}: local is {record.local!r}; need one of {', '.join(get_args(LocalTests))}.")
    if len(record.train) != len(record.test) or not all(len(samples) for samples in record.train):
        raise DataError(
            f"{file}: need training samples and a list of test samples, maybe empty, for every client."
        )
    if everyone.min() < 0 or everyone.max() >= record.samples or np.unique(everyone).size != everyone.size:
        raise DataError(f"{file}: need indices from 0 to {record.samples - 1}, each at most once.")
    return record


@dataclass(frozen=True)
class Saved:
    """The clients and local tests of another run; `path` is its folder, or the partition.npz in it."""

    path: str

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Ints]:
        """The indices of each client, ascending: its training samples and its local test."""
        record = self.record()
        self._check(record, labels)
        return [np.sort(np.concatenate(pair)) for pair in zip(record.train, record.test, strict=True)]

    def federation(self, source: Source, dataset: str, local: LocalTests, local_test: float) -> Federation:
        """The federation of a dataset in which clients have the samples in the file."""
        record = self.record()
        if record.dataset != dataset:
            raise RequestError(
                f"partition saved(path={self.path}): it is a partition of the dataset {record.dataset!r}, "
                f"and this run uses {dataset!r}. Set data.name = {record.dataset!r}, or use another "
                "partition."
            )
        if (record.local, record.local_test) != (local, local_test):
            raise RequestError(
                f"partition saved(path={self.path}): its local tests have local = {record.local!r}, "
                f"local_test = {record.local_test}; this run has {local!r}, {local_test}. Set "
                f"evaluation.local = {record.local!r} and evaluation.local_test = {record.local_test}."
            )
        self._check(record, pool_labels(source, local))
        return federation_from_indices(source, local, record.train, record.test)

    def record(self) -> PartitionRecord:
        """The contents of the file."""
        path = Path(self.path).expanduser()
        file = path / PARTITION_FILE if path.is_dir() else path
        if not file.is_file():
            raise RequestError(
                f"partition saved(path={self.path}): there is no file {file}. Name the folder of a run, or "
                f"the {PARTITION_FILE} in it."
            )
        return read_partition(file)

    def _check(self, record: PartitionRecord, labels: NDArray[np.integer]) -> None:
        if problem := record.pool_mismatch(labels.size, labels_checksum(labels)):
            raise DataError(
                f"partition saved(path={self.path}) was made from other data: {problem}. Use the "
                "same data, or draw a new partition."
            )


def _split(indices: NDArray[np.generic], sizes: NDArray[np.generic]) -> tuple[Ints, ...]:
    if indices.dtype != np.int64 or sizes.dtype != np.int64 or sizes.sum() != indices.size or sizes.min() < 0:
        raise ValueError(f"{indices.size} indices, {indices.dtype}, for sizes that sum to {sizes.sum()}")
    return tuple(np.split(indices.astype(np.int64), np.cumsum(sizes.astype(np.int64))[:-1]))


def _same(left: Sequence[Ints], right: Sequence[Ints]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))
