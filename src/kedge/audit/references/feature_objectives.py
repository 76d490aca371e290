"""The local objectives of MOON, FedTR and FedROD, for `gradients.local_gradient` (see objectives.py)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.audit.problems import CLASSES
from kedge.audit.references.plain_sgd import features, logits
from kedge.core.tree import Leaves


def moon(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """MOON: f − μ · mean log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ}))."""
    mu: float = known["correction"].mu
    tau: float = known["correction"].temperature
    z, sent, before = (features(params, known["x"]) for params in (w, anchor, known["state"]["previous"]))
    to_sent, to_previous = (
        ((z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1) * tau)).exp() for other in (sent, before)
    )
    term: Tensor = (to_sent / (to_sent + to_previous)).log().mean()
    return f - mu * term


def fedtr(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedTR: f + λ_R · mean ‖φ(x_j) − C_{y_j}‖² + λ_G · ‖d_i + w − wᵗ‖², or only one of the two terms."""
    parts, x, y = known["corrections"], known["x"], known["y"]
    if "centroids" in parts:
        differences = features(w, x) - known["broadcasts"]["centroids"]["mean"][y]
        f = f + parts["centroids"].strength * (differences**2).sum() / len(y)
    if "released-drift" in parts:
        d = known["states"]["released-drift"]["d"]
        f = f + parts["released-drift"].strength * sum(((d[k] + w[k] - anchor[k]) ** 2).sum() for k in d)
    return f


def fedrod(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedROD: −mean log(n_y e^{a_y} / Σ_c n_c e^{a_c}) + CE(stop(a) + ψ_i(stop(φ)), y).

    The batch contains all samples of the client, so that the class counts n are those of the batch.
    """
    x, y = known["x"], known["y"]
    a, phi = logits(w, x), features(w, x)
    mass = torch.bincount(y, minlength=CLASSES).clamp(min=1e-9) * a.exp()
    generic = (mass.gather(1, y[:, None])[:, 0] / mass.sum(1)).log().mean()
    personal = F.linear(phi.detach(), w["personal.weight"], w["personal.bias"])
    return F.cross_entropy(a.detach() + personal, y) - generic
