"""The gradient that a client uses, against automatic differentiation of the paper's objective."""

import torch
from torch.nn import functional as F

from kedge.audit.client_step import CLIENT, after_one_step, leaves_of_first_units, step_arguments
from kedge.audit.finding import Finding, agreed
from kedge.audit.references.objectives import Objective
from kedge.audit.references.plain_sgd import forward
from kedge.core.algorithm import Algorithm
from kedge.core.tree import sub

TOLERANCE = 1e-12


def local_gradient(algorithm: Algorithm, objective: Objective, opened: int) -> Finding:
    """The gradient of the written-out objective in the open units, and exactly 0 in the frozen ones."""
    at = step_arguments(algorithm)
    leaves = leaves_of_first_units(at.model, opened)
    used = sub(at.w, after_one_step(algorithm, at, leaves)["params"])
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
