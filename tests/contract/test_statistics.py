"""Batch norm's running statistics: averaged, kept by each client, or frozen.

Batch norm is the first layer, and every client takes one full batch in a round. The statistics are then those
of the data: with momentum 0.1, two rounds give 1 − 0.9² = 0.19 of a client's mean.
"""

import pytest
import torch
from tests.contract.problem import CLASSES, SIZES, federation
from torch import Tensor, nn

from kedge.algorithms import fedavg
from kedge.audit.training import train_rounds
from kedge.core.algorithm import LocalTraining
from kedge.core.model import Model, Statistics
from kedge.core.optimizers import SGD
from kedge.core.server import Server
from kedge.data.federation import Federation
from kedge.engines.engine import Engine
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.nn.from_module import from_module

each_engine = pytest.mark.parametrize("kind", [Sequential, Stacked])
TWO_ROUNDS = [[0, 1, 2, 3]] * 2


def train_batch_norm(
    kind: type[Sequential] | type[Stacked], statistics: Statistics, cohorts: list[list[int]]
) -> tuple[Server, Engine, Federation]:
    data = federation(shape=(6,))
    model: Model = from_module(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, CLASSES)), statistics=statistics)
    engine = kind(model, data)
    return train_rounds(fedavg(), LocalTraining(1, 100, SGD(0.1)), engine, model, data, cohorts), engine, data


def own_means(data: Federation) -> Tensor:
    """The mean of each client's samples, [clients, features]."""
    return torch.stack([data.prepare(data.pool.x[torch.from_numpy(own)]).mean(0) for own in data.clients])


@each_engine
def test_shared_statistics_are_averaged_like_weights(kind: type[Sequential] | type[Stacked]) -> None:
    server, _, data = train_batch_norm(kind, "shared", TWO_ROUNDS)
    weight = torch.tensor(SIZES, dtype=torch.float64)
    want = 0.19 * (weight @ own_means(data)) / weight.sum()
    torch.testing.assert_close(server.buffers["0.running_mean"], want)


@each_engine
def test_local_statistics_stay_with_their_client(kind: type[Sequential] | type[Stacked]) -> None:
    _, engine, data = train_batch_norm(kind, "local", TWO_ROUNDS)
    for client, mean in enumerate(own_means(data)):
        got = engine.save()[str(client)]["buffers"]["0.running_mean"]
        torch.testing.assert_close(got, 0.19 * mean)


@each_engine
def test_a_client_that_rests_keeps_its_statistics(kind: type[Sequential] | type[Stacked]) -> None:
    _, engine, data = train_batch_norm(kind, "local", [[0, 1], [1, 2]])
    means = own_means(data)
    for client, share in ((0, 0.1), (1, 0.19), (2, 0.1)):
        got = engine.save()[str(client)]["buffers"]["0.running_mean"]
        fresh = share * means[client]
        if client == 2:  # it started from the server's statistics after the first round
            weight = torch.tensor(SIZES[:2], dtype=torch.float64)
            fresh = fresh + 0.9 * 0.1 * (weight @ means[:2]) / weight.sum()
        torch.testing.assert_close(got, fresh)


@each_engine
def test_frozen_statistics_never_move(kind: type[Sequential] | type[Stacked]) -> None:
    server, engine, _ = train_batch_norm(kind, "frozen", TWO_ROUNDS)
    assert not server.buffers["0.running_mean"].any()
    assert bool((server.buffers["0.running_var"] == 1).all())
    assert engine.save() == {}
