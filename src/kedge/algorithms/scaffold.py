"""SCAFFOLD (Karimireddy et al., 2020), option II.

Client: gradient ∇f_i(w) − c_i + c; after K steps c_i⁺ = c_i − c + (x − w_i)/(K η_t). Server: x ← x + mean(w_i
− x); c ← c + (1/m) Σ_S (c_i⁺ − c_i), m = all clients. Means are uniform. η_t is the learning rate of this
round (FedDyn's and FedDC's codes divide by the initial one). K η_t is summed for each leaf over the steps in
which it trained; a leaf that is frozen for a whole round keeps its c_i. The formula of c_i⁺ holds for plain
SGD, so momentum is refused. With allow_momentum = true, the divisor is the exact one for momentum.
"""

from dataclasses import dataclass, replace

import torch

from kedge.algorithms.fedavg import fedavg
from kedge.core.algorithm import Algorithm, LocalTraining, equal
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.selections import Last
from kedge.core.tree import Leaves, Tree, axpy, sub, zeros


def new_control_variate(c_i: Leaves, c: Leaves, end: End) -> Leaves:
    """c_i⁺ = c_i − c − (w_i − x)/(Kη); a leaf that was frozen for the whole round keeps its c_i."""
    new = dict(c_i)
    for k in c_i.keys() & end.lr_time.keys():
        time = end.lr_time[k]  # Kη
        estimate = c_i[k] - c[k] - end.delta[k] / torch.where(time > 0, time, 1.0)
        new[k] = torch.where(time > 0, estimate, c_i[k])
    return new


@dataclass(frozen=True)
class ControlVariates(Correction):
    """Adds c − c_i to every local gradient; if `last` is given, only to gradients of the last units."""

    allow_momentum: bool = False
    last: int | None = None  # None: all units
    method: str = "scaffold"
    name = "control"
    weight = equal

    def check(self, local: LocalTraining) -> None:
        if not isinstance(local.optimizer, SGD):
            raise RequestError(
                f"{self.method} with {type(local.optimizer).__name__}: its control variates are gradients "
                "estimated from plain SGD steps. Use optimizer sgd."
            )
        if local.optimizer.momentum and not self.allow_momentum:
            raise RequestError(
                f"{self.method} with momentum {local.optimizer.momentum}: its control variates presume "
                "plain SGD. Set momentum to 0, or allow_momentum = true to divide by the momentum-weighted "
                "step count."
            )

    def reach(self, model: Model) -> frozenset[str] | None:
        return None if self.last is None else Last(self.last)(model)

    def init_client(self, shared: Leaves) -> Tree:
        return {"c": zeros(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        return {"c": zeros(shared)}

    def broadcast(self, state: Tree) -> Tree:
        return state

    def gradient(self, grads: Leaves, step: Step) -> Leaves:
        c, c_i = step.broadcast["c"], step.state["c"]
        return {k: g + (c[k] - c_i[k]) if k in c else g for k, g in grads.items()}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        new = new_control_variate(end.state["c"], end.broadcast["c"], end)
        return {"c": new}, {"c": sub(new, end.state["c"])}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return update, {"c": axpy(cohort.size / cohort.population, mean["c"], state["c"])}

    def drift(self, state: Tree, facts: Leaves) -> Leaves:
        return dict(state["c"])


def scaffold(allow_momentum: bool = False) -> Algorithm:
    """Control variates: a client's gradient is corrected by its difference from the mean gradient."""
    return replace(fedavg("uniform"), name="scaffold", corrections=(ControlVariates(allow_momentum),))
