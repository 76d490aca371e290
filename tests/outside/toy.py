"""Calm (toy, 2026): a client minimises f_i(w) + β·mean ‖z‖², z its logits; the server steps by s·Σ ω_i Δ_i.

A method outside the package, as a user writes one: it touches the loss, a client's memory, the upload and the
server, and is taken through the five steps of CONTRIBUTING.md by tests/test_five_steps.py.
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

import kedge
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.losses import weighted_mean
from kedge.core.tree import Leaves, Tree, scale


@dataclass(frozen=True)
class Calm(Correction):
    """β·mean ‖z‖², and a server that steps by s; the server counts the mean of its clients' rounds."""

    beta: float
    step: float
    name = "calm"

    def init_client(self, shared: Leaves) -> Tree:
        return {"rounds": next(iter(shared.values())).new_zeros(())}

    def init_server(self, shared: Leaves) -> Tree:
        return {"rounds": next(iter(shared.values())).new_zeros(())}

    def loss(self, step: Step) -> Tensor:
        return self.beta * weighted_mean(step.out.logits.square().sum(1), step.batch)

    def finish(self, end: End) -> tuple[Tree, Tree]:
        rounds = end.state["rounds"] + 1
        return {"rounds": rounds}, {"rounds": rounds}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return scale(self.step, update), {"rounds": mean["rounds"]}


def calm(beta: float = 0.01, step: float = 0.9) -> Algorithm:
    """A loss term that keeps logits small, under a careful server."""
    return replace(kedge.fedavg(), name="calm", corrections=(Calm(beta, step),))


def objective(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """f + β·mean ‖z‖², written out for the audit's small perceptron: 6 – 5 – 4 – 3 with tanh."""
    z: Tensor = known["x"]
    for layer in ("0", "2", "4"):
        z = z @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
        z = z.tanh() if layer != "4" else z
    beta: float = known["correction"].beta
    return f + beta * z.square().sum(1).mean()
