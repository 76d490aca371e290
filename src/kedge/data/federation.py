"""Federation: the data of all clients as one pool and index lists; nothing is copied per client."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.errors import DataError, RequestError
from kedge.data.augment import Augment, augmented
from kedge.data.datasets import Dataset, Source
from kedge.data.facts import facts
from kedge.data.local_tests import LocalTests, check_local_tests, common_test, matched, pooled, split

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds which samples of the pool, and how raw values become network inputs."""

    pool: Dataset
    clients: tuple[Ints, ...]  # training samples of each client
    local_tests: tuple[Ints, ...]  # test samples of each client, in the pool; empty where there are none
    test: Dataset | None  # the common test set; where tests are merged, the local tests together
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    dtype: torch.dtype = torch.float32
    augment: Augment = "none"  # of training images
    moments: tuple[Tensor, Tensor] = field(init=False)  # mean and std beside the pool, by channel

    def __post_init__(self) -> None:
        # Made once: a graph can be recorded only of work that takes nothing from the host.
        inner = [1] * (self.pool.x.dim() - 2)
        both = torch.tensor([self.mean, self.std], dtype=self.dtype).to(self.pool.x.device)
        object.__setattr__(self, "moments", both.view(2, -1, *inner).unbind())

    def prepare(self, x: Tensor) -> Tensor:
        """(scale · x − mean) / std per channel, in the run's precision; any batch axes in front."""
        x = x.to(self.dtype)
        if self.scale == 1 and self.mean == (0.0,) and self.std == (1.0,):
            return x
        if len(self.mean) == 1:
            return x * (self.scale / self.std[0]) - self.mean[0] / self.std[0]
        mean, std = self.moments
        return (x * self.scale - mean) / std

    def inputs(self, x: Tensor, moved: Tensor) -> Tensor:
        """What the network is trained on: prepared, and moved as was drawn."""
        return self.prepare(x) if self.augment == "none" else augmented(self.prepare(x), moved)

    def facts(self) -> dict[str, Tensor]:
        """Per-client constants, one row a client."""
        return {
            k: v.to(self.pool.x.device, self.dtype)
            for k, v in facts(self.pool.y.cpu().numpy(), list(self.clients), self.classes).items()
        }

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Federation":
        """The same federation with its data on a device, to be computed with in a dtype."""
        test = self.test and Dataset(self.test.x.to(device), self.test.y.to(device))
        pool = Dataset(self.pool.x.to(device), self.pool.y.to(device))
        return replace(self, pool=pool, test=test, dtype=dtype)


def federate(
    source: Source,
    clients: Sequence[Ints],
    local_test: float = 0.0,
    seed: int = 0,
    local: LocalTests = "split",
) -> Federation:
    """A dataset dealt out to clients, with local tests made in the way `local` (see data/local_tests.py).

    `clients` are indices into `dealt_labels(source, local)`, `local_test` the share of each that is held out.
    """
    check_local_tests(local, local_test)
    if local == "matched":
        return arranged(source, local, clients, matched(source, clients, seed))
    return arranged(source, local, *split(clients, local_test, seed))


def arranged(
    source: Source, local: LocalTests, clients: Sequence[Ints], local_tests: Sequence[Ints]
) -> Federation:
    """The federation in which clients train and are tested on these samples of the pool."""
    pool = pooled(source, local)
    return Federation(
        pool=pool,
        clients=tuple(clients),
        local_tests=tuple(local_tests),
        test=common_test(source, local, pool, local_tests),
        classes=source.classes,
        scale=source.scale,
        mean=source.mean,
        std=source.std,
    )


def joined(
    clients: Sequence[Dataset], test: Dataset | None, tests: Sequence[Dataset] | None = None
) -> Federation:
    """The federation of clients that bring their own data, and if they like their own test data."""
    if not clients:
        raise RequestError("clients is empty: give at least one Dataset.")
    if tests is not None and len(tests) != len(clients):
        raise RequestError(
            f"local_tests has {len(tests)} datasets for {len(clients)} clients: give one for each."
        )
    everyone = [*clients, *(tests or ())]
    for number, own in enumerate([*everyone, *((test,) if test else ())]):
        if own.x.shape[1:] != clients[0].x.shape[1:]:
            who = f"client {number}" if number < len(clients) else "a test set"
            raise DataError(
                f"{who} has samples of shape {tuple(own.x.shape[1:])}, "
                f"client 0 has {tuple(clients[0].x.shape[1:])}: "
                "all samples of a federation have one shape."
            )
    ends = np.cumsum([len(own) for own in everyone])
    ranges = [np.arange(end - len(own), end) for own, end in zip(everyone, ends, strict=True)]
    pool = Dataset(torch.cat([own.x for own in everyone]), torch.cat([own.y for own in everyone]))
    labels = [int(own.y.max()) for own in everyone] + ([int(test.y.max())] if test else [])
    empty = [np.empty(0, dtype=np.int64)] * len(clients)
    return Federation(
        pool=pool,
        clients=tuple(ranges[: len(clients)]),
        local_tests=tuple(ranges[len(clients) :] if tests is not None else empty),
        test=test,
        classes=max(labels) + 1,
    )
