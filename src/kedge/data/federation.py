"""Federation: the samples of all clients in one pool, and an index list for each client."""

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
from kedge.data.local_tests import (
    LocalTests,
    check_local_tests,
    common_test,
    matched_tests,
    sample_pool,
    split_tests,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Federation:
    """A pool of all samples, the indices of each client's samples, and the constants that normalize them."""

    pool: Dataset
    clients: Sequence[Ints]  # training samples of each client
    local_tests: tuple[Ints, ...]  # test samples of each client, also in the pool; may be empty
    test: Dataset | None  # the common test set; with local = "merged", all local tests
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    dtype: torch.dtype = torch.float32
    augment: Augment = "none"  # of training images
    moments: tuple[Tensor, Tensor] = field(init=False)  # mean and std per channel, on the pool's device

    def __post_init__(self) -> None:
        # Copied to the device once: a copy from the host is not allowed during CUDA graph capture.
        inner = [1] * (self.pool.x.dim() - 2)
        mean_and_std = torch.tensor([self.mean, self.std], dtype=self.dtype).to(self.pool.x.device)
        object.__setattr__(self, "moments", mean_and_std.view(2, -1, *inner).unbind())

    def prepare(self, x: Tensor) -> Tensor:
        """Network inputs (scale · x − mean) / std per channel, in the run's dtype."""
        x = x.to(self.dtype)
        if self.scale == 1 and self.mean == (0.0,) and self.std == (1.0,):
            return x
        if len(self.mean) == 1:
            return x * (self.scale / self.std[0]) - self.mean[0] / self.std[0]
        mean, std = self.moments
        return (x * self.scale - mean) / std

    def inputs(self, x: Tensor, moves: Tensor) -> Tensor:
        """Prepared and augmented training inputs; `moves` are the drawn flips and shifts."""
        return self.prepare(x) if self.augment == "none" else augmented(self.prepare(x), moves)

    def facts(self) -> dict[str, Tensor]:
        """Per-client constants (see `data/facts.py`) on the pool's device."""
        return {
            k: v.to(self.pool.x.device, self.dtype)
            for k, v in facts(self.pool.y.cpu().numpy(), list(self.clients), self.classes).items()
        }

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Federation":
        """The federation with its data on `device`, and network inputs of `dtype`."""
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
    """A federation from a dataset and a partition, with local tests of the kind `local`.

    `clients` are indices into `partitioned_labels(source, local)`. The share `local_test` of each client's
    samples becomes its local test.
    """
    check_local_tests(local, local_test)
    if local == "matched":
        return federation_from_indices(source, local, clients, matched_tests(source, clients, seed))
    return federation_from_indices(source, local, *split_tests(clients, local_test, seed))


def federation_from_indices(
    source: Source, local: LocalTests, clients: Sequence[Ints], local_tests: Sequence[Ints]
) -> Federation:
    """A federation whose clients have these training and local test samples of the pool."""
    pool = sample_pool(source, local)
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


def federation_from_datasets(
    clients: Sequence[Dataset], test: Dataset | None, tests: Sequence[Dataset] | None = None
) -> Federation:
    """A federation with one dataset per client, and optionally one local test set per client."""
    if not clients:
        raise RequestError("clients is empty: give at least one Dataset.")
    if tests is not None and len(tests) != len(clients):
        raise RequestError(
            f"local_tests has {len(tests)} datasets for {len(clients)} clients: give one for each."
        )
    everyone = [*clients, *(tests or ())]
    for number, data in enumerate([*everyone, *((test,) if test else ())]):
        if data.x.shape[1:] != clients[0].x.shape[1:]:
            owner = f"client {number}" if number < len(clients) else "a test set"
            raise DataError(
                f"{owner} has samples of shape {tuple(data.x.shape[1:])}, "
                f"client 0 has {tuple(clients[0].x.shape[1:])}: "
                "all samples need the same shape."
            )
    ends = np.cumsum([len(data) for data in everyone])
    ranges = [np.arange(end - len(data), end) for data, end in zip(everyone, ends, strict=True)]
    pool = Dataset(torch.cat([data.x for data in everyone]), torch.cat([data.y for data in everyone]))
    labels = [int(data.y.max()) for data in everyone] + ([int(test.y.max())] if test else [])
    empty = [np.empty(0, dtype=np.int64)] * len(clients)
    return Federation(
        pool=pool,
        clients=tuple(ranges[: len(clients)]),
        local_tests=tuple(ranges[len(clients) :] if tests is not None else empty),
        test=test,
        classes=max(labels) + 1,
    )
