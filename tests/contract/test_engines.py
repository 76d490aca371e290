"""Sequential = stacked, for every method, on ragged clients."""

from collections.abc import Sequence

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS, BUILT_IN, NO_ADAM, NO_MOMENTUM
from tests.contract.problem import (
    EVERYBODY,
    SOME,
    TOLERANCE,
    disagreement,
    distance,
    everything,
    federation,
    network,
    perceptron,
    play,
)

from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model, Statistics
from kedge.core.optimizers import SGD, Adam
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked

NORMS: list[tuple[str, Statistics]] = [
    ("none", "shared"),
    ("batch", "shared"),
    ("batch", "local"),
    ("batch", "frozen"),
    ("group", "shared"),
]
each_method = pytest.mark.parametrize("name", ALGORITHMS)


@each_method
@pytest.mark.parametrize(("norm", "statistics"), NORMS)
def test_engines_agree_on_ragged_clients(name: str, norm: str, statistics: Statistics) -> None:
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
    model = network(norm, statistics, of=ALGORITHMS[name])
    assert disagreement(ALGORITHMS[name], local, model, federation()) < TOLERANCE


@each_method
@pytest.mark.parametrize("cohorts", [EVERYBODY, SOME], ids=["everybody", "some"])
def test_engines_agree_when_short_batches_are_dropped(name: str, cohorts: Sequence[Sequence[int]]) -> None:
    local = LocalTraining(3, 4, SGD(0.1), drop_last=True)
    model = network("batch", of=ALGORITHMS[name])
    assert disagreement(ALGORITHMS[name], local, model, federation(), cohorts, 2) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in NO_MOMENTUM])
def test_engines_agree_with_momentum_and_some_participants(name: str) -> None:
    local = LocalTraining(2, 4, SGD(0.05, momentum=0.9, weight_decay=1e-2), clip=1.0)
    model = network("batch", of=ALGORITHMS[name])
    assert disagreement(ALGORITHMS[name], local, model, federation(), SOME) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in NO_ADAM])
def test_engines_agree_with_adam(name: str) -> None:
    """Adam divides by the gradient's size and so blows rounding up where the true gradient is 0, as for a
    convolution's bias before batch norm: hence no batch norm here, and an eps that is not tiny."""
    local = LocalTraining(2, 4, Adam(0.01, eps=1e-3, weight_decay=1e-2), clip=1.0)
    assert disagreement(ALGORITHMS[name], local, perceptron(of=ALGORITHMS[name]), federation()) < TOLERANCE


@each_method
def test_engines_agree_on_one_client_with_one_sample(name: str) -> None:
    local = LocalTraining(2, 4, SGD(0.1))
    model = perceptron(of=ALGORITHMS[name])
    assert disagreement(ALGORITHMS[name], local, model, federation((1,)), [[0]] * 3) < TOLERANCE


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_state_keeps_the_precision_of_the_run(name: str, dtype: torch.dtype) -> None:
    data, model = federation(dtype=dtype), network("batch", "local", of=ALGORITHMS[name])
    local = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    for engine in (Sequential(model, data), Stacked(model, data)):
        server = play(ALGORITHMS[name], local, engine, model, data, EVERYBODY[:2])
        state = everything(server, engine)
        tensors = [v for part in state.values() for v in leaves(part)]
        assert {v.dtype for v in tensors} == {dtype}


def leaves(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    assert isinstance(tree, dict)
    return [v for part in tree.values() for v in leaves(part)]


@each_method
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunk_size_does_not_matter(name: str, chunk: int) -> None:
    data, model = federation(), network("batch", of=ALGORITHMS[name])
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    whole, parts = Stacked(model, data), Stacked(model, data, chunk)
    left = everything(play(ALGORITHMS[name], local, whole, model, data, EVERYBODY), whole)
    right = everything(play(ALGORITHMS[name], local, parts, model, data, EVERYBODY), parts)
    assert distance(left, right) < TOLERANCE


@each_method
@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_order_of_clients_does_not_matter(name: str, kind: type[Sequential] | type[Stacked]) -> None:
    data, model = federation(), network("batch", of=ALGORITHMS[name])
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    forward, backward = kind(model, data), kind(model, data)
    turned = [clients[::-1] for clients in SOME]
    left = everything(play(ALGORITHMS[name], local, forward, model, data, SOME), forward)
    right = everything(play(ALGORITHMS[name], local, backward, model, data, turned), backward)
    assert distance(left, right) < TOLERANCE


@each_method
def test_engines_drop_the_same_units(name: str) -> None:
    """Dropout is keyed by (seed, round, client, step), not drawn from a hidden generator."""
    local = LocalTraining(2, 4, SGD(0.1))
    model = network("batch", dropout=0.4, of=ALGORITHMS[name])
    assert disagreement(ALGORITHMS[name], local, model, federation()) < TOLERANCE


def test_dropout_is_not_idle() -> None:
    data, local = federation(), LocalTraining(2, 4, SGD(0.1))
    ended = []
    for dropout in (0.4, 1e-12):
        model = network("none", dropout=dropout)
        engine = Sequential(model, data)
        server = play(BUILT_IN["fedavg"], local, engine, model, data, EVERYBODY)
        ended.append({k.rpartition(".")[2] + str(v.shape): v for k, v in server.shared.items()})
    assert any(not torch.allclose(v, ended[1][k]) for k, v in ended[0].items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler warns of torch itself
@pytest.mark.parametrize(
    ("name", "model"),
    [("fedavg", perceptron(4)), ("fedbug+scaffold", perceptron(4)), ("fedavg", network("batch"))],
    ids=["fedavg", "fedbug+scaffold", "fedavg with convolutions"],
)
def test_compiled_engine_agrees(name: str, model: Model) -> None:
    local = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    cohorts = [[0, 1, 2, 3], [1, 3], [0, 1, 2]]
    assert disagreement(ALGORITHMS[name], local, model, federation(), cohorts, compiled=True) < TOLERANCE
