"""A new method outside the package: one small correction, combined with other methods and a schedule."""

from dataclasses import dataclass, replace

import torch
from torch import nn

import kedge
from kedge import tree


@dataclass(frozen=True)
class ServerMomentum(kedge.Correction):
    """v ← β v + mean delta; w ← w + v."""

    beta: float
    name = "momentum"

    def init_server(self, shared: tree.Leaves) -> tree.Tree:
        return {"v": tree.zeros(shared)}

    def server(
        self, update: tree.Leaves, mean: tree.Tree, state: tree.Tree, cohort: kedge.Cohort
    ) -> tuple[tree.Leaves, tree.Tree]:
        v = tree.axpy(self.beta, state["v"], update)
        return v, {"v": v}


def with_momentum(base: kedge.Algorithm, beta: float = 0.5) -> kedge.Algorithm:
    """Any method, with momentum on the server."""
    name = f"momentum+{base.name}"
    return replace(base, name=name, corrections=(*base.corrections, ServerMomentum(beta)))


def samples(classes: int) -> kedge.Dataset:
    """50 samples of the first `classes` of three classes."""
    y = torch.randint(0, classes, (50,))
    return kedge.Dataset(y[:, None] + 0.3 * torch.randn(50, 5), y)


torch.manual_seed(0)
clients, test = [samples(1), samples(2), samples(3)], samples(3)
module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
for method in (
    kedge.scaffold(),
    with_momentum(kedge.scaffold()),
    kedge.fedbug(with_momentum(kedge.fedavg())),
):
    result = kedge.train(module, clients, test=test, method=method, rounds=15, epochs=2, batch=10)
    print(f"{result.method:25} {100 * result.accuracy:.1f} %")
