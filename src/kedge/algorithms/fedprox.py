"""FedProx (Li et al., 2020): each client minimizes f_i(w) + μ/2 ‖w − wᵗ‖².

The term is part of the loss, so its gradient is clipped. Some codes omit the ½, which doubles μ.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction, Step
from kedge.core.ranges import checked
from kedge.core.tree import sqnorm, sub


@dataclass(frozen=True)
class Proximal(Correction):
    """μ/2 ‖w − wᵗ‖²."""

    mu: float
    name = "proximal"

    def loss(self, step: Step) -> Tensor:
        return self.mu / 2 * sqnorm(sub(step.params, step.anchor))


@checked
def fedprox(
    mu: Annotated[float, Field(ge=0, description="0 is FedAvg")] = 1e-4, weights: Weights = "size"
) -> Algorithm:
    """A quadratic loss term that keeps clients' models near the server's."""
    return replace(fedavg(weights), name="fedprox", corrections=(Proximal(mu),))
