"""FedDC (Gao et al., 2022): clients learn their drift h_i, and the server adds the mean of it.

Client: min f_i(w_i) + α/2 ‖w_i − (w − h_i)‖² + ⟨w_i, g − g_i⟩, all inside the clip; after K steps
h_i += w_i − w and g_i⁺ = g_i − g − (w_i − w)/(K η_t). Server: g += (1/m) Σ_S (g_i⁺ − g_i);
w ← mean_S w_i + mean of h_i over ALL m clients. Means and α are uniform (the authors' code scales both terms
by client size). η_t is the learning rate of this round (the code divides by the initial one). K η_t is summed
for each leaf over the steps in which it trained; a leaf that is frozen for a whole round keeps its h_i and
g_i. Without g it is FedDyn.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.scaffold import new_control_variate
from kedge.core.algorithm import Algorithm, LocalTraining, equal
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, add, axpy, sub, zeros


@dataclass(frozen=True)
class Drift(Correction):
    """α/2 ‖w_i − (w − h_i)‖² + ⟨w_i, g − g_i⟩, and the server's means of h_i and g_i."""

    alpha: float
    name = "drift"
    weight = equal

    def check(self, local: LocalTraining) -> None:
        if not isinstance(local.optimizer, SGD) or local.optimizer.momentum:
            raise RequestError(
                f"feddc with {local.optimizer}: its g_i are gradients estimated from plain SGD steps. "
                "Use optimizer sgd with momentum 0."
            )

    def init_client(self, shared: Leaves) -> Tree:
        return {"h": zeros(shared), "g": zeros(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        return {"h": zeros(shared), "g": zeros(shared)}

    def broadcast(self, state: Tree) -> Tree:
        return {"g": state["g"]}

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        distance = add(sub(step.params, step.anchor), step.state["h"])  # w_i − (w − h_i)
        correction = sub(step.broadcast["g"], step.state["g"])
        return {k: v + self.alpha * distance[k] + correction[k] for k, v in grads.items()}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        new = new_control_variate(end.state["g"], end.broadcast["g"], end)
        return {"h": add(end.state["h"], end.delta), "g": new}, {"g": sub(new, end.state["g"])}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        share = cohort.size / cohort.population
        h = axpy(share, update, state["h"])
        return add(update, h), {"h": h, "g": axpy(share, mean["g"], state["g"])}

    def drift(self, state: Tree, facts: Leaves) -> Leaves:
        return dict(state["h"])


@checked
def feddc(
    alpha: Annotated[float, Field(gt=0, description="the authors' CIFAR-10 script has 0.01")] = 0.01,
) -> Algorithm:
    """Clients learn their drift, and correct the objective and the average by it."""
    return replace(fedavg("uniform"), name="feddc", corrections=(Drift(alpha),))
