"""FedExP (Jhunjhunwala et al., 2023): the server extrapolates the mean update, w ← w + η_g Δ̄.

Δ_i = w_i − w of the P participants; Δ̄ and mean ‖Δ_i‖² have the same weights. With rule = "paper",
η_g = max(1, mean ‖Δ_i‖² / (2 (‖Δ̄‖² + ε))); "official-code" has P·ε instead of ε; "fedbug-code" is
max(1, mean ‖Δ_i‖² / (‖Δ̄‖² + P)), without ε. With one participant all three are FedAvg. In round t = 0, 1, … ε
is epsilon · epsilon_decayᵗ (the authors use the square of the learning rate's decay). The view "last-two" is
the mean of the last two distributed models, which the authors evaluate.
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
    """A server step that is longer if clients disagree more."""

    epsilon: float
    rule: Rule = "paper"
    epsilon_decay: float = 1.0
    name = "extrapolation"

    def init_server(self, shared: Leaves) -> Tree:
        return {"previous": shared}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return end.state, {"sqnorm": sqnorm(end.delta)}

    def rate(self, mean_square: Tensor, square_of_mean: Tensor, cohort: Cohort) -> Tensor:
        """η_g from `mean_square`, mean ‖Δ_i‖², and `square_of_mean`, ‖Δ̄‖²."""
        epsilon = self.epsilon * self.epsilon_decay**cohort.round
        divisor = {
            "paper": 2 * (square_of_mean + epsilon),
            "official-code": 2 * (square_of_mean + cohort.size * epsilon),
            "fedbug-code": square_of_mean + cohort.size,
        }
        return (mean_square / divisor[self.rule]).clamp(min=1.0)

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
    """Averaging with a longer server step if clients disagree more."""
    correction = Extrapolation(epsilon, rule, epsilon_decay)
    return replace(fedavg(weights), name="fedexp", corrections=(correction,))
