"""FedAvgM (Hsu et al., 2019): momentum on the server; Δ̄ is the weighted mean of w_i − w.

form = "heavy-ball" (the paper; FedNTD's and FedExP's codes): v ← β v + Δ̄; "ema" (FedDecorr's, MOON's and
FedBug's codes): v ← β v + (1 − β) Δ̄, whose first steps are 1 − β times as long. Then w ← w + v.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Cohort, Correction
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, axpy, scale, zeros

Form = Literal["heavy-ball", "ema"]


@dataclass(frozen=True)
class ServerMomentum(Correction):
    """The server adds β times its last step to the mean update."""

    beta: float
    form: Form = "heavy-ball"
    name = "momentum"

    def init_server(self, shared: Leaves) -> Tree:
        return {"v": zeros(shared)}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        weight = 1 - self.beta if self.form == "ema" else 1.0
        v = axpy(weight, update, scale(self.beta, state["v"]))
        return v, {"v": v}


@checked
def fedavgm(
    beta: Annotated[float, Field(ge=0, lt=1, description="0 is FedAvg")] = 0.9,
    form: Form = "heavy-ball",
    weights: Weights = "size",
) -> Algorithm:
    """Averaging with momentum on the server."""
    return replace(fedavg(weights), name="fedavgm", corrections=(ServerMomentum(beta, form),))
