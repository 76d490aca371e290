"""Partition files: they are read back unchanged, and refused for other data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kedge.core.errors import DataError, RequestError
from kedge.data.dataset import Dataset, Source
from kedge.data.federation import Federation, federate
from kedge.data.local_tests import LocalTests, partitioned_labels
from kedge.data.partitions.partition import Dirichlet, Saved
from kedge.data.partitions.saved import (
    PARTITION_FILE,
    PartitionRecord,
    labels_checksum,
    partition_record,
    read_partition,
)

LABELS = np.arange(40) % 4
WAYS: list[tuple[LocalTests, float]] = [("split", 0.25), ("merged", 0.25), ("matched", 0.0)]


def source(labels: Any = LABELS, tests: int = 12) -> Source:
    x = np.arange(len(labels) + tests, dtype=np.float32)[:, None]
    held = Dataset(x[len(labels) :], np.arange(tests) % 4)
    return Source("mine", Dataset(x[: len(labels)], labels), held, 4)


def federation(local: LocalTests = "split", share: float = 0.25) -> Federation:
    data = source()
    return federate(data, Dirichlet(5, 0.5)(partitioned_labels(data, local), 1), share, 1, local)


def written(folder: Path, local: LocalTests = "split", share: float = 0.25) -> Federation:
    found = federation(local, share)
    (folder / PARTITION_FILE).write_bytes(partition_record(found, "mine", local, share).to_bytes())
    return found


@pytest.mark.parametrize(("local", "share"), WAYS)
@pytest.mark.parametrize("named", ["folder", "file"])
def test_a_saved_partition_gives_the_same_federation(
    named: str, local: LocalTests, share: float, tmp_path: Path
) -> None:
    first = written(tmp_path, local, share)
    saved = Saved(str(tmp_path if named == "folder" else tmp_path / PARTITION_FILE))
    again = saved.federation(source(), "mine", local, share)
    for left, right in ((first.clients, again.clients), (first.local_tests, again.local_tests)):
        assert len(left) == len(right) == 5
        assert all(map(np.array_equal, left, right))
    assert first.test is not None
    assert again.test is not None
    assert first.test.x.tolist() == again.test.x.tolist()


def test_a_saved_partition_is_a_partition_of_its_pool(tmp_path: Path) -> None:
    """A client's training and test samples together are its part, with or without local tests."""
    written(tmp_path)
    saved = Saved(str(tmp_path))
    for seed in (0, 7):
        assert all(map(np.array_equal, saved(LABELS, seed), Dirichlet(5, 0.5)(LABELS, 1)))
    with pytest.raises(DataError, match=r"was made from other data: there are 39 samples, there were 40"):
        saved(LABELS[:-1], 0)


def test_the_labels_checksum_is_the_same_on_every_platform() -> None:
    """The sha256 is of little-endian 8-byte integers."""
    assert labels_checksum(np.array([0, 1, 258])) == labels_checksum(np.array([0, 1, 258], dtype=">i4"))
    assert (
        labels_checksum(np.array([0])) == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
    )


@pytest.mark.parametrize(
    ("data", "dataset", "local", "share", "kind", "message"),
    [
        (source(), "other", "split", 0.25, RequestError, r"of the dataset 'mine', and this run uses 'other'"),
        (source(), "mine", "merged", 0.25, RequestError, r"this run has 'merged', 0\.25\. Set evalu"),
        (source(), "mine", "split", 0.2, RequestError, r"Set evaluation.local = 'split' and .* = 0\.25\."),
        (source(LABELS[:-4]), "mine", "split", 0.25, DataError, r"there are 36 samples, there were 40"),
        (source(LABELS[::-1].copy()), "mine", "split", 0.25, DataError, r"the 40 labels have changed"),
    ],
    ids=["dataset", "local", "local_test", "size", "labels"],
)
def test_a_partition_that_does_not_fit_is_refused(
    data: Source,
    dataset: str,
    local: LocalTests,
    share: float,
    kind: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    written(tmp_path)
    with pytest.raises(kind, match=message):
        Saved(str(tmp_path)).federation(data, dataset, local, share)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"there is no file {tmp_path}/partition\.npz\. Name the folder"):
        Saved(str(tmp_path)).record()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    whole = (tmp_path / PARTITION_FILE).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no archive"):
        (tmp_path / PARTITION_FILE).write_bytes(content)
        with pytest.raises(DataError, match=r"partition\.npz: damaged"):
            read_partition(tmp_path / PARTITION_FILE)


def record(**changes: Any) -> PartitionRecord:
    return replace(partition_record(federation(), "mine", "split", 0.25), **changes)


NOBODY = np.empty(0, dtype=np.int64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local": "some"}, r"local is 'some'; need one of split, merged, matched"),
        ({"train": (np.array([0, 1]), np.array([1])), "test": (NOBODY, NOBODY)}, r"at most once"),
        ({"train": (np.array([0, 40]),), "test": (NOBODY,)}, r"need indices from 0 to 39"),
        ({"train": (np.array([-1]),), "test": (NOBODY,)}, r"need indices from 0 to 39"),
        ({"train": (np.array([0]), NOBODY), "test": (NOBODY, NOBODY)}, r"training samples and a list"),
        (
            {"train": (np.array([0]),), "test": (NOBODY, NOBODY)},
            r"list of test samples, maybe empty, for every",
        ),
        ({"train": (np.array([0.0]),), "test": (NOBODY,)}, r"damaged \(1 indices, float64"),
    ],
    ids=["local", "twice", "beyond", "negative", "empty", "lists", "floats"],
)
def test_a_file_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / PARTITION_FILE).write_bytes(record(**changes).to_bytes())
    with pytest.raises(DataError, match=message):
        read_partition(tmp_path / PARTITION_FILE)


def test_a_file_that_lacks_an_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / PARTITION_FILE, train=np.arange(3))
    with pytest.raises(DataError, match=r"lacks train_sizes, test, test_sizes, dataset"):
        read_partition(tmp_path / PARTITION_FILE)


def test_the_first_difference_is_named() -> None:
    one = record()
    assert one.difference(record()) is None
    other = (*one.train[1:], one.train[0])
    cases: dict[str, dict[str, Any]] = {
        "dataset is 'yours', it was 'mine'": {"dataset": "yours"},
        "local is 'merged', it was 'split'": {"local": "merged"},
        "local_test is 0.5, it was 0.25": {"local_test": 0.5},
        "there are 41 samples, there were 40": {"samples": 41},
        "the 40 labels have changed": {"labels": "0"},
        "the clients' samples have changed": {"train": other},
    }
    for message, changes in cases.items():
        assert one.difference(record(**changes)) == message
    assert one.difference(record(test=one.test[::-1])) == "the clients' samples have changed"
