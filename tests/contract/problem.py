"""The audit's small federations and networks, with a test set, and the distance between two runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from kedge.audit import problems
from kedge.audit.training import run_state, train_rounds
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.model import Model, Statistics
from kedge.core.tree import Tree, flatten
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation
from kedge.engines.sequential import Sequential
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked

PLAIN = Algorithm("plain")
CLASSES, IMAGE, SIZES = problems.CLASSES, problems.IMAGE, problems.SIZES
ALL_CLIENTS, SOME_CLIENTS = problems.ALL_CLIENTS, problems.SOME_CLIENTS
TOLERANCE = 1e-12  # float64, relative to the largest parameter, after three rounds


def federation(
    sizes: Sequence[int] = SIZES, shape: Sequence[int] = IMAGE, dtype: torch.dtype = torch.float64
) -> Federation:
    """Gaussian classes, split among clients with `sizes` samples, with a common test set."""
    test = synthetic(sum(sizes) * 5 // 4 + 5, CLASSES, shape).test
    return replace(problems.federation(sizes, shape, dtype), test=test).to("cpu", dtype)


def build_model(
    algorithm: Algorithm, build: Callable[[], nn.Module], statistics: Statistics = "shared"
) -> Model:
    """The network that `build` makes, adapted to `algorithm`, with weights from a fixed seed."""
    return problems.adapted_model(build, algorithm, statistics)


def network(
    kind: str = "none",
    statistics: Statistics = "shared",
    dropout: float = 0.0,
    of: Algorithm = PLAIN,
) -> Model:
    """Two convolutions, each with its norm, and a classifier: three units, weights from a fixed seed."""
    return problems.convolutional(of, kind, statistics, dropout)


def perceptron(hidden: int = 6, inputs: int = 16, of: Algorithm = PLAIN) -> Model:
    """Three linear layers, weights from a fixed seed."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 5), nn.Tanh(),
            nn.Linear(5, CLASSES),
        )  # fmt: skip

    return build_model(of, build)


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
    cohorts: Sequence[Sequence[int]] = ALL_CLIENTS,
    chunk: int = 0,
    compiled: bool = False,
) -> float:
    """The distance between the sequential and the stacked engine after the rounds of `cohorts`."""
    states = []
    for engine in (Sequential(model, data), Stacked(model, data, chunk, Direct(compiled, model.half))):
        server = train_rounds(algorithm, local, engine, model, data, cohorts)
        states.append(run_state(server, engine))
    return distance(*states)
