"""Local tests: the samples on which a client's own model is tested, by one of three ways.

split    a share of what every client was dealt of the training part, drawn without regard to class.
merged   training and test part are one before anything is dealt out, then as split (PFLlib). The test part
         is then among the training samples, so what is common to all is the local tests together.
matched  the test part is dealt out class by class, in the clients' shares of the class's training samples.

Samples are numbered as in one pool: the training part, then, if it is needed, the test part.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, permutation
from kedge.data.dataset import Dataset, Source

Ints = NDArray[np.int64]
LocalTests = Literal["split", "merged", "matched"]
TIES, DEAL = 1, 2  # what is drawn for matched tests; stands in the key where other purposes have the round


def check_local_tests(local: LocalTests, share: float) -> None:
    """Refuse a share that is none, or that the way of making local tests has no use for."""
    if not 0 <= share < 1:
        raise RequestError(
            f"local_test = {share}: need 0 ≤ local_test < 1, the share of each client's samples."
        )
    if local == "merged" and not share:
        raise RequestError(
            "local = 'merged' with local_test = 0: the test part is merged into the training part, so there "
            "would be nothing to test on. Set local_test, the share of each client's samples (PFLlib: 0.25)."
        )
    if local == "matched" and share:
        raise RequestError(
            f"local = 'matched' with local_test = {share}: matched tests are dealt out of the test part, no "
            "training sample is held out. Set local_test = 0, or use local = 'split' or 'merged'."
        )


def dealt_labels(source: Source, local: LocalTests) -> Ints:
    """The labels of the samples that are dealt out to clients."""
    return pool_labels(source, "merged" if local == "merged" else "split")


def pool_labels(source: Source, local: LocalTests) -> Ints:
    """The labels of the pool."""
    return (source.train.y if local == "split" else torch.cat([source.train.y, source.test.y])).numpy()


def pooled(source: Source, local: LocalTests) -> Dataset:
    """The samples that clients train and are tested on; each stands there once."""
    if local == "split":
        return source.train
    return Dataset(torch.cat([source.train.x, source.test.x]), pool_labels(source, local))


def common_test(source: Source, local: LocalTests, pool: Dataset, tests: Sequence[Ints]) -> Dataset | None:
    """The test set common to all: the dataset's own, or where that is trained on, all local tests."""
    if local == "split":
        return source.test
    if local == "matched":  # a view of the pool
        return Dataset(pool.x[len(source.train) :], pool.y[len(source.train) :])
    union = torch.from_numpy(np.concatenate(tests))
    return Dataset(pool.x[union], pool.y[union]) if len(union) else None


def split(clients: Sequence[Ints], share: float, seed: int) -> tuple[list[Ints], list[Ints]]:
    """Every client's samples as training and test samples; both ascending.

    At least one sample stays for training, so that a client with one sample has no local test.
    """
    train, tests = [], []
    for number, own in enumerate(clients):
        held = min(round(share * len(own)), len(own) - 1)
        order = permutation(len(own), seed, Purpose.SPLIT, client=number)
        tests.append(np.sort(own[order[:held]]))
        train.append(np.sort(own[order[held:]]))
    return train, tests


def matched(source: Source, clients: Sequence[Ints], seed: int) -> list[Ints]:
    """Every client's samples of the test part, numbered as in the pool; ascending.

    The n test samples of a class are given to clients that hold c_i of its training samples as n·c_i / Σc,
    rounded by largest remainder, ties by chance. A class that no client holds is given to nobody.
    """
    labels, test_labels = source.train.y.numpy(), source.test.y.numpy()
    counts = np.array([np.bincount(labels[own], minlength=source.classes) for own in clients])
    hands: list[list[Ints]] = [[np.empty(0, dtype=np.int64)] for _ in clients]
    for number in np.flatnonzero(counts.sum(axis=0)).tolist():
        samples = np.flatnonzero(test_labels == number)
        sizes = largest_remainder(samples.size, counts[:, number], seed, number)
        order = permutation(samples.size, seed, Purpose.SPLIT, round=DEAL, client=number)
        parts = np.split(samples[order] + labels.size, np.cumsum(sizes)[:-1])
        for hand, part in zip(hands, parts, strict=True):
            hand.append(part)
    return [np.sort(np.concatenate(hand)) for hand in hands]


def largest_remainder(samples: int, weights: Ints, seed: int, number: int) -> Ints:
    """Whole numbers in proportion to the weights, with this sum; ties by chance. In exact arithmetic."""
    sizes, rest = np.divmod(samples * weights, weights.sum())
    chance = permutation(weights.size, seed, Purpose.SPLIT, round=TIES, client=number)
    first = chance[np.argsort(-rest[chance], kind="stable")]
    sizes[first[: samples - int(sizes.sum())]] += 1
    return np.asarray(sizes)
