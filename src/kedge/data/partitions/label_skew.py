"""Label skew by Dirichlet draws, in the two ways of the literature.

`Dirichlet` (FedDyn, FedBug, FedDC): a prior over classes per client, equal sizes. `DirichletClasses`
(Yurochkin et al., MOON, FedDecorr, FedNTD, PFLlib): shares of every class over the clients, sizes follow. The
first keeps the sizes and bends the class mix of late fills; the second keeps the shares and bends the sizes.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kedge.core.errors import RequestError
from kedge.core.random import Purpose, uniforms
from kedge.data.partitions.allotment import (
    Draw,
    Indices,
    lognormal_sizes,
    require_alpha,
    require_count,
    require_samples,
    require_sigma,
    shuffled_classes,
)
from kedge.data.partitions.dirichlet import dirichlet

# DirichletClasses gives up after so many draws, or so many proportions drawn: counts, so that machines agree.
ATTEMPTS = 5000
ENTRIES = 10_000_000  # about three seconds
ENTRIES_AT_ONCE = 2**15  # proportions drawn together; the result does not depend on it

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Dirichlet:
    """Client i draws its classes from q_i ~ Dir(alpha·1); sizes floor(N/clients), log-normal where sigma > 0.

    Until all are full: draw a client uniformly among those not full, a class from q_i restricted to the
    classes in stock and renormalised (uniform where that mass underflows), give it the class's next sample.
    With equal sizes the N mod clients samples left over go to nobody, as in FedDyn's code.
    """

    clients: int
    alpha: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        require_count("Dirichlet", "clients", self.clients)
        require_alpha("Dirichlet", self.alpha)
        require_sigma("Dirichlet", self.sigma)

    def __call__(
        self, labels: NDArray[np.integer], seed: int, keys: NDArray[np.generic] | None = None
    ) -> list[Indices]:
        """The indices of each client, ascending."""
        require_samples("Dirichlet", self.clients, self.clients, labels)
        equal = np.full(self.clients, labels.size // self.clients)
        sizes = lognormal_sizes(labels.size, self.clients, self.sigma, seed) if self.sigma > 0 else equal
        pools = shuffled_classes(labels, seed)
        priors = dirichlet(self.alpha, self.clients, len(pools), seed, round=Draw.PROPORTIONS)
        return filled(sizes, pools, priors, seed)


def filled(sizes: Indices, pools: list[Indices], priors: Floats, seed: int) -> list[Indices]:
    """The clients' indices: `sizes` [clients] of them, drawn from `pools` by `priors` [clients, classes]."""
    draw, purpose = np.arange(sizes.sum()), Purpose.PARTITION
    who = uniforms(seed, purpose, round=Draw.FILL, step=0, position=draw).tolist()
    what = uniforms(seed, purpose, round=Draw.FILL, step=1, position=draw).tolist()
    held: list[list[int]] = [[] for _ in sizes]
    room, hungry = sizes.tolist(), list(range(sizes.size))
    stock = [pool[::-1].tolist() for pool in pools]  # the next sample of a class is its last
    mass = _restricted(priors, stock)
    for client_draw, class_draw in zip(who, what, strict=True):
        slot = int(client_draw * len(hungry))
        client = hungry[slot]
        chosen = bisect_right(mass[client], class_draw)
        held[client].append(stock[chosen].pop())
        room[client] -= 1
        if not room[client]:
            hungry[slot] = hungry[-1]
            hungry.pop()
        if not stock[chosen] and hungry:
            mass = _restricted(priors, stock)
    return [np.sort(np.array(indices, dtype=np.int64)) for indices in held]


def _restricted(priors: Floats, stock: list[list[int]]) -> list[list[float]]:
    """Cumulative priors over the classes in stock: they end at 1 exactly, the other classes have no mass."""
    available = np.array([bool(samples) for samples in stock])
    kept = priors * available
    kept = np.where(kept.sum(axis=1, keepdims=True) > np.finfo(np.float64).tiny, kept, available * 1.0)
    mass = np.cumsum(kept, axis=1)
    cumulative: list[list[float]] = (mass / mass[:, -1:]).tolist()
    return cumulative


@dataclass(frozen=True)
class DirichletClasses:
    """Class k is cut among the clients by p ~ Dir(alpha·1); all is redrawn until each has `minimum` samples.

    With `cap`, clients that already hold N/clients samples are left out of the classes still to come, so
    nobody reaches N/clients + n_k. Classes are cut in ascending order, as in the authors' code: late classes
    go to whoever has room. All samples are given out.
    """

    clients: int
    alpha: float
    cap: bool = True
    minimum: int = 10

    def __post_init__(self) -> None:
        require_count("DirichletClasses", "clients", self.clients)
        require_alpha("DirichletClasses", self.alpha)
        require_count("DirichletClasses", "minimum", self.minimum)

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
        held: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pool, cuts in zip(pools, self._cuts([pool.size for pool in pools], seed), strict=True):
            for indices, part in zip(held, np.split(pool, cuts), strict=True):
                indices.append(part)
        return [np.sort(np.concatenate(indices)) for indices in held]

    def _cuts(self, class_sizes: list[int], seed: int) -> Indices:
        """Cut points [classes, clients - 1] of the first draw that leaves every client its minimum."""
        entries = self.clients * len(class_sizes)
        attempts = min(ATTEMPTS, max(20, ENTRIES // entries))
        at_once = max(1, ENTRIES_AT_ONCE // entries)
        best = 0
        for first in range(0, attempts, at_once):
            rounds = Draw.PROPORTIONS + np.arange(first, min(first + at_once, attempts))
            drawn = dirichlet(self.alpha, len(class_sizes), self.clients, seed, round=rounds)
            sizes = np.zeros((rounds.size, self.clients), dtype=np.int64)
            cuts = np.zeros((rounds.size, len(class_sizes), self.clients - 1), dtype=np.int64)
            for k, class_size in enumerate(class_sizes):
                cuts[:, k] = cut(drawn[:, k], sizes, sum(class_sizes) / self.clients, class_size, self.cap)
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


def cut(proportions: Floats, sizes: Indices, fair: float, class_size: int, cap: bool) -> Indices:
    """Where to cut a class, [..., clients - 1]: floor(cumsum(p)·class_size), the last client takes the rest.

    With `cap`, p is 0 for clients whose `sizes` reach `fair`, and renormalised; where that leaves no mass
    (underflow), uniform. The sum is nudged by 1e-9, so that rounding does not turn 0.6·10 into 5.
    """
    admitted = (sizes < fair) | (not cap)
    kept = proportions * admitted
    kept = np.where(kept.sum(axis=-1, keepdims=True) > np.finfo(np.float64).tiny, kept, admitted * 1.0)
    mass = np.cumsum(kept, axis=-1)
    points = np.floor(mass / mass[..., -1:] * class_size + 1e-9).astype(np.int64)
    return np.asarray(points[..., :-1])
