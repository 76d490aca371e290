"""Local tests: the samples on which a client's own model is tested. The argument `local` selects the kind.

split    a random share of each client's training samples.
merged   training and test part are merged before the partition, then as split (PFLlib). Clients then train on
         samples of the test part, so the common test set is the union of all local tests.
matched  each class of the test part is divided among the clients in proportion to their training samples of
         that class.

Indices refer to one pool: the training part, followed by the test part if it is needed.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, permutation
from kedge.core.ranges import checked
from kedge.data.dataset import Dataset, Source

Ints = NDArray[np.int64]
LocalTests = Literal["split", "merged", "matched"]
Share = Annotated[float, Field(ge=0, lt=1, description="the share of each client's samples")]
TIES, DEAL = 1, 2  # draws of matched tests; part of the random key in place of the round


@checked(prefix="")
def check_local_tests(local: LocalTests, local_test: Share) -> None:
    """Raise if the share `local_test` is out of range, or does not fit the kind of local tests."""
    if local == "merged" and not local_test:
        raise RequestError(
            "local = 'merged' with local_test = 0: the test part is merged into the training part, so no "
            "test samples would remain. Set local_test, the share of each client's samples (PFLlib: 0.25)."
        )
    if local == "matched" and local_test:
        raise RequestError(
            f"local = 'matched' with local_test = {local_test}: matched tests are taken from the test part, "
            "not from the training samples. Set local_test = 0, or use local = 'split' or 'merged'."
        )


def partitioned_labels(source: Source, local: LocalTests) -> Ints:
    """The labels of the samples that a partition splits among clients."""
    return pool_labels(source, "merged" if local == "merged" else "split")


def pool_labels(source: Source, local: LocalTests) -> Ints:
    """The labels of the pool."""
    return (source.train.y if local == "split" else torch.cat([source.train.y, source.test.y])).numpy()


def sample_pool(source: Source, local: LocalTests) -> Dataset:
    """The pool: all samples on which clients train or are tested."""
    if local == "split":
        return source.train
    return Dataset(torch.cat([source.train.x, source.test.x]), pool_labels(source, local))


def common_test(source: Source, local: LocalTests, pool: Dataset, tests: Sequence[Ints]) -> Dataset | None:
    """The common test set: the dataset's own, or with local = "merged" the union of the local tests."""
    if local == "split":
        return source.test
    if local == "matched":  # a view of the pool
        return Dataset(pool.x[len(source.train) :], pool.y[len(source.train) :])
    union = torch.from_numpy(np.concatenate(tests))
    return Dataset(pool.x[union], pool.y[union]) if len(union) else None


def split_tests(clients: Sequence[Ints], share: float, seed: int) -> tuple[list[Ints], list[Ints]]:
    """The training and the test samples of each client, both ascending.

    At least one sample remains for training, so a client with one sample has no local test.
    """
    train, tests = [], []
    for number, samples in enumerate(clients):
        count = min(round(share * len(samples)), len(samples) - 1)
        order = permutation(len(samples), seed, Purpose.SPLIT, client=number)
        tests.append(np.sort(samples[order[:count]]))
        train.append(np.sort(samples[order[count:]]))
    return train, tests


def matched_tests(source: Source, clients: Sequence[Ints], seed: int) -> list[Ints]:
    """The test samples of each client, as ascending indices into the pool.

    A client with c_i training samples of a class gets n·c_i / Σc of its n test samples, rounded by largest
    remainder, ties broken at random. A class without training samples is not assigned.
    """
    labels, test_labels = source.train.y.numpy(), source.test.y.numpy()
    counts = np.array([np.bincount(labels[samples], minlength=source.classes) for samples in clients])
    assigned: list[list[Ints]] = [[np.empty(0, dtype=np.int64)] for _ in clients]
    for number in np.flatnonzero(counts.sum(axis=0)).tolist():
        samples = np.flatnonzero(test_labels == number)
        sizes = largest_remainder(samples.size, counts[:, number], seed, number)
        order = permutation(samples.size, seed, Purpose.SPLIT, round=DEAL, client=number)
        parts = np.split(samples[order] + labels.size, np.cumsum(sizes)[:-1])
        for parts_of_client, part in zip(assigned, parts, strict=True):
            parts_of_client.append(part)
    return [np.sort(np.concatenate(parts_of_client)) for parts_of_client in assigned]


def largest_remainder(samples: int, weights: Ints, seed: int, number: int) -> Ints:
    """Integers in proportion to `weights` that sum to `samples`, ties broken at random; exact arithmetic."""
    sizes, rest = np.divmod(samples * weights, weights.sum())
    random_order = permutation(weights.size, seed, Purpose.SPLIT, round=TIES, client=number)
    first = random_order[np.argsort(-rest[random_order], kind="stable")]
    sizes[first[: samples - int(sizes.sum())]] += 1
    return np.asarray(sizes)
