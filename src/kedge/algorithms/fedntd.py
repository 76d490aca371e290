"""FedNTD (Lee et al., 2022): distil the global model's logits of the classes that are not the label.

Each client minimises f_i(w) + β·τ²·KL(softmax(z_g[≠y]/τ) ‖ softmax(z[≠y]/τ)): the label's logit is left out
of both, z_g are the logits of the model as it was sent. z_g is a constant, taken in evaluation mode (the
authors' code does not set the mode); batch norm then uses the running statistics that were sent.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction, Step
from kedge.core.losses import weighted_mean
from kedge.core.ranges import checked


@dataclass(frozen=True)
class NotTrueDistillation(Correction):
    """β·τ²·KL(global ‖ local) over the classes that are not the label."""

    beta: float
    temperature: float
    name = "not-true"

    def loss(self, step: Step) -> Tensor:
        y, tau = step.batch.y, self.temperature
        there = not_true(step.at(step.anchor).logits / tau, y)
        here = not_true(step.out.logits / tau, y)
        divergence = (there.exp() * (there - here)).sum(1)
        return self.beta * tau**2 * weighted_mean(divergence, step.batch)


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """The log-probabilities among the classes that are not the label; the label's is the lowest number.

    It is the same constant for both models, so that its term is exp(lowest)·0 = 0 and has no gradient.
    """
    label = torch.arange(logits.shape[1], device=logits.device) == y[:, None]
    lowest = torch.finfo(logits.dtype).min
    return torch.where(label, lowest, F.log_softmax(torch.where(label, lowest, logits), 1))


@checked
def fedntd(
    beta: Annotated[float, Field(ge=0, description="0 is FedAvg")] = 1.0,
    temperature: Annotated[float, Field(gt=0, description="the paper has 1")] = 1.0,
    weights: Weights = "size",
) -> Algorithm:
    """A loss term that preserves what the global model knows of the other classes."""
    return replace(fedavg(weights), name="fedntd", corrections=(NotTrueDistillation(beta, temperature),))
