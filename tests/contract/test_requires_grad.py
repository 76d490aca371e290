"""A frozen backbone (requires_grad=False) is the same run as its outputs taken as the data."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from tests.contract.algorithms import ALGORITHMS
from tests.contract.problem import CLASSES, EVERYBODY, SOME, TOLERANCE, distance, everything, federation, play
from torch import Tensor, nn

from kedge.algorithms import fedavg
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.frozen import place_frozen
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.schedules import Clock
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import tree_to
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.engines.engine import Order, trainable
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.nn.from_module import from_module, seeded

LOCAL = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2, decay=0.9), clip=1.0)
Kind = type[Sequential] | type[Stacked]
each_method = pytest.mark.parametrize("name", ALGORITHMS)
each_engine = pytest.mark.parametrize("kind", [Sequential, Stacked])


class Head(nn.Module):
    """Three linear layers on six features, or on what a backbone makes of larger samples."""

    def __init__(self, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone or nn.Identity()
        self.a, self.b, self.c = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(self.backbone(x))))))
        return logits


def modules() -> tuple[Head, Head]:
    """The layers alone, and the same layers behind a frozen backbone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        head = Head().double()
        whole = Head(nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh()).requires_grad_(False)).double()
        whole.load_state_dict({**whole.state_dict(), **head.state_dict()})
        return head, whole


def modelled(algorithm: Algorithm, module: nn.Module) -> Model:
    built = seeded(lambda: algorithm.rebuild(module), 0)
    return place_frozen(algorithm.adapt(from_module(built)), torch.float64)


def both(algorithm: Algorithm) -> tuple[tuple[Model, Federation], tuple[Model, Federation]]:
    """The head on features, and the whole network on what these were made of."""
    head, whole = modules()
    data = federation()
    with torch.no_grad():
        features = whole.backbone(data.prepare(data.pool.x))
    on_features = replace(data, pool=Dataset(features, data.pool.y), test=None)
    return (modelled(algorithm, head), on_features), (modelled(algorithm, whole), data)


@each_method
@each_engine
def test_a_frozen_backbone_is_the_run_on_its_outputs(name: str, kind: Kind) -> None:
    """All state has the same names too: nothing frozen is in the server, an upload or a memory."""
    algorithm, states = ALGORITHMS[name], []
    for model, data in both(algorithm):
        engine = kind(model, data)
        states.append(everything(play(algorithm, LOCAL, engine, model, data, SOME), engine))
    assert distance(*states) < TOLERANCE


@pytest.mark.parametrize("what", ["all", "head", "body"])
@each_engine
def test_personal_models_are_tuned_in_what_trains(kind: Kind, what: Literal["all", "head", "body"]) -> None:
    found = []
    for model, data in both(fedavg()):
        params, buffers = (tree_to(part, data.dtype) for part in model.init(0))
        engine, server = kind(model, data), initial_server(fedavg(), model, params, buffers)
        engine.begin(Stage(fedavg(), 1, LOCAL), params, frozenset())
        order = Order(0, 0, 7, server.shared, server.buffers, broadcast(fedavg(), server))
        found.append(list(engine.tuned(order, [0, 2], Tune(2, what))))
    for (client, small, _), (same, large, _) in zip(*found, strict=True):
        assert client == same
        assert small.keys() == large.keys()
        assert all(torch.allclose(v, large[k], rtol=0, atol=1e-13) for k, v in small.items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler warns of torch itself
def test_a_compiled_stack_agrees() -> None:
    algorithm = fedavg()
    (small, features), (whole, data) = both(algorithm)
    local = replace(LOCAL, epochs=1)
    plain, compiled = Sequential(small, features), Stacked(whole, data, compiled=True)
    left = everything(play(algorithm, local, plain, small, features, EVERYBODY[:2]), plain)
    right = everything(play(algorithm, local, compiled, whole, data, EVERYBODY[:2]), compiled)
    assert distance(left, right) < TOLERANCE


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n.startswith(("fedbug", "vanilla", "anti"))])
def test_a_schedule_opens_the_units_of_the_smaller_network(name: str) -> None:
    (small, _), (whole, _) = both(ALGORITHMS[name])
    assert small.units == whole.units == tuple((f"{k}.weight", f"{k}.bias") for k in "abc")
    schedule = ALGORITHMS[name].schedule
    opened = [
        [trainable(model, schedule(Clock(round, round, step, 10), len(model.units))) for step in range(10)]
        for model in (small, whole)
        for round in range(3)
    ]
    assert opened[:3] == opened[3:]
