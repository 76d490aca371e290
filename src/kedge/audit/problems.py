"""Small federations of clients with very unequal sizes, and small networks."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from kedge.core.algorithm import Algorithm
from kedge.core.model import Model, Statistics
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation
from kedge.nn.from_module import from_module, seeded

CLASSES = 3
IMAGE = (1, 4, 4)
SIZES = (1, 2, 5, 9)  # one sample; short last batches; one, two and three batches of four
RAGGED = (1, 3, 7, 12, 20)  # one sample, short last batches, one to many steps
ALL_CLIENTS: Sequence[Sequence[int]] = ((0, 1, 2, 3),) * 3
SOME_CLIENTS: Sequence[Sequence[int]] = ((1, 3), (0, 2, 3), (0, 3))


def federation(
    sizes: Sequence[int] = SIZES, shape: Sequence[int] = (6,), dtype: torch.dtype = torch.float64
) -> Federation:
    """Samples of Gaussian classes, split among clients with `sizes` samples, without a test set."""
    source = synthetic(sum(sizes) * 5 // 4 + 5, CLASSES, shape)
    ends = np.cumsum(sizes)
    clients = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    none = (np.empty(0, dtype=np.int64),) * len(sizes)
    return Federation(source.train, clients, none, None, CLASSES).to("cpu", dtype)


def perceptron(algorithm: Algorithm | None = None) -> Model:
    """Linear layers 6–5–4–3 with tanh, three units, adapted to `algorithm`, with float64 weights."""

    def build() -> nn.Module:
        layers = [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)]
        return nn.Sequential(*layers).double()

    return adapted_model(build, algorithm)


def norm_layers(norm: str, channels: int) -> list[nn.Module]:
    """The normalization layer after a convolution; an empty list for "none"."""
    kinds: dict[str, Callable[[], list[nn.Module]]] = {
        "none": lambda: [],
        "batch": lambda: [nn.BatchNorm2d(channels)],
        "group": lambda: [nn.GroupNorm(2, channels)],
    }
    return kinds[norm]()


def convolutions(norm: str = "batch", dropout: float = 0.0) -> nn.Module:
    """Two convolutions, each with a norm, and a classifier, for images of 1×4×4: three units."""
    drop: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), *norm_layers(norm, 2), nn.ReLU(), *drop,
        nn.Conv2d(2, 4, 3), *norm_layers(norm, 4), nn.ReLU(),
        nn.Flatten(), *drop, nn.Linear(16, CLASSES),
    )  # fmt: skip


def convolutional(
    algorithm: Algorithm | None = None,
    norm: str = "batch",
    statistics: Statistics = "shared",
    dropout: float = 0.0,
) -> Model:
    """The network `convolutions`, adapted to `algorithm`, with weights from a fixed seed."""
    return adapted_model(lambda: convolutions(norm, dropout), algorithm, statistics)


def adapted_model(
    build: Callable[[], nn.Module], algorithm: Algorithm | None, statistics: Statistics = "shared"
) -> Model:
    """The network that `build` makes, adapted to `algorithm`."""
    if algorithm is None:
        return from_module(seeded(build, 0), statistics=statistics)
    module = seeded(lambda: algorithm.rebuild(build()), 0)
    return algorithm.adapt(from_module(module, statistics=statistics))
