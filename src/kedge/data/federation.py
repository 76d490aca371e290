"""Federation: the data of all clients as one pool and index lists; nothing is copied per client."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kedge.core.chance import Purpose, permutation
from kedge.core.errors import DataError, RequestError
from kedge.data.datasets import Dataset, Source
from kedge.data.facts import facts

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds which samples of the pool, and how raw values become network inputs."""

    pool: Dataset
    clients: tuple[Ints, ...]  # training samples of each client
    local_tests: tuple[Ints, ...]  # test samples of each client, in the pool; empty where there are none
    test: Dataset | None  # the common test set
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    dtype: torch.dtype = torch.float32

    def prepare(self, x: Tensor) -> Tensor:
        """(scale · x − mean) / std per channel, in the run's precision; any batch axes in front."""
        x = x.to(self.dtype)
        if self.scale == 1 and self.mean == (0.0,) and self.std == (1.0,):
            return x
        if len(self.mean) == 1:
            return x * (self.scale / self.std[0]) - self.mean[0] / self.std[0]
        inner = [1] * (self.pool.x.dim() - 2)
        mean = torch.tensor(self.mean, dtype=self.dtype, device=x.device).view(-1, *inner)
        std = torch.tensor(self.std, dtype=self.dtype, device=x.device).view(-1, *inner)
        return (x * self.scale - mean) / std

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


def federate(source: Source, clients: Sequence[Ints], local_test: float = 0.0, seed: int = 0) -> Federation:
    """A dataset dealt out to clients; a share `local_test` of each client's samples is its own test set."""
    if not 0 <= local_test < 1:
        raise RequestError(
            f"local_test = {local_test}: need 0 ≤ local_test < 1, the share of each client's samples."
        )
    train, tests = [], []
    for number, own in enumerate(clients):
        # At least one sample stays for training; a client with one sample has no local test.
        held = min(round(local_test * len(own)), len(own) - 1)
        order = permutation(len(own), seed, Purpose.SPLIT, client=number)
        tests.append(np.sort(own[order[:held]]))
        train.append(np.sort(own[order[held:]]))
    return Federation(
        pool=source.train,
        clients=tuple(train),
        local_tests=tuple(tests),
        test=source.test,
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
