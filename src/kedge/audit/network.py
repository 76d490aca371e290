"""Small networks and clients of very unequal sizes, in float64, for checks on real losses."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.model import Model, Statistics
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.nn.from_module import from_module, seeded
from kedge.running.progress import Progress
from kedge.running.runner import run

CLASSES = 3
RAGGED = (1, 3, 7, 12, 20)  # one sample, short last batches, one to many steps


def federation(sizes: Sequence[int], shape: Sequence[int] = (6,)) -> Federation:
    """Gaussian classes dealt out to clients of these sizes."""
    source = synthetic(sum(sizes) * 5 // 4 + 5, CLASSES, shape)
    ends = np.cumsum(sizes)
    clients = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    none = (np.empty(0, dtype=np.int64),) * len(sizes)
    return Federation(source.train, clients, none, None, CLASSES).to("cpu", torch.float64)


def perceptron(algorithm: Algorithm | None = None) -> Model:
    """6 – 5 – 4 – 3, three units, as the algorithm wants it; its weights in float64 from a fixed seed."""

    def build() -> nn.Module:
        layers = [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)]
        return nn.Sequential(*layers).double()

    return suited(build, algorithm)


def convolutions() -> nn.Module:
    """Two convolutions with batch norm and a classifier, for images of 1×5×5."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Flatten(), nn.Linear(27, CLASSES),
    ).double()  # fmt: skip


def normalized(algorithm: Algorithm | None = None, statistics: Statistics = "shared") -> Model:
    """The convolutions, as the algorithm wants them."""
    return suited(convolutions, algorithm, statistics)


def suited(
    build: Callable[[], nn.Module], algorithm: Algorithm | None, statistics: Statistics = "shared"
) -> Model:
    """The network as the algorithm wants it."""
    if algorithm is None:
        return from_module(seeded(build, 0), statistics=statistics)
    module = seeded(lambda: algorithm.rebuild(build()), 0)
    return algorithm.adapt(from_module(module, statistics=statistics))


def trained(
    algorithm: Algorithm, local: LocalTraining, rounds: int, data: Federation, model: Model, engine: Engine
) -> Progress:
    """Rounds with all clients."""
    return run(Task((Stage(algorithm, rounds, local),), model, data), engine)
