"""FedAdam (Reddi et al., 2021): Adam on the server; Δ̄ is the weighted mean of w_i − w.

m ← β₁ m + (1 − β₁) Δ̄, v ← β₂ v + (1 − β₂) Δ̄², w ← w + η m/(√v + τ), without bias correction. v starts at τ²
(start = "tau", the paper's Algorithm 2) or at 0 ("zero", as in FedDecorr's code). FedExP's code differs: it
averages m² instead of Δ̄², and its bias factors are constant.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Cohort, Correction
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, axpy, scale, zeros

Start = Literal["tau", "zero"]


@dataclass(frozen=True)
class ServerAdam(Correction):
    """Adam with the mean update as its negative gradient: running mean divided by root mean square."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    start: Start = "tau"
    name = "adam"

    def init_server(self, shared: Leaves) -> Tree:
        initial = self.tau**2 if self.start == "tau" else 0.0
        return {"m": zeros(shared), "v": {k: torch.full_like(v, initial) for k, v in shared.items()}}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        squares = {k: d * d for k, d in update.items()}
        m = axpy(1 - self.beta1, update, scale(self.beta1, state["m"]))
        v = axpy(1 - self.beta2, squares, scale(self.beta2, state["v"]))
        return {k: self.lr * m[k] / (v[k].sqrt() + self.tau) for k in m}, {"m": m, "v": v}


@checked
def fedadam(
    lr: Annotated[float, Field(gt=0)] = 0.1,
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9,
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99,
    tau: Annotated[float, Field(gt=0)] = 1e-3,
    start: Start = "tau",
    weights: Weights = "size",
) -> Algorithm:
    """Averaging with Adam on the server."""
    correction = ServerAdam(lr, beta1, beta2, tau, start)
    return replace(fedavg(weights), name="fedadam", corrections=(correction,))
