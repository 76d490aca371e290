"""FedAvg (McMahan et al., 2017): w ← w + Σ ω_i (w_i − w).

ω_i = n_i / Σ n_j (weights = "size", the default) or 1/|S| ("uniform", as in FedBug's code and in Algorithm 1
of FedDyn→FedAvg).
"""

from typing import Literal

from kedge.core.algorithm import Algorithm, by_size, equal
from kedge.core.correction import Weight

Weights = Literal["size", "uniform"]
WEIGHTS: dict[Weights, Weight] = {"size": by_size, "uniform": equal}


def fedavg(weights: Weights = "size") -> Algorithm:
    """Weighted averaging of models that clients train with SGD."""
    return Algorithm("fedavg", weight=WEIGHTS[weights])
