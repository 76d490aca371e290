"""The gradient that a client uses, against autograd of the paper's objective."""

import torch
from torch.nn import functional as F

from kedge.audit.client_step import CLIENT, leaves_of_first_units, step_arguments, take_step
from kedge.audit.finding import Finding, compare_trees
from kedge.audit.references.objectives import Objective
from kedge.audit.references.plain_sgd import logits
from kedge.core.algorithm import Algorithm
from kedge.core.tree import sub

TOLERANCE = 1e-12


def local_gradient(algorithm: Algorithm, objective: Objective, opened: int) -> Finding:
    """Compare the gradient of the first `opened` units with that of `objective`; frozen units must have 0."""
    at = step_arguments(algorithm)
    leaves = leaves_of_first_units(at.model, opened)
    used = sub(at.w, take_step(algorithm, at, leaves)["params"])
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
    f = F.cross_entropy(logits(point, at.batch.x), at.batch.y)
    total = objective(f, point, at.fixed["anchor"], known)
    grads = torch.autograd.grad(total, list(point.values()), allow_unused=True, materialize_grads=True)
    by_leaf = dict(zip(point, grads, strict=True))
    expected = {k: g if k in leaves else torch.zeros_like(g) for k, g in by_leaf.items()}
    return compare_trees(expected, used, by_leaf, TOLERANCE)
