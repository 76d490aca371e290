"""The `all` model: the mean over ALL clients of the last model each of them had.

A client that never took part counts with the initial model. It is a correction that corrects nothing:
every client remembers e_i = (its last model) − (the initial one), sends how e_i changed, and the server
keeps the running mean. It costs a model in every client's memory, so it is measured only where it is asked
for.
"""

from dataclasses import dataclass

from kedge.core.algorithm import equal
from kedge.core.correction import Cohort, Correction, End
from kedge.core.tree import Leaves, Tree, axpy, sub, zeros


@dataclass(frozen=True)
class Latest(Correction):
    """θ⁰ + (1/m) Σ over all clients of e_i."""

    name = "all"
    weight = equal
    rests = False  # a frozen leaf, too, is what the client was last given

    def init_client(self, shared: Leaves) -> Tree:
        return {"e": zeros(shared)}

    def init_server(self, shared: Leaves) -> Tree:
        return {"start": shared, "all": shared}

    def broadcast(self, state: Tree) -> Tree:
        return {"start": state["start"]}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        now = sub(end.params, end.broadcast["start"])
        return {"e": now}, {"change": sub(now, end.state["e"])}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        every = axpy(cohort.size / cohort.population, mean["change"], state["all"])
        return update, {**state, "all": every}

    def views(self, shared: Leaves, state: Tree) -> dict[str, Leaves]:
        return {"all": dict(state["all"])}
