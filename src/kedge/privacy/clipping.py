"""Clipping: the client's part of a private run, as a correction that follows all others.

A client sends Δ·min(1, C/‖Δ‖), where Δ is the delta that it would send without privacy, and ‖Δ‖ its norm
over all shared leaves. C is server state and sent with the model. With an adaptive clip (Andrew et al., 2021,
"Differentially private learning with adaptive clipping") a client also sends b − 1/2, where b is 1 if ‖Δ‖ ≤ C
and else 0, and the server sets C ← C·exp(−η_C (b̄ − γ)) with the noised mean b̄ and the quantile γ.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kedge.core.algorithm import Algorithm, equal
from kedge.core.correction import Cohort, Correction, End
from kedge.core.tree import Leaves, Tree, scale, sqnorm
from kedge.privacy.settings import Privacy


@dataclass(frozen=True)
class Clipping(Correction):
    """Bounds the norm of the delta that a client sends; the bound is the server's state."""

    clip: float  # C in the first round
    adaptive: bool = False
    quantile: float = 0.5
    rate: float = 0.2
    name = "privacy"
    weight = equal
    rests = False

    def init_server(self, shared: Leaves) -> Tree:
        return {"clip": next(iter(shared.values())).new_full((), self.clip)}

    def broadcast(self, state: Tree) -> Tree:
        return state

    def finish(self, end: End) -> tuple[Tree, Tree]:
        if not self.adaptive:
            return end.state, {}
        norm = sqnorm(end.delta).sqrt()
        return end.state, {"below": (norm <= end.broadcast["clip"]).to(norm.dtype) - 0.5}

    def send(self, delta: Leaves, end: End) -> Leaves:
        return clipped_delta(delta, end.broadcast["clip"])

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        if not self.adaptive:
            return update, state
        share_below = mean["below"] + 0.5
        return update, {"clip": state["clip"] * torch.exp(-self.rate * (share_below - self.quantile))}

    def measures(self, state: Tree) -> dict[str, Tensor]:
        return {"privacy.clip": state["clip"]}


def clipped_delta(delta: Leaves, clip: Tensor) -> Leaves:
    """Delta times min(1, clip/‖delta‖), with one norm for all leaves."""
    return scale((clip / sqnorm(delta).sqrt()).clamp(max=1.0), delta)


def with_clipping(algorithm: Algorithm, privacy: Privacy) -> Algorithm:
    """The algorithm with clipping as its last correction; unchanged if `privacy` is off."""
    if privacy.clip is None:
        return algorithm
    clipping = Clipping(privacy.clip, privacy.adaptive, privacy.quantile, privacy.clip_rate)
    return replace(algorithm, corrections=(*algorithm.corrections, clipping))
