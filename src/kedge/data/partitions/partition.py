"""Partitions: frozen values that split a labeled dataset among clients.

A partition is called with labels and a seed. It returns one ascending array of indices per client, disjoint
and not empty, and is a pure function of (itself, labels, seed, keys). `keys` has one entry per sample (its
subject, site or writer); only `Natural` uses it.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, permutation
from kedge.core.ranges import Count, checked
from kedge.data.partitions.draws import (
    Draw,
    Indices,
    Sigma,
    equal_slices,
    lognormal_sizes,
    require_labels,
    require_samples,
    shuffled_classes,
)
from kedge.data.partitions.label_skew import Dirichlet, DirichletClasses
from kedge.data.partitions.saved import Saved

__all__ = [
    "PARTITIONS",
    "Dirichlet",
    "DirichletClasses",
    "Iid",
    "Natural",
    "Partition",
    "Quantity",
    "Saved",
    "Shards",
]


class Partition(Protocol):
    """The interface of all partitions."""

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        ...


@checked
@dataclass(frozen=True)
class Iid:
    """Contiguous slices of the shuffled data: all samples are assigned, sizes differ by at most 1.

    `stratified` gives every client the same number of samples of each class, as FedDyn's code does for
    CIFAR-100; the number of clients must then divide the size of every class.
    """

    clients: Count
    stratified: bool = False

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        require_samples("Iid", self.clients, self.clients, labels)
        pools = shuffled_classes(labels, seed)
        if self.stratified:
            odd = next((pool for pool in pools if pool.size % self.clients), None)
            if odd is not None:
                raise RequestError(
                    f"Iid(clients={self.clients}, stratified=True): a class of {odd.size} samples cannot be "
                    "divided equally. Use a number of clients that divides every class, or "
                    "stratified = false."
                )
            shares = [equal_slices(pool, self.clients) for pool in pools]
            return [np.sort(np.concatenate(share)) for share in zip(*shares, strict=True)]
        order = permutation(labels.size, seed, Purpose.PARTITION, round=Draw.SHUFFLE)
        return [np.sort(indices) for indices in equal_slices(order, self.clients)]


@checked
@dataclass(frozen=True)
class Shards:
    """Sort by label, cut into clients·per_client shards, assign shards at random (McMahan et al., 2017).

    Sizes of shards differ by at most 1; with balanced classes a client has about `per_client` classes.
    """

    clients: Count
    per_client: Count = 2

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        count = self.clients * self.per_client
        require_samples("Shards", self.clients, count, labels)
        shards = equal_slices(np.argsort(labels, kind="stable"), count)
        assigned = permutation(count, seed, Purpose.PARTITION, round=Draw.DEAL).reshape(self.clients, -1)
        return [np.sort(np.concatenate([shards[shard] for shard in client])) for client in assigned]


@checked
@dataclass(frozen=True)
class Quantity:
    """Slices of the shuffled data with log-normal sizes of at least 1: sizes differ, class mixes do not."""

    clients: Count
    sigma: Sigma

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        require_samples("Quantity", self.clients, self.clients, labels)
        order = permutation(labels.size, seed, Purpose.PARTITION, round=Draw.SHUFFLE)
        sizes = lognormal_sizes(labels.size, self.clients, self.sigma, seed)
        return [np.sort(indices) for indices in np.split(order, np.cumsum(sizes)[:-1])]


@dataclass(frozen=True)
class Natural:
    """One client per distinct key, in ascending order of keys; nothing is random.

    `key` selects one of the dataset's keys if it has several.
    """

    key: str | None = None

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        require_labels("Natural", labels)
        if keys is None:
            raise RequestError(
                "Natural: no keys given; need one key per sample. Use a dataset that has keys "
                "(uci_har has 'subject'), or another partition, such as 'iid' or 'dirichlet'."
            )
        if keys.shape != labels.shape or not keys.size:
            raise RequestError(
                f"Natural: keys of shape {keys.shape} for {labels.size} samples; need one key per sample "
                "and at least one sample. Pass the keys of the training samples."
            )
        _, owners = np.unique(keys, return_inverse=True)
        return np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1])


PARTITIONS: dict[str, type] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "dirichlet-classes": DirichletClasses,
    "shards": Shards,
    "quantity": Quantity,
    "natural": Natural,
    "saved": Saved,
}
