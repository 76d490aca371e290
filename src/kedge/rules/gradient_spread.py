"""Measure the mean squared distance of each client's gradients from their mean, for Proposition 1.

Client k stores FedDyn's g_k = −α u_k and ḡ_k, the mean of its g_k over the rounds in which it took part. It
uploads the change of ‖g_k − ḡ_k‖², so that the server has the mean over ALL clients, also over clients that
took part long ago. A client that took part at most once has 0.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kedge.algorithms.feddyn import DynamicRegularizer
from kedge.core.algorithm import equal
from kedge.core.correction import Cohort, Correction, End
from kedge.core.tree import Leaves, Tree, add, axpy, sqnorm, sub, zeros


@dataclass(frozen=True)
class GradientSpread(Correction):
    """Measures the mean of ‖g_k − ḡ_k‖²; changes nothing in training."""

    alpha: float
    scaling: Literal["uniform", "data"] = "uniform"  # FedDyn's: with "data" each client has its own α
    name = "spread"
    weight = equal
    rests = False

    def init_client(self, shared: Leaves) -> Tree:
        zero = next(iter(shared.values())).new_zeros(())
        return {"g": zeros(shared), "mean": zeros(shared), "rounds": zero, "spread": zero}

    def init_server(self, shared: Leaves) -> Tree:
        return {"spread": next(iter(shared.values())).new_zeros(())}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        rounds = end.state["rounds"] + 1
        alpha = DynamicRegularizer(self.alpha, self.scaling).strength(end.facts)
        g = axpy(-alpha, end.delta, end.state["g"])
        mean = add(end.state["mean"], {k: v / rounds for k, v in sub(g, end.state["mean"]).items()})
        spread = sqnorm(sub(g, mean))
        upload = {"spread": spread - end.state["spread"]}
        return {"g": g, "mean": mean, "rounds": rounds, "spread": spread}, upload

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return update, {"spread": state["spread"] + cohort.size / cohort.population * mean["spread"]}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"drift.spread": state["spread"]}
