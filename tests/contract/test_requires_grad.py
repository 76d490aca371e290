"""A frozen backbone (requires_grad=False): fine-tuning, compiled programs and schedules."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS
from tests.contract.problem import ALL_CLIENTS, TOLERANCE, distance

from kedge.algorithms import fedavg
from kedge.audit.properties.frozen_backbone import with_and_without_backbone
from kedge.audit.training import run_state, train_rounds
from kedge.core.algorithm import LocalTraining, Stage, Tune
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import tree_to
from kedge.engines.engine import Order
from kedge.engines.leaves import trainable
from kedge.engines.sequential import Sequential
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stacked import Stacked

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
Kind = type[Sequential] | type[Stacked]
each_engine = pytest.mark.parametrize("kind", [Sequential, Stacked])


@pytest.mark.parametrize("what", ["all", "head", "body"])
@each_engine
def test_personal_models_are_tuned_in_what_trains(kind: Kind, what: Literal["all", "head", "body"]) -> None:
    found = []
    for model, data in with_and_without_backbone(fedavg()):
        params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
        engine, server = kind(model, data), initial_server(fedavg(), model, params, buffers)
        engine.begin(Stage(fedavg(), 1, LOCAL), params, frozenset())
        order = Order(0, 0, 7, server.shared, server.buffers, broadcast(fedavg(), server))
        found.append(list(engine.tune(order, [0, 2], Tune(2, what))))
    for (client, small, _), (same, large, _) in zip(*found, strict=True):
        assert client == same
        assert small.keys() == large.keys()
        assert all(torch.allclose(v, large[k], rtol=0, atol=1e-13) for k, v in small.items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler warns of torch itself
def test_a_compiled_stack_agrees() -> None:
    algorithm = fedavg()
    (small, features), (whole, data) = with_and_without_backbone(algorithm)
    local = replace(LOCAL, epochs=1)
    plain, compiled = Sequential(small, features), Stacked(whole, data, backend=Direct(compile=True))
    left = run_state(train_rounds(algorithm, local, plain, small, features, ALL_CLIENTS[:2]), plain)
    right = run_state(train_rounds(algorithm, local, compiled, whole, data, ALL_CLIENTS[:2]), compiled)
    assert distance(left, right) < TOLERANCE


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n.startswith(("fedbug", "vanilla", "anti"))])
def test_a_schedule_opens_the_units_of_the_smaller_network(name: str) -> None:
    (small, _), (whole, _) = with_and_without_backbone(ALGORITHMS[name])
    assert small.units == whole.units == tuple((f"{k}.weight", f"{k}.bias") for k in "abc")
    schedule = ALGORITHMS[name].schedule
    opened = [
        [trainable(model, schedule(Clock(round, round, step, 10), len(model.units))) for step in range(10)]
        for model in (small, whole)
        for round in range(3)
    ]
    assert opened[:3] == opened[3:]
