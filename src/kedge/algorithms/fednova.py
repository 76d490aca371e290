"""FedNova (Wang et al., 2020): averages clients' updates per local step, so more steps give no more weight.

d_i = (w_i − w)/a_i, w ← w + τ_eff Σ p_i d_i with τ_eff = Σ p_i a_i. a_i is the number of steps K for plain
SGD, and (K − ρ(1−ρᴷ)/(1−ρ))/(1−ρ) for momentum ρ. It is computed for each leaf, over the steps in which the
leaf trained; a leaf that never trained on a client has d_i = 0. If all a_i are equal, it is FedAvg. The rule
replaces the mean update, so it must be the first server rule.
"""

from dataclasses import dataclass, replace

import torch

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import Cohort, Correction, End
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves, Tree


@dataclass(frozen=True)
class NormalizedAveraging(Correction):
    """The mean update per step, times the mean number of steps."""

    name = "normalized"

    def check(self, local: LocalTraining) -> None:
        if not isinstance(local.optimizer, SGD):
            raise RequestError(
                f"fednova with {type(local.optimizer).__name__}: a_i, the weight of a client's steps, is "
                "known for SGD with or without momentum. Use optimizer sgd."
            )

    def finish(self, end: End) -> tuple[Tree, Tree]:
        a = {k: time / end.lr for k, time in end.lr_time.items()}
        d = {k: delta / torch.where(a[k] > 0, a[k], 1.0) for k, delta in end.delta.items()}
        return end.state, {"a": a, "d": d}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return {k: mean["a"][k] * mean["d"][k] for k in update}, state


def fednova(weights: Weights = "size") -> Algorithm:
    """Averaging of updates per local step, so that more steps give a client no more weight."""
    return replace(fedavg(weights), name="fednova", corrections=(NormalizedAveraging(),))
