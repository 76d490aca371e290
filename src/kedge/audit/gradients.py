"""The gradient a client really uses, against automatic differentiation of the papers' objectives.

One kernel step of rate 1 from a random point with a random memory: the gradient used is w − w⁺.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.audit.finding import Finding, agreed
from kedge.audit.network import CLASSES, RAGGED, federation, perceptron
from kedge.audit.reductions import features, forward
from kedge.core.algorithm import Algorithm, Local
from kedge.core.client import local_step, started
from kedge.core.correction import Correction
from kedge.core.model import Batch
from kedge.core.optimizers import SGD
from kedge.core.tree import Leaves, dot, sqnorm, sub

TOLERANCE = 1e-12
Objective = Callable[[Tensor, Leaves, Leaves, dict[str, Any]], Tensor]  # f(w), w, anchor, what is known


def plain(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedAvg: f."""
    return f


def proximal(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedProx: f + μ/2 ‖w − wᵗ‖²."""
    mu: float = known["correction"].mu
    return f + mu / 2 * sqnorm(sub(w, anchor))


def dynamic(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDyn: f − ⟨g_i, w⟩ + α/2 ‖w − θ‖² with g_i = −α u_i; scaled by data, α·Σn/(n_i·m)."""
    alpha: float = known["correction"].alpha
    if known["correction"].scaling == "data":
        alpha = alpha * sum(RAGGED) / (RAGGED[known["client"]] * len(RAGGED))
    g = {k: -alpha * v for k, v in known["state"]["u"].items()}
    return f - dot(g, w) + alpha / 2 * sqnorm(sub(w, anchor))


def controlled(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """SCAFFOLD: f − ⟨c_i − c, w⟩."""
    return f - dot(sub(known["state"]["c"], known["cast"]["c"]), w)


def drifting(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDC: f + α/2 ‖w − (wᵗ − h_i)‖² + ⟨w, g − g_i⟩."""
    alpha: float = known["correction"].alpha
    state, cast = known["state"], known["cast"]
    return f + alpha / 2 * sqnorm(sub(w, sub(anchor, state["h"]))) + dot(w, sub(cast["g"], state["g"]))


def decorrelated(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDecorr: f + β (N−1)²/N · mean of C_jk² / (ε + C_jj)(ε + C_kk) over j ≠ k, C the covariance."""
    beta: float = known["correction"].beta
    rows = len(known["x"])
    covariance = torch.cov(features(w, known["x"]).T)
    variance = 1e-8 + covariance.diagonal()
    squares = covariance.square() / torch.outer(variance, variance)
    off = ~torch.eye(len(variance), dtype=torch.bool)
    return f + beta * (rows - 1) ** 2 / rows * squares[off].mean()


def distilled(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedNTD: f + β τ² KL(global ‖ local), the label's logit cut out of both, sample by sample."""
    correction, x, y = known["correction"], known["x"], known["y"]
    beta: float = correction.beta
    tau: float = correction.temperature
    keep = torch.arange(CLASSES) != y[:, None]
    there, here = (forward(one, x)[keep].view(len(y), CLASSES - 1) / tau for one in (anchor, w))
    return f + beta * tau**2 * F.kl_div(here.log_softmax(1), there.softmax(1), reduction="batchmean")


def drawn(leaves: Leaves, seed: int) -> Leaves:
    """Random leaves of these shapes."""
    chance = torch.Generator().manual_seed(seed)
    return {k: torch.randn(v.shape, generator=chance, dtype=v.dtype) for k, v in leaves.items()}


def local_gradient(algorithm: Algorithm, objective: Objective, opened: int) -> Finding:
    """The gradient of the written-out objective in the open units, and exactly 0 in the frozen ones."""
    model, data, client = perceptron(), federation(RAGGED), 3
    start = model.init(0)[0]
    anchor, w = drawn(start, 1), drawn(start, 2)
    state = {c.name: memory(c.init_client(anchor), 3) for c in algorithm.corrections}
    cast = {c.name: memory(c.broadcast(c.init_server(anchor)), 4) for c in algorithm.corrections}
    rows = torch.from_numpy(data.clients[client])
    x, y = data.prepare(data.pool.x[rows]), data.pool.y[rows]
    batch = Batch(x, y, torch.ones(len(y), dtype=x.dtype), torch.zeros(2, dtype=torch.int64))
    trainable = tuple(k for unit in model.units[:opened] for k in unit)
    facts = {k: v[client] for k, v in data.facts().items()}
    fixed = {"anchor": anchor, "cast": cast, "facts": facts, "lr": torch.ones((), dtype=x.dtype)}
    local = Local(optimizer=SGD(1.0))
    carry = started(local, w, {}, state)
    used = sub(w, local_step(algorithm, model, local, trainable, carry, batch, fixed)["params"])

    correction: Correction | None = next(iter(algorithm.corrections), None)
    name = correction.name if correction else ""
    known: dict[str, Any] = {"correction": correction, "client": client, "x": x, "y": y}
    known |= {"state": state.get(name), "cast": cast.get(name)}
    point = {k: v.clone().requires_grad_() for k, v in w.items()}
    total = objective(F.cross_entropy(forward(point, x), y), point, anchor, known)
    grads = dict(zip(point, torch.autograd.grad(total, list(point.values())), strict=True))
    expected = {k: g if k in trainable else torch.zeros_like(g) for k, g in grads.items()}
    return agreed(expected, used, grads, TOLERANCE)


def memory(zeros: Any, seed: int) -> dict[str, Leaves]:
    """A memory as a correction lays it out, with random numbers in it."""
    return {k: drawn(v, seed) for k, v in zeros.items()}
