"""How far every client's gradient at its own model is from its mean over the rounds; for Proposition 1.

Follows FedDyn's g_k = −α u_k and its running mean ḡ_k on each client. The server keeps the mean of ‖g_k −
ḡ_k‖² over ALL clients, stale ones included: each sends by how much its own changed. ḡ_k counts the rounds
client k took part in; one that has taken part once, or never, has 0.
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
    """Follows g_k = −α u_k and its mean ḡ_k on every client; the server keeps the mean of ‖g_k − ḡ_k‖²."""

    alpha: float
    scaling: Literal["uniform", "data"] = "uniform"  # as FedDyn's: with "data" α is a client's own
    name = "spread"
    weight = equal
    rests = False

    def init_client(self, shared: Leaves) -> Tree:
        none = next(iter(shared.values())).new_zeros(())
        return {"g": zeros(shared), "mean": zeros(shared), "rounds": none, "spread": none}

    def init_server(self, shared: Leaves) -> Tree:
        return {"spread": next(iter(shared.values())).new_zeros(())}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        rounds = end.state["rounds"] + 1
        alpha = DynamicRegularizer(self.alpha, self.scaling).strength(end.facts)
        g = axpy(-alpha, end.delta, end.state["g"])
        middle = add(end.state["mean"], {k: v / rounds for k, v in sub(g, end.state["mean"]).items()})
        spread = sqnorm(sub(g, middle))
        upload = {"spread": spread - end.state["spread"]}
        return {"g": g, "mean": middle, "rounds": rounds, "spread": spread}, upload

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return update, {"spread": state["spread"] + cohort.size / cohort.population * mean["spread"]}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"drift.spread": state["spread"]}
