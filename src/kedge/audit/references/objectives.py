"""The local objectives of the papers, from which `gradients.local_gradient` computes gradients by autograd.

An `Objective` receives f(w), w, the anchor (the shared leaves as the server sent them), and a dict `known`
with `correction`, `state` and `broadcast` of the first correction; `corrections`, `states` and `broadcasts`
by slot; `facts` and `client`, the facts and the number of the client; and the batch `x`, `y`. It returns the
value that the client minimizes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.audit.problems import CLASSES, RAGGED
from kedge.audit.references.plain_sgd import features, logits
from kedge.core.tree import Leaves, dot, sqnorm, sub

Objective = Callable[[Tensor, Leaves, Leaves, dict[str, Any]], Tensor]


def fedavg(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedAvg: f."""
    return f


def fedprox(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedProx: f + μ/2 ‖w − wᵗ‖²."""
    mu: float = known["correction"].mu
    return f + mu / 2 * sqnorm(sub(w, anchor))


def feddyn(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDyn: f − ⟨g_i, w⟩ + α/2 ‖w − θ‖² with g_i = −α u_i. Scaled by data, α becomes α·Σn/(n_i·m)."""
    alpha: float = known["correction"].alpha
    if known["correction"].scaling == "data":
        alpha = alpha * sum(RAGGED) / (RAGGED[known["client"]] * len(RAGGED))
    g = {k: -alpha * v for k, v in known["state"]["u"].items()}
    return f - dot(g, w) + alpha / 2 * sqnorm(sub(w, anchor))


def scaffold(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """SCAFFOLD: f − ⟨c_i − c, w⟩."""
    return f - dot(sub(known["state"]["c"], known["broadcast"]["c"]), w)


def feddc(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDC: f + α/2 ‖w − (wᵗ − h_i)‖² + ⟨w, g − g_i⟩."""
    alpha: float = known["correction"].alpha
    state, sent = known["state"], known["broadcast"]
    return f + alpha / 2 * sqnorm(sub(w, sub(anchor, state["h"]))) + dot(w, sub(sent["g"], state["g"]))


def feddecorr(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDecorr: f + β (N−1)²/N · mean of C_jk² / (ε + C_jj)(ε + C_kk) over j ≠ k, C the covariance."""
    beta: float = known["correction"].beta
    rows = len(known["x"])
    covariance = torch.cov(features(w, known["x"]).T)
    variance = 1e-8 + covariance.diagonal()
    squares = covariance.square() / torch.outer(variance, variance)
    off = ~torch.eye(len(variance), dtype=torch.bool)
    return f + beta * (rows - 1) ** 2 / rows * squares[off].mean()


def fedntd(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedNTD: f + β τ² KL(global ‖ local), for each sample without the logit of its label."""
    correction, x, y = known["correction"], known["x"], known["y"]
    beta: float = correction.beta
    tau: float = correction.temperature
    keep = torch.arange(CLASSES) != y[:, None]
    teacher, student = (logits(params, x)[keep].view(len(y), CLASSES - 1) / tau for params in (anchor, w))
    return f + beta * tau**2 * F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
