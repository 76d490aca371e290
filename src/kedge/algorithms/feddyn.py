"""FedDyn (Acar et al., 2021), in the form without a division by α.

Client: min f_i(w) − ⟨g_i, w⟩ + α/2 ‖w − θ‖² with g_i = −α u_i; after training u_i ← u_i + (w_i − θ).
Server: γ = mean of the participants, u = mean of u_i over ALL m clients, θ ← γ + u (that is γ − h/α).
As in the authors' code, the gradient is clipped with α(u_i − θ) and before α·w is added. scaling = "data" is
the code's α_i = α / (n_i·m/Σn), weaker for larger clients; means stay unweighted. Batch norm statistics are
not part of u. α = 0 and correct=False are the ablations (`feddyn_ablations.py`).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from kedge.algorithms.fedavg import fedavg
from kedge.core.algorithm import Algorithm, equal
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, add, axpy, scale, sqnorm, zeros


@dataclass(frozen=True)
class DynamicRegularizer(Correction):
    """−⟨g_i, w⟩ + α/2 ‖w − θ‖² and the server's u."""

    alpha: float
    scaling: Literal["uniform", "data"] = "uniform"
    correct: bool = True  # whether the server adds u
    name = "dynamic"
    weight = equal

    def strength(self, facts: Leaves) -> Tensor | float:
        """α of this client."""
        return self.alpha / facts["relative_size"] if self.scaling == "data" else self.alpha

    def init_client(self, shared: Leaves) -> Tree:
        return {"u": zeros(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        return {"u": zeros(shared)}

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        alpha = self.strength(step.facts)
        return {k: g + alpha * (step.state["u"][k] - step.anchor[k]) for k, g in grads.items()}

    def unclipped_gradient(self, step: Step) -> Leaves:
        return scale(self.strength(step.facts), step.params)

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"u": add(end.state["u"], end.delta)}, {}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        u = axpy(cohort.size / cohort.population, update, state["u"])
        return add(update, u) if self.correct else update, {"u": u}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        length = sqnorm(state["u"]).sqrt()  # ‖h‖/α
        h = {"drift.h": self.alpha * length, "drift.c": (self.alpha * length) ** 2} if self.alpha else {}
        return {"drift.u": length, **h}

    def drift(self, state: Tree, facts: Leaves) -> Leaves:
        return scale(-self.strength(facts) if self.alpha else -1.0, state["u"])


@checked
def feddyn(
    alpha: Annotated[float, Field(gt=0, description="for no regularizer use fedavg or feddyn-no-reg")] = 0.01,
    scaling: Literal["uniform", "data"] = "uniform",
) -> Algorithm:
    """A dynamic regularizer for each client, which makes local optima agree with the global optimum."""
    return replace(fedavg("uniform"), name="feddyn", corrections=(DynamicRegularizer(alpha, scaling),))
