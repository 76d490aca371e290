"""The `all` model: the mean over ALL clients of the last model that each client trained.

Clients that never took part contribute the initial model. The mean is tracked by a correction that changes
nothing in training: each client stores e_i = (its last model) − (initial model) and uploads the change of
e_i; the server updates the mean. Every client stores one more model, so the option is off by default.
"""

from dataclasses import dataclass

from kedge.core.algorithm import equal
from kedge.core.correction import Cohort, Correction, End
from kedge.core.tree import Leaves, Tree, axpy, sub, zeros


@dataclass(frozen=True)
class LastModels(Correction):
    """Tracks θ⁰ + (1/m) Σ_i e_i over all m clients, the mean of their last models."""

    name = "all"
    weight = equal
    rests = False  # a client's last model includes its frozen leaves

    def init_client(self, shared: Leaves) -> Tree:
        return {"e": zeros(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        return {"start": shared, "all": shared}

    def broadcast(self, state: Tree) -> Tree:
        return {"start": state["start"]}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        e = sub(end.params, end.broadcast["start"])
        return {"e": e}, {"change": sub(e, end.state["e"])}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        new_mean = axpy(cohort.size / cohort.population, mean["change"], state["all"])
        return update, {**state, "all": new_mean}

    def views(self, shared: Leaves, state: Tree) -> dict[str, Leaves]:
        return {"all": dict(state["all"])}
