"""Engines and the server modify nothing they are given: what came in is, bit for bit, what it was."""

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS, BUILT_IN
from tests.contract.problem import federation, network

from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.server import broadcast, initial_server, server_update
from kedge.core.tree import Leaves, flatten, tree_to
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked


def copied(tree: object) -> Leaves:
    assert isinstance(tree, dict)
    return {k: v.clone() for k, v in flatten(tree).items()}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_a_round_modifies_no_input(name: str, kind: type[Sequential] | type[Stacked]) -> None:
    algorithm, data = ALGORITHMS[name], federation()
    model = network("batch", "local", of=algorithm)
    engine = kind(model, data)
    params, buffers = (tree_to(part, torch.float64) for part in model.init(0))
    server = initial_server(algorithm, model, params, buffers)
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    engine.begin(Stage(algorithm, 3, local), params, frozenset())
    for round in range(3):
        order = Order(round, round, 0, server.shared, server.buffers, broadcast(algorithm, server))
        given = {"server": server._asdict(), "memories": engine.save(), "params": params}
        held = {"pool": {"x": data.pool.x}, "facts": engine.facts}
        before = copied({**given, **held})
        reply = engine.round(order, [0, 2, 3])
        mean = copied(reply.mean)
        after = server_update(algorithm, server, reply, 4, round)
        assert all(torch.equal(v, before[k]) for k, v in flatten({**given, **held}).items())
        assert all(torch.equal(v, mean[k]) for k, v in flatten(reply.mean).items())
        server = after


@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_a_round_repeated_gives_the_same_bits(kind: type[Sequential] | type[Stacked]) -> None:
    """FedAvg keeps no memory, so the same order must give the same reply."""
    algorithm, data, model = BUILT_IN["fedavg"], federation(), network("batch", dropout=0.3)
    engine = kind(model, data)
    params, buffers = (tree_to(part, torch.float64) for part in model.init(0))
    engine.begin(Stage(algorithm, 1, LocalTraining(2, 4, SGD(0.1))), params, frozenset())
    order = Order(5, 5, 1, params, buffers, {})
    first, second = engine.round(order, [0, 1, 3]), engine.round(order, [0, 1, 3])
    assert all(torch.equal(v, flatten(second.mean)[k]) for k, v in flatten(first.mean).items())
