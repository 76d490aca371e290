"""MOON (Li et al., 2021): features stay near the global model's and away from the client's previous model's.

Each client minimizes f_i(w) + μ·ℓ, ℓ = −log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})),
with the features z of the model in training, z_g of the server's model and z_p of the client's model after
its last round. z_g and z_p are constants, computed in evaluation mode with the batch norm statistics that
were sent. A client without a previous model has ℓ = 0, as in the authors' code. projection > 0 is the
authors' network: Linear–ReLU–Linear of this width before the classifier, so no stage of another method can
follow. projection = 0 uses the features of the network as it is.
"""

import copy
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.algorithms.fedavg import Weights, fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction, End, Step
from kedge.core.features import NeedsFeatures, require_features
from kedge.core.losses import weighted_mean
from kedge.core.ranges import checked
from kedge.core.tree import Leaves, Tree, zeros


@dataclass(frozen=True)
class Contrast(Correction):
    """μ·log(1 + e^{(cos(z, z_p) − cos(z, z_g))/τ})."""

    mu: float
    temperature: float
    name = "contrast"

    def init_client(self, shared: Leaves) -> Tree:
        first = next(iter(shared.values()))
        return {"previous": zeros(shared), "known": first.new_zeros(())}

    def loss(self, step: Step) -> Tensor:
        z: Tensor = step.out.features
        has_previous: Tensor = step.state["known"]  # 0 before the client's first round, then 1
        # Before the first round, the leaves are zeros. Their features may be NaN, and 0 · NaN is NaN.
        previous = {
            k: torch.where(has_previous > 0, v, step.anchor[k]) for k, v in step.state["previous"].items()
        }
        to_global = F.cosine_similarity(z, step.at(step.anchor).features)
        to_previous = F.cosine_similarity(z, step.at(previous).features)
        difference = (to_previous - to_global) / self.temperature
        term = weighted_mean(F.softplus(difference, threshold=40.0), step.batch)  # linear above the threshold
        return self.mu * has_previous * term

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return {"previous": end.params, "known": end.state["known"] * 0 + 1}, {}


@dataclass(frozen=True)
class Projected:
    """An `Algorithm.rebuild`: replaces the last linear layer by Linear–ReLU–Linear and a new classifier."""

    width: int

    def __call__(self, module: nn.Module) -> nn.Module:
        network = copy.deepcopy(module)
        linears = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and name]
        require_features(linears, "moon", type(module).__name__)
        parent, _, last = linears[-1].rpartition(".")
        old = network.get_submodule(linears[-1])
        assert isinstance(old, nn.Linear)
        inner = (nn.Linear(old.in_features, old.in_features), nn.ReLU())
        projection = nn.Sequential(*inner, nn.Linear(old.in_features, self.width))
        head = nn.Linear(self.width, old.out_features, bias=old.bias is not None)
        layers = OrderedDict(projection=projection, classifier=head)
        setattr(network.get_submodule(parent), last, nn.Sequential(layers).to(old.weight))
        return network


@checked
def moon(
    mu: Annotated[float, Field(ge=0, description="0 is FedAvg")] = 1.0,
    temperature: Annotated[float, Field(gt=0)] = 0.5,
    projection: Annotated[int, Field(ge=0, description="0 keeps the network as it is")] = 256,
    weights: Weights = "size",
) -> Algorithm:
    """A loss term: features near the global model's and away from those of the client's previous model."""
    base = replace(
        fedavg(weights), name="moon", corrections=(Contrast(mu, temperature),), adapt=NeedsFeatures("moon")
    )
    return replace(base, rebuild=Projected(projection)) if projection else base
