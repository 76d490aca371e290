"""Label skew by Dirichlet draws: the two variants of the literature.

`Dirichlet` (FedDyn, FedBug, FedDC) draws a distribution over classes for each client; all clients have the
same size. It keeps the sizes exact, but a class can run out, which changes the class mix of clients that fill
late. `DirichletClasses` (Yurochkin et al., MOON, FedDecorr, FedNTD, PFLlib) divides every class among the
clients by Dirichlet shares. It keeps the shares exact, and the sizes result from them.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, uniforms
from kedge.core.ranges import Count, checked
from kedge.data.partitions.dirichlet import dirichlet
from kedge.data.partitions.draws import (
    Alpha,
    Draw,
    Indices,
    Sigma,
    lognormal_sizes,
    require_samples,
    shuffled_classes,
)

# Limits of DirichletClasses: they are counts, not seconds, so that all machines give the same result.
ATTEMPTS = 5000
ENTRIES = 10_000_000  # drawn proportions in all attempts, about three seconds
ENTRIES_PER_CHUNK = 2**15  # proportions drawn together; the result does not depend on it

Floats = NDArray[np.float64]


@checked
@dataclass(frozen=True)
class Dirichlet:
    """Client i draws its classes from q_i ~ Dir(alpha·1); sizes are N/clients, log-normal if sigma > 0.

    Until all clients are full: draw a client uniformly among those not full; draw a class from q_i,
    restricted to the classes with samples left and renormalized (uniform if that mass underflows); assign the
    class's next sample. Equal sizes are rounded down, and N mod clients samples are not assigned, as in
    FedDyn's code.
    """

    clients: Count
    alpha: Alpha
    sigma: Sigma = 0.0

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        require_samples("Dirichlet", self.clients, self.clients, labels)
        equal = np.full(self.clients, labels.size // self.clients)
        sizes = lognormal_sizes(labels.size, self.clients, self.sigma, seed) if self.sigma > 0 else equal
        pools = shuffled_classes(labels, seed)
        priors = dirichlet(self.alpha, self.clients, len(pools), seed, round=Draw.PROPORTIONS)
        return filled_clients(sizes, pools, priors, seed)


def filled_clients(sizes: Indices, pools: list[Indices], priors: Floats, seed: int) -> list[Indices]:
    """The indices of each client: `sizes` [clients], drawn from `pools` by `priors` [clients, classes]."""
    draw, purpose = np.arange(sizes.sum()), Purpose.PARTITION
    client_draws = uniforms(seed, purpose, round=Draw.FILL, step=0, position=draw).tolist()
    class_draws = uniforms(seed, purpose, round=Draw.FILL, step=1, position=draw).tolist()
    assigned: list[list[int]] = [[] for _ in sizes]
    room, unfilled = sizes.tolist(), list(range(sizes.size))
    stock = [pool[::-1].tolist() for pool in pools]  # the last entry of a class is its next sample
    mass = _restricted(priors, stock)
    for client_draw, class_draw in zip(client_draws, class_draws, strict=True):
        slot = int(client_draw * len(unfilled))
        client = unfilled[slot]
        chosen = bisect_right(mass[client], class_draw)
        assigned[client].append(stock[chosen].pop())
        room[client] -= 1
        if not room[client]:
            unfilled[slot] = unfilled[-1]
            unfilled.pop()
        if not stock[chosen] and unfilled:
            mass = _restricted(priors, stock)
    return [np.sort(np.array(indices, dtype=np.int64)) for indices in assigned]


def _restricted(priors: Floats, stock: list[list[int]]) -> list[list[float]]:
    """Cumulative priors over the classes with samples left; other classes have no mass, and the end is 1."""
    available = np.array([bool(samples) for samples in stock])
    kept = priors * available
    kept = np.where(kept.sum(axis=1, keepdims=True) > np.finfo(np.float64).tiny, kept, available * 1.0)
    mass = np.cumsum(kept, axis=1)
    cumulative: list[list[float]] = (mass / mass[:, -1:]).tolist()
    return cumulative


@checked
@dataclass(frozen=True)
class DirichletClasses:
    """Class k is divided among the clients by p ~ Dir(alpha·1), redrawn until each has `minimum` samples.

    With `cap`, clients that already have N/clients samples get none of the later classes, so no client
    reaches N/clients + n_k samples. Classes are divided in ascending order, as in the authors' code, so late
    classes go to the clients below N/clients. All samples are assigned.
    """

    clients: Count
    alpha: Alpha
    cap: bool = True
    minimum: Count = 10

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        require_samples("DirichletClasses", self.clients, self.clients, labels)
        if self.minimum * self.clients > labels.size:
            raise RequestError(
                f"DirichletClasses(clients={self.clients}, minimum={self.minimum}): {labels.size} samples "
                f"given, need minimum·clients = {self.minimum * self.clients} ≤ samples. Lower minimum to at "
                f"most {labels.size // self.clients}, or use fewer clients."
            )
        pools = shuffled_classes(labels, seed)
        assigned: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pool, cuts in zip(pools, self._cut_points([pool.size for pool in pools], seed), strict=True):
            for indices, part in zip(assigned, np.split(pool, cuts), strict=True):
                indices.append(part)
        return [np.sort(np.concatenate(indices)) for indices in assigned]

    def _cut_points(self, class_sizes: list[int], seed: int) -> Indices:
        """Cut points [classes, clients - 1] of the first draw in which every client has `minimum` samples."""
        entries = self.clients * len(class_sizes)
        attempts = min(ATTEMPTS, max(20, ENTRIES // entries))
        chunk = max(1, ENTRIES_PER_CHUNK // entries)
        best = 0
        for first in range(0, attempts, chunk):
            rounds = Draw.PROPORTIONS + np.arange(first, min(first + chunk, attempts))
            drawn = dirichlet(self.alpha, len(class_sizes), self.clients, seed, round=rounds)
            sizes = np.zeros((rounds.size, self.clients), dtype=np.int64)
            cuts = np.zeros((rounds.size, len(class_sizes), self.clients - 1), dtype=np.int64)
            for k, class_size in enumerate(class_sizes):
                cuts[:, k] = cut_points(
                    drawn[:, k], sizes, sum(class_sizes) / self.clients, class_size, self.cap
                )
                sizes += np.diff(cuts[:, k], prepend=0, append=class_size)
            smallest = sizes.min(axis=1)
            if (smallest >= self.minimum).any():
                return np.asarray(cuts[np.argmax(smallest >= self.minimum)])
            best = max(best, int(smallest.max()))
        raise RequestError(
            f"DirichletClasses(clients={self.clients}, alpha={self.alpha}, minimum={self.minimum}): in "
            f"{attempts} draws of {sum(class_sizes)} samples the smallest client held at most {best}, need "
            f"{self.minimum}. Raise alpha, lower minimum, use fewer clients, or the partition 'dirichlet', "
            "which gives every client the same number of samples."
        )


def cut_points(proportions: Floats, sizes: Indices, fair: float, class_size: int, cap: bool) -> Indices:
    """Cut points of one class, [..., clients - 1]: floor(cumsum(p)·class_size).

    The last client gets the rest. With `cap`, p is set to 0 for clients whose `sizes` reach `fair` and
    renormalized, or uniform if that mass underflows. 1e-9 is added to the sum so that rounding does not turn
    0.6·10 into 5.
    """
    admitted = (sizes < fair) | (not cap)
    kept = proportions * admitted
    kept = np.where(kept.sum(axis=-1, keepdims=True) > np.finfo(np.float64).tiny, kept, admitted * 1.0)
    mass = np.cumsum(kept, axis=-1)
    points = np.floor(mass / mass[..., -1:] * class_size + 1e-9).astype(np.int64)
    return np.asarray(points[..., :-1])
