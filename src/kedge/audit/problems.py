"""Small federations of clients with very unequal sizes, small networks, and rounds of training on them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.model import Model, Statistics
from kedge.core.server import Server, broadcast, initial_server, server_update
from kedge.core.tree import tree_to
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation
from kedge.engines.engine import Engine, Order
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.nn.from_module import from_module, seeded
from kedge.running.progress import Progress
from kedge.running.runner import run

CLASSES = 3
IMAGE = (1, 4, 4)
SIZES = (1, 2, 5, 9)  # one sample; short last batches; one, two and three batches of four
RAGGED = (1, 3, 7, 12, 20)  # one sample, short last batches, one to many steps
ALL_CLIENTS: Sequence[Sequence[int]] = ((0, 1, 2, 3),) * 3
SOME_CLIENTS: Sequence[Sequence[int]] = ((1, 3), (0, 2, 3), (0, 3))
ENGINES: dict[str, type[Sequential] | type[Stacked]] = {"sequential": Sequential, "stacked": Stacked}


def federation(
    sizes: Sequence[int] = SIZES, shape: Sequence[int] = (6,), dtype: torch.dtype = torch.float64
) -> Federation:
    """Gaussian classes, dealt to clients with `sizes` samples; no test set."""
    source = synthetic(sum(sizes) * 5 // 4 + 5, CLASSES, shape)
    ends = np.cumsum(sizes)
    clients = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    none = (np.empty(0, dtype=np.int64),) * len(sizes)
    return Federation(source.train, clients, none, None, CLASSES).to("cpu", dtype)


def perceptron(algorithm: Algorithm | None = None) -> Model:
    """6 – 5 – 4 – 3 with tanh, three units, adapted to `algorithm`; float64 weights from a fixed seed."""

    def build() -> nn.Module:
        layers = [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, CLASSES)]
        return nn.Sequential(*layers).double()

    return adapted_model(build, algorithm)


def norm_layers(norm: str, channels: int) -> list[nn.Module]:
    """The layer that normalizes after a convolution; none for "none"."""
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
    """The convolutions, adapted to `algorithm`, with weights from a fixed seed."""
    return adapted_model(lambda: convolutions(norm, dropout), algorithm, statistics)


def adapted_model(
    build: Callable[[], nn.Module], algorithm: Algorithm | None, statistics: Statistics = "shared"
) -> Model:
    """The network that `build` makes, adapted to `algorithm`."""
    if algorithm is None:
        return from_module(seeded(build, 0), statistics=statistics)
    module = seeded(lambda: algorithm.rebuild(build()), 0)
    return algorithm.adapt(from_module(module, statistics=statistics))


def trained(
    algorithm: Algorithm, local: LocalTraining, rounds: int, data: Federation, model: Model, engine: Engine
) -> Progress:
    """The end of a run in which every client trains in every round."""
    return run(Task((Stage(algorithm, rounds, local),), model, data), engine)


def train_rounds(
    algorithm: Algorithm,
    local: LocalTraining,
    engine: Engine,
    model: Model,
    data: Federation,
    cohorts: Sequence[Sequence[int]],
) -> Server:
    """The server after one round for each of `cohorts`, by the engine alone, without the runner."""
    params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
    server = initial_server(algorithm, model, params, buffers)
    engine.begin(Stage(algorithm, len(cohorts), local), params, frozenset())
    for round, clients in enumerate(cohorts):
        order = Order(round, round, 7, server.shared, server.buffers, broadcast(algorithm, server))
        reply = engine.train(order, clients).reply()
        if reply.size != len(clients):
            raise RuntimeError(f"{len(clients)} clients trained, {reply.size} uploads were admitted")
        server = server_update(algorithm, server, reply, len(data.clients), round)
    return server


def run_state(server: Server, engine: Engine) -> dict[str, Any]:
    """All state of a run: the server's, and every client's memory."""
    return {"server": server._asdict(), "clients": engine.save()}
