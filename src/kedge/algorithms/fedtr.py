"""FedTR (Chen et al.): global feature tracking and released client drift, each usable alone.

Client: min f_i(w) + λ_R·mean_j ‖φ(x_j) − C_{y_j}‖² + λ_G·‖d_i + w − wᵗ‖², with the features φ, the global
class centroids C and the client's drift d_i. drift = "gradient" (Algorithm 1): after every step d_i ← d_i −
η_g·2λ_G(d_i + w − wᵗ), a gradient step on this objective, so that λ_G → 0 is FedAvg; "accumulate" (the rule
of the paper's proof, and FedDC's): after the last step d_i ← d_i + (w_i − wᵗ). The client sends w_i + d_i and
its class means c_ij of φ over all its samples. Server: w ← Σ λ_i (w_i + d_i), λ_i = n_i/Σn; C_j ← Σ n_ij c_ij
/ Σ n_ij. The feature term is a mean over the batch (the paper's sum depends on the batch size). It is 0 for a
class without a centroid, and therefore in the first round. The gradient rule moves the upload back toward wᵗ,
the other rule doubles the update (docs/methods/fedtr.md).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm, by_size
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.features import require_features
from kedge.core.losses import weighted_mean
from kedge.core.model import Model
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, add, sqnorm, sub, zeros


@dataclass(frozen=True)
class ReleasedDrift(Correction):
    """λ ‖d_i + w − wᵗ‖²; d_i, an estimate of the client's drift, is added to the upload."""

    strength: float
    rule: Literal["gradient", "accumulate"]
    rate: float  # η_g of the gradient rule
    name = "released-drift"

    def init_client(self, shared: Leaves) -> Tree:
        return {"d": zeros(shared)}

    def loss(self, step: Step) -> Tensor:
        return self.strength * sqnorm(add(step.state["d"], sub(step.params, step.anchor)))

    def advance(self, step: Step) -> Tree:
        if self.rule == "accumulate":
            return step.state
        rate = 2 * self.rate * self.strength  # of a gradient step on λ ‖d_i + w − wᵗ‖²
        d = step.state["d"]
        stepped = {k: v - rate * (v + step.params[k] - step.anchor[k]) for k, v in d.items()}
        return {"d": {k: stepped[k] if k in step.trainable else v for k, v in d.items()}}

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return ({"d": add(end.state["d"], end.delta)} if self.rule == "accumulate" else end.state), {}

    def send(self, delta: Leaves, end: End) -> Leaves:
        return {k: v + torch.where(end.lr_time[k] > 0, end.state["d"][k], 0.0) for k, v in delta.items()}

    def drift(self, state: Tree, facts: Leaves) -> Leaves:
        return dict(state["d"])


@dataclass(frozen=True)
class TrackedFeatures(Correction):
    """λ · mean_j ‖φ(x_j) − C_{y_j}‖² with the global class centroids C_j."""

    strength: float
    name = "centroids"
    weight = by_size
    needs_class_means = True

    def reach(self, model: Model) -> frozenset[str]:
        require_features(model.classifier, "fedtr")
        return frozenset(model.classifier[:1])

    def init_server(self, shared: Leaves) -> Tree:
        (weight,) = shared.values()  # [classes, d], as the centroids are
        return {"mean": torch.zeros_like(weight), "known": torch.zeros_like(weight[:, 0])}

    def broadcast(self, state: Tree) -> Tree:
        return state

    def loss(self, step: Step) -> Tensor:
        y = step.batch.y
        distances = (step.out.features - step.broadcast["mean"][y]).square().sum(1)
        return self.strength * weighted_mean(step.broadcast["known"][y] * distances, step.batch)

    def finish(self, end: End) -> tuple[Tree, Tree]:
        assert end.class_means is not None
        share = end.class_means.samples / end.facts["examples"]
        return end.state, {"mean": share[:, None] * end.class_means.mean, "share": share}

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        present = mean["share"] > 0
        class_means = mean["mean"] / torch.where(present, mean["share"], 1.0)[:, None]
        centroids = torch.where(present[:, None], class_means, state["mean"])
        return update, {"mean": centroids, "known": torch.where(present, 1.0, state["known"])}


Strength = Annotated[float, Field(ge=0, description="a strength of 0 leaves that correction out")]


@checked
def fedtr(
    strength_features: Strength = 1.0,
    strength_drift: Strength = 1.0,
    drift: Literal["gradient", "accumulate"] = "gradient",
    drift_rate: Annotated[float, Field(ge=0)] = 0.1,
    weights: Weights = "size",
) -> Algorithm:
    """A loss term that keeps features near global class centroids, and client drift, learned and sent."""
    features = (TrackedFeatures(strength_features),) if strength_features else ()
    released = (ReleasedDrift(strength_drift, drift, drift_rate),) if strength_drift else ()
    return replace(fedavg(weights), name="fedtr", corrections=(*features, *released))
