"""Small federations of ragged clients and small networks, and how far two runs are apart."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.model import Model, Statistics
from kedge.core.server import Server, broadcast, initial_server, server_update
from kedge.core.tree import Tree, flatten, tree_to
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation
from kedge.engines.engine import Engine, Order
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.nn.from_module import from_module, seeded

CLASSES = 3
PLAIN = Algorithm("plain")
IMAGE = (1, 4, 4)
SIZES = (1, 2, 5, 9)  # one sample; short last batches; one, two and three batches of four
EVERYBODY = [[0, 1, 2, 3]] * 3
SOME = [[1, 3], [0, 2, 3], [0, 3]]
TOLERANCE = 1e-12  # float64, relative to the largest parameter, after three rounds


def federation(
    sizes: Sequence[int] = SIZES, shape: Sequence[int] = IMAGE, dtype: torch.dtype = torch.float64
) -> Federation:
    """Gaussian classes dealt out to clients of these sizes, with a common test set and no local ones."""
    source = synthetic(sum(sizes) * 5 // 4 + 5, CLASSES, shape)
    ends = np.cumsum(sizes)
    clients = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    none = (np.empty(0, dtype=np.int64),) * len(sizes)
    return Federation(source.train, clients, none, source.test, CLASSES).to("cpu", dtype)


def norm(kind: str, channels: int) -> list[nn.Module]:
    kinds: dict[str, Callable[[], list[nn.Module]]] = {
        "none": lambda: [],
        "batch": lambda: [nn.BatchNorm2d(channels)],
        "group": lambda: [nn.GroupNorm(2, channels)],
    }
    return kinds[kind]()


def fit(algorithm: Algorithm, build: Callable[[], nn.Module], statistics: Statistics = "shared") -> Model:
    """The network as a method wants it, weights from a fixed seed."""
    return algorithm.adapt(from_module(seeded(lambda: algorithm.rebuild(build()), 0), statistics=statistics))


def network(
    kind: str = "none",
    statistics: Statistics = "shared",
    dropout: float = 0.0,
    of: Algorithm = PLAIN,
) -> Model:
    """Two convolutions, each with its norm, and a classifier: three units, weights from a fixed seed."""

    def build() -> nn.Module:
        drop: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
        return nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), *norm(kind, 2), nn.ReLU(), *drop,
            nn.Conv2d(2, 4, 3), *norm(kind, 4), nn.ReLU(),
            nn.Flatten(), *drop, nn.Linear(16, CLASSES),
        )  # fmt: skip

    return fit(of, build, statistics)


def perceptron(hidden: int = 6, inputs: int = 16, of: Algorithm = PLAIN) -> Model:
    """Three linear layers, weights from a fixed seed."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 5), nn.Tanh(),
            nn.Linear(5, CLASSES),
        )  # fmt: skip

    return fit(of, build)


def play(
    algorithm: Algorithm,
    local: LocalTraining,
    engine: Engine,
    model: Model,
    data: Federation,
    cohorts: Sequence[Sequence[int]],
) -> Server:
    """Rounds with these participants; the server at the end."""
    params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
    server = initial_server(algorithm, model, params, buffers)
    engine.begin(Stage(algorithm, len(cohorts), local), params, frozenset())
    for round, clients in enumerate(cohorts):
        order = Order(round, round, 7, server.shared, server.buffers, broadcast(algorithm, server))
        reply = engine.round(order, clients)
        assert reply.size == len(clients)
        server = server_update(algorithm, server, reply, len(data.clients), round)
    return server


def everything(server: Server, engine: Engine) -> dict[str, Tree]:
    """All state of a run: the server's, and every client's memory."""
    return {"server": server._asdict(), "clients": engine.save()}


def distance(left: Tree, right: Tree) -> float:
    """The largest difference of two states, relative to the largest parameter."""
    a, b = flatten(left), flatten(right)
    assert list(sorted(a)) == list(sorted(b))
    assert all(v.isfinite().all() for v in (*a.values(), *b.values()))
    largest = max(float(v.abs().max()) for k, v in a.items() if "server/shared/" in k)
    return max(float((a[k] - b[k]).abs().max()) for k in a) / largest


def disagreement(
    algorithm: Algorithm,
    local: LocalTraining,
    model: Model,
    data: Federation,
    cohorts: Sequence[Sequence[int]] = EVERYBODY,
    chunk: int = 0,
    compiled: bool = False,
) -> float:
    """How far sequential and stacked are apart after these rounds."""
    one, many = Sequential(model, data), Stacked(model, data, chunk, compiled)
    plain = play(algorithm, local, one, model, data, cohorts)
    stacked = play(algorithm, local, many, model, data, cohorts)
    return distance(everything(plain, one), everything(stacked, many))
