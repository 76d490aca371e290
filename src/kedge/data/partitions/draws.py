"""Random draws, arguments and checks that several partitions share.

`Draw` gives each draw of a partition a random stream of its own, so that, for example, the clients' sizes do
not depend on how samples are shuffled. It takes the place of the round in the random key.
"""

from enum import IntEnum
from math import inf
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, normals, permutation

Indices = NDArray[np.int64]
Alpha = Annotated[
    float,
    Field(
        gt=0,
        lt=inf,
        description="small alpha (0.1) makes clients differ, large alpha (100) makes them alike; for alike "
        "clients use the partition 'iid'",
    ),
]
Sigma = Annotated[
    float,
    Field(
        ge=0,
        le=100,
        description="sigma is the standard deviation of the log of the clients' sizes: 0 gives equal sizes, "
        "1 sizes that differ tenfold",
    ),
]


class Draw(IntEnum):
    """The draws of a partition; a repeated draw of proportions uses PROPORTIONS + attempt."""

    SHUFFLE = 0
    SIZES = 1
    FILL = 2
    DEAL = 3
    PROPORTIONS = 4


def require_labels(owner: str, labels: NDArray[np.integer]) -> None:
    """Raise unless `labels` are integers of shape [samples]."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise RequestError(
            f"{owner}: labels are {labels.dtype} of shape {labels.shape}; need integers of shape [samples]. "
            "Pass one class number per sample."
        )


def require_samples(owner: str, clients: int, needed: int, labels: NDArray[np.integer]) -> None:
    """Raise unless there are at least `needed` integer labels."""
    require_labels(owner, labels)
    if needed > labels.size:
        raise RequestError(
            f"{owner}(clients={clients}): {labels.size} samples given, at least {needed} needed, so that no "
            "client is empty. Use fewer clients or more samples."
        )


def shuffled_classes(labels: NDArray[np.integer], seed: int) -> list[Indices]:
    """The shuffled indices of each class that occurs, in ascending order of classes."""
    order = permutation(labels.size, seed, Purpose.PARTITION, round=Draw.SHUFFLE)
    _, classes = np.unique(labels, return_inverse=True)
    grouped = order[np.argsort(classes[order], kind="stable")]
    return np.split(grouped, np.cumsum(np.bincount(classes))[:-1])


def equal_slices(order: Indices, clients: int) -> list[Indices]:
    """Contiguous slices, client i from ⌊i·N/clients⌋ to ⌊(i+1)·N/clients⌋: sizes differ by at most 1."""
    bounds = np.arange(clients + 1) * order.size // clients
    return np.split(order, bounds[1:-1])


def lognormal_sizes(samples: int, clients: int, sigma: float, seed: int) -> Indices:
    """Client sizes of at least 1 that sum to `samples`, in proportion to exp(sigma·z), z normal.

    Every client gets one sample; the rest is divided in proportion, rounded by largest remainder.
    """
    logs = sigma * normals(seed, Purpose.PARTITION, round=Draw.SIZES, client=np.arange(clients))
    weights = np.exp(logs - logs.max())
    shares = weights / weights.sum() * (samples - clients)
    sizes = np.floor(shares).astype(np.int64)
    left = samples - clients - int(sizes.sum())
    sizes[np.argsort(sizes - shares, kind="stable")[:left]] += 1
    return np.asarray(sizes + 1)
