"""A round is a function of its order."""

import pytest
import torch
from tests.contract.algorithms import BUILT_IN
from tests.contract.problem import federation, network

from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.optimizers import SGD
from kedge.core.tree import flatten, tree_to
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked


@pytest.mark.parametrize("kind", [Sequential, Stacked])
def test_a_round_repeated_gives_the_same_bits(kind: type[Sequential] | type[Stacked]) -> None:
    """FedAvg keeps no memory, so the same order must give the same reply."""
    algorithm, data, model = BUILT_IN["fedavg"], federation(), network("batch", dropout=0.3)
    engine = kind(model, data)
    params, buffers = (tree_to(part, torch.float64) for part in model.init(0))
    engine.begin(Stage(algorithm, 1, LocalTraining(2, 4, SGD(0.1))), params, frozenset())
    order = Order(5, 5, 1, params, buffers, {})
    first, second = (engine.train(order, [0, 1, 3]).reply() for _ in "ab")
    assert all(torch.equal(v, flatten(second.mean)[k]) for k, v in flatten(first.mean).items())
