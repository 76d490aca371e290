"""Compiled programs train as the sequential engine does, and dropout has an effect."""

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS, BUILT_IN
from tests.contract.problem import ALL_CLIENTS, TOLERANCE, disagreement, federation, network, perceptron

from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.engines.sequential import Sequential


def test_dropout_is_not_idle() -> None:
    data, local = federation(), LocalTraining(2, 4, SGD(0.1))
    ended = []
    for dropout in (0.4, 1e-12):
        model = network("none", dropout=dropout)
        engine = Sequential(model, data)
        server = train_rounds(BUILT_IN["fedavg"], local, engine, model, data, ALL_CLIENTS)
        ended.append({k.rpartition(".")[2] + str(v.shape): v for k, v in server.shared.items()})
    assert any(not torch.allclose(v, ended[1][k]) for k, v in ended[0].items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler warns of torch itself
@pytest.mark.parametrize(
    ("name", "model"),
    [("fedbug+scaffold", perceptron(4)), ("fedavg", network("batch"))],
    ids=["fedbug+scaffold", "fedavg with convolutions"],
)
def test_compiled_engine_agrees(name: str, model: Model) -> None:
    local = LocalTraining(1, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    cohorts = [[0, 1, 2, 3], [1, 3], [0, 1, 2]]
    assert disagreement(ALGORITHMS[name], local, model, federation(), cohorts, compiled=True) < TOLERANCE
