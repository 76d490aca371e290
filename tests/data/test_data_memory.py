"""Clients are index lists into one pool: memory does not grow with their number."""

import tracemalloc

import numpy as np
import pytest
import torch

from kedge.data.dataset import Dataset, Source
from kedge.data.federation import Federation, federate

SAMPLES = 50_000  # the training images of CIFAR-10


def source() -> Source:
    x = torch.zeros(SAMPLES, 3, 32, 32, dtype=torch.uint8)
    y = torch.arange(SAMPLES) % 10
    return Source("like-cifar10", Dataset(x, y), Dataset(x[:10], y[:10]), 10, scale=1 / 255)


def data_bytes(federation: Federation) -> int:
    """The bytes of samples, labels and index lists."""
    tensors = [federation.pool.x, federation.pool.y]
    return sum(v.numel() * v.element_size() for v in tensors) + sum(own.nbytes for own in federation.clients)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [100, 10_000])
def test_the_pool_is_held_once_whatever_the_number_of_clients(clients: int) -> None:
    given = source()
    shares = np.array_split(np.arange(SAMPLES), clients)
    tracemalloc.start()
    federation = federate(given, shares)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert federation.pool.x.data_ptr() == given.train.x.data_ptr()
    assert federation.pool.x.dtype == torch.uint8
    assert data_bytes(federation) == SAMPLES * (3072 + 8 + 8)  # pixels, a label, one index
    assert peak < 0.05 * data_bytes(federation)  # indices and the headers of the arrays
