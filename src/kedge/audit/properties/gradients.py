"""The gradient a client really uses, against automatic differentiation of the papers' objectives.

One kernel step of rate 1 from a random point, with the memories of a run: the gradient used is w − w⁺.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kedge.audit.finding import Finding, agreed
from kedge.audit.problems import CLASSES, RAGGED, federation, perceptron, trained
from kedge.audit.properties.reductions import features, forward
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import Carry, Differentiate, gradient_by_transform, initial_carry, local_step
from kedge.core.model import Batch, Model
from kedge.core.optimizers import SGD
from kedge.core.server import broadcast
from kedge.core.tree import Leaves, Tree, add, dot, sqnorm, sub
from kedge.engines.engine import trainable
from kedge.engines.sequential import Sequential

TOLERANCE = 1e-12
CLIENT = 3

# f(w), w, the shared leaves as sent, and what is known: correction, state and broadcast of the first
# correction; corrections, states and broadcasts by slot; facts and number of the client; its batch x, y.
Objective = Callable[[Tensor, Leaves, Leaves, dict[str, Any]], Tensor]


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
    return f - dot(sub(known["state"]["c"], known["broadcast"]["c"]), w)


def drifting(f: Tensor, w: Leaves, anchor: Leaves, known: dict[str, Any]) -> Tensor:
    """FedDC: f + α/2 ‖w − (wᵗ − h_i)‖² + ⟨w, g − g_i⟩."""
    alpha: float = known["correction"].alpha
    state, sent = known["state"], known["broadcast"]
    return f + alpha / 2 * sqnorm(sub(w, sub(anchor, state["h"]))) + dot(w, sub(sent["g"], state["g"]))


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


class Scene(NamedTuple):
    """A client in the middle of a run: all that the kernel is given for a step."""

    model: Model
    w: Leaves
    state: Tree  # memories by slot, as two rounds left them
    batch: Batch
    fixed: dict[str, Any]


def scene(algorithm: Algorithm) -> Scene:
    """Two rounds of the small perceptron, then a client well away from what the server sent."""
    model, data = perceptron(algorithm), federation(RAGGED)
    engine = Sequential(model, data)
    server = trained(algorithm, LocalTraining(2, 5, SGD(0.3), clip=1.0), 2, data, model, engine).server
    own = engine.memories.of(CLIENT, server.shared, server.buffers)
    rows = torch.from_numpy(data.clients[CLIENT])
    x, y = data.prepare(data.pool.x[rows]), data.pool.y[rows]
    batch = Batch(x, y, torch.ones(len(y), dtype=x.dtype), torch.zeros(2, dtype=torch.int64))
    fixed = {
        "anchor": server.shared,
        "buffers": own["buffers"],
        "broadcast": broadcast(algorithm, server),
        "facts": {k: v[CLIENT] for k, v in data.facts().items()},
        "lr": torch.ones((), dtype=x.dtype),
    }
    return Scene(model, add(own["params"], drawn(own["params"], 2)), own["slots"], batch, fixed)


def opened_leaves(model: Model, opened: int) -> tuple[str, ...]:
    """The leaves that train while the first units are open."""
    return trainable(model, [unit < opened for unit in range(len(model.units))])


def stepped(
    algorithm: Algorithm,
    at: Scene,
    leaves: tuple[str, ...],
    differentiate: Differentiate = gradient_by_transform,
) -> Carry:
    """One kernel step of rate 1."""
    local = LocalTraining(optimizer=SGD(1.0))
    carry = initial_carry(local, at.w, at.fixed["buffers"], at.state)
    return local_step(algorithm, at.model, local, leaves, carry, at.batch, at.fixed, differentiate)


def drawn(leaves: Leaves, seed: int) -> Leaves:
    """Random leaves of these shapes."""
    chance = torch.Generator().manual_seed(seed)
    return {k: torch.randn(v.shape, generator=chance, dtype=v.dtype) for k, v in leaves.items()}


def local_gradient(algorithm: Algorithm, objective: Objective, opened: int) -> Finding:
    """The gradient of the written-out objective in the open units, and exactly 0 in the frozen ones."""
    at = scene(algorithm)
    leaves = opened_leaves(at.model, opened)
    used = sub(at.w, stepped(algorithm, at, leaves)["params"])
    slots = [c.name for c in algorithm.corrections] or [""]
    known = {
        "correction": next(iter(algorithm.corrections), None),
        "corrections": {c.name: c for c in algorithm.corrections},
        "state": at.state.get(slots[0]),
        "broadcast": at.fixed["broadcast"].get(slots[0]),
        "states": at.state,
        "broadcasts": at.fixed["broadcast"],
        "facts": at.fixed["facts"],
        "client": CLIENT,
        "x": at.batch.x,
        "y": at.batch.y,
    }
    point = {k: v.clone().requires_grad_() for k, v in at.w.items()}
    f = F.cross_entropy(forward(point, at.batch.x), at.batch.y)
    total = objective(f, point, at.fixed["anchor"], known)
    grads = torch.autograd.grad(total, list(point.values()), allow_unused=True, materialize_grads=True)
    written = dict(zip(point, grads, strict=True))
    expected = {k: g if k in leaves else torch.zeros_like(g) for k, g in written.items()}
    return agreed(expected, used, written, TOLERANCE)
