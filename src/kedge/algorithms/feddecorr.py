"""FedDecorr (Shi et al., 2023): each client minimizes f_i(w) + β·L_dec, which keeps features from collapsing.

Z are the features of a batch of N samples, centered and divided by √(1e-8 + unbiased variance).
L_dec = mean over j ≠ k of ((ZᵀZ)_jk)² / N, and 0 for one sample. This is the authors' code:
((N−1)²/N)·mean r² over the correlations r of different features. The paper's ‖R‖²_F/d² is about N times
smaller and includes the diagonal, so a value of β is meaningful only with the formula and the batch size.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction, Step
from kedge.core.features import NeedsFeatures
from kedge.core.ranges import checked

EPSILON = 1e-8


@dataclass(frozen=True)
class Decorrelation(Correction):
    """β·L_dec."""

    beta: float
    name = "decorrelation"

    def loss(self, step: Step) -> Tensor:
        return self.beta * decorrelation(step.out.features, step.batch.weight)


def decorrelation(features: Tensor, weight: Tensor) -> Tensor:
    """L_dec of the samples with weight 1."""
    count, width = weight.sum(), features.shape[1]
    mask = weight[:, None]
    centered = mask * (features - (mask * features).sum(0) / count)
    variance = centered.square().sum(0) / (count - 1).clamp(min=1)
    z = centered / (EPSILON + variance).sqrt()
    below = torch.tril(z.T @ z, -1)  # symmetric: half of the off-diagonal entries
    return 2 * below.square().sum() / max(width * (width - 1), 1) / count


@checked
def feddecorr(
    beta: Annotated[float, Field(ge=0, description="0 is FedAvg")] = 0.1, weights: Weights = "size"
) -> Algorithm:
    """A loss term that decorrelates a client's features."""
    return replace(
        fedavg(weights),
        name="feddecorr",
        corrections=(Decorrelation(beta),),
        adapt=NeedsFeatures("feddecorr"),
    )
