"""FedNTD (Lee et al., 2022): distills the global model's logits of the classes that are not the label.

Each client minimizes f_i(w) + β·τ²·KL(softmax(z_g[≠y]/τ) ‖ softmax(z[≠y]/τ)). Both softmaxes leave out the
label's logit. z_g are the logits of the server's model. They are constant and computed in evaluation mode,
with the batch norm statistics that were sent (the authors' code does not set the mode).
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
        sent = not_true_log_probabilities(step.at(step.anchor).logits / tau, y)
        local = not_true_log_probabilities(step.out.logits / tau, y)
        divergence = (sent.exp() * (sent - local)).sum(1)
        return self.beta * tau**2 * weighted_mean(divergence, step.batch)


def not_true_log_probabilities(logits: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities among the classes that are not the label; the label's entry is the lowest number.

    This entry is the same for both models, so its term in the divergence is exp(lowest)·0 = 0.
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
    """A loss term that preserves the global model's predictions for the classes that are not the label."""
    return replace(fedavg(weights), name="fedntd", corrections=(NotTrueDistillation(beta, temperature),))
