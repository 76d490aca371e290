"""FedExP (Jhunjhunwala et al., 2023): the server extrapolates the mean update, w ← w + η_g Δ̄.

Δ_i = w_i − w of the P participants, Δ̄ and mean ‖Δ_i‖² under the same weights; η_g is
"paper": max(1, mean ‖Δ_i‖² / (2 (‖Δ̄‖² + ε))); "official-code": the same with P·ε for ε; "fedbug-code":
max(1, mean ‖Δ_i‖² / (‖Δ̄‖² + P)), where ε is not used. With one participant all are FedAvg. In round t,
from 0, ε is epsilon·epsilon_decayᵗ (the authors: the square of the learning rate's decay). The view
"last-two" is the average of the last two iterates, which the authors evaluate.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Cohort, Correction, End
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, add, scale, sqnorm

Rule = Literal["paper", "official-code", "fedbug-code"]


@dataclass(frozen=True)
class Extrapolation(Correction):
    """The more the clients disagree, the longer the step."""

    epsilon: float
    rule: Rule = "paper"
    epsilon_decay: float = 1.0
    name = "extrapolation"

    def init_server(self, shared: Leaves) -> Tree:
        return {"previous": shared}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return end.state, {"sqnorm": sqnorm(end.delta)}

    def rate(self, spread: Tensor, length: Tensor, cohort: Cohort) -> Tensor:
        """η_g, from mean ‖Δ_i‖² and ‖Δ̄‖²."""
        epsilon = self.epsilon * self.epsilon_decay**cohort.round
        divisor = {
            "paper": 2 * (length + epsilon),
            "official-code": 2 * (length + cohort.size * epsilon),
            "fedbug-code": length + cohort.size,
        }
        return (spread / divisor[self.rule]).clamp(min=1.0)

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        rate = self.rate(mean["sqnorm"], sqnorm(update), cohort)
        return scale(rate, update), {"previous": cohort.shared}

    def views(self, shared: Leaves, state: Tree) -> dict[str, Leaves]:
        return {"last-two": scale(0.5, add(shared, state["previous"]))}


@checked
def fedexp(
    epsilon: Annotated[float, Field(gt=0, description="it bounds the step if updates cancel")] = 1e-3,
    rule: Rule = "paper",
    epsilon_decay: Annotated[float, Field(gt=0, le=1, description="1 keeps epsilon")] = 1.0,
    weights: Weights = "size",
) -> Algorithm:
    """Averaging with a server step that grows with the clients' disagreement."""
    correction = Extrapolation(epsilon, rule, epsilon_decay)
    return replace(fedavg(weights), name="fedexp", corrections=(correction,))
