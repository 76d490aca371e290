"""What every partitioner needs: its request checked, the clients' sizes, the samples of each class shuffled.

The draws of one partition are told apart by `Draw`, which stands in the key where other purposes have the
round, so that, say, the sizes of a partition do not depend on how its samples are shuffled.
"""

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, normals, permutation

Indices = NDArray[np.int64]


class Draw(IntEnum):
    """What is drawn for a partition; PROPORTIONS + attempt for the redrawn ones."""

    SHUFFLE = 0
    SIZES = 1
    FILL = 2
    DEAL = 3
    PROPORTIONS = 4


def require_count(owner: str, name: str, value: int) -> None:
    """Refuse anything but an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{owner}({name}={value}): need an integer, {name} ≥ 1. Set {name} to 1 or more.")


def require_alpha(owner: str, alpha: float) -> None:
    """Refuse a concentration that is no Dirichlet's."""
    if not (math.isfinite(alpha) and alpha > 0):
        raise RequestError(
            f"{owner}(alpha={alpha}): need a finite alpha > 0. Small alpha (0.1) makes clients differ, "
            "large alpha (100) makes them alike; for alike clients use the partition 'iid'."
        )


def require_sigma(owner: str, sigma: float) -> None:
    """Refuse a spread of log sizes that is negative, or beyond what can be told apart."""
    if not 0 <= sigma <= 100:
        raise RequestError(
            f"{owner}(sigma={sigma}): need 0 ≤ sigma ≤ 100. sigma is the standard deviation of the log of "
            "the clients' sizes: 0 gives equal sizes, 1 sizes that differ tenfold."
        )


def require_labels(owner: str, labels: NDArray[np.integer]) -> None:
    """Refuse anything but a list of integer labels."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise RequestError(
            f"{owner}: labels are {labels.dtype} of shape {labels.shape}; need integers of shape [samples]. "
            "Pass one class number per sample."
        )


def require_samples(owner: str, clients: int, needed: int, labels: NDArray[np.integer]) -> None:
    """Refuse labels that are not a list of integers, or fewer of them than are needed."""
    require_labels(owner, labels)
    if needed > labels.size:
        raise RequestError(
            f"{owner}(clients={clients}): {labels.size} samples given, at least {needed} needed, so that no "
            "client is empty. Use fewer clients or more samples."
        )


def shuffled_classes(labels: NDArray[np.integer], seed: int) -> list[Indices]:
    """The indices of each class that occurs, in ascending class order, each in random order."""
    order = permutation(labels.size, seed, Purpose.PARTITION, round=Draw.SHUFFLE)
    _, classes = np.unique(labels, return_inverse=True)
    grouped = order[np.argsort(classes[order], kind="stable")]
    return np.split(grouped, np.cumsum(np.bincount(classes))[:-1])


def equal_slices(order: Indices, clients: int) -> list[Indices]:
    """Contiguous slices, client i from i·N/clients to (i+1)·N/clients rounded down: equal sizes up to one."""
    bounds = np.arange(clients + 1) * order.size // clients
    return np.split(order, bounds[1:-1])


def lognormal_sizes(samples: int, clients: int, sigma: float, seed: int) -> Indices:
    """Sizes in proportion to exp(sigma·z), z normal: each at least 1, together all samples.

    Everyone gets one sample; the others are shared in proportion, rounded by largest remainder.
    """
    logs = sigma * normals(seed, Purpose.PARTITION, round=Draw.SIZES, client=np.arange(clients))
    weights = np.exp(logs - logs.max())
    shares = weights / weights.sum() * (samples - clients)
    sizes = np.floor(shares).astype(np.int64)
    left = samples - clients - int(sizes.sum())
    sizes[np.argsort(sizes - shares, kind="stable")[:left]] += 1
    return np.asarray(sizes + 1)
