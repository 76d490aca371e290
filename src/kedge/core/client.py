"""The training kernel: `local_step` takes one optimizer step of a client, `finish` ends its round.

Every engine trains with these two functions. Both are pure functions of trees of tensors, so a client can
run alone, as a row of a stack, compiled, or on another machine.
"""

from __future__ import annotations  # dynamo does not evaluate the annotations of inner functions

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.correction import ClassMeans, Correction, End, Step
from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves, Tree, dot, only, sub

Carry = dict[str, Any]  # params, buffers, opt, state (by slot), loss: everything that a step changes
Aux = tuple[Output, Leaves, Tensor]  # output, new buffers, loss
Objective = Callable[[Leaves], tuple[Tensor, Aux]]
Differentiate = Callable[[Objective, Leaves], tuple[Leaves, Aux]]
Fixed = dict[str, Any]  # anchor, buffers, broadcast (by slot), facts, lr, round: constant during a round


def local_step(  # noqa: C901, PLR0913  # the kernel: all that a step depends on
    algorithm: Algorithm,
    model: Model,
    local: LocalTraining,
    trainable: tuple[str, ...],
    carry: Carry,
    batch: Batch,
    fixed: Fixed,
    differentiate: Differentiate | None = None,
) -> Carry:
    """The carry after one optimizer step of one client; of the parameters, only `trainable` change.

    `differentiate` computes the gradient, by default `gradient_by_transform`.
    """
    params, buffers = carry["params"], carry["buffers"]

    def step_for(current: Leaves, out: Output, correction: Correction | None) -> Step:
        def at(leaves: Leaves) -> Output:
            constant = {k: v.detach() for k, v in {**current, **leaves}.items()}
            return model.apply(constant, fixed["buffers"], batch, False)[0]

        slot = correction.name if correction else None
        return Step(
            params=only(current, fixed["anchor"]),
            anchor=fixed["anchor"],
            batch=batch,
            out=out,
            at=at,
            state=carry["state"][slot] if slot else {},
            broadcast=fixed["broadcast"][slot] if slot else {},
            facts=fixed["facts"],
            round=fixed["round"],
            trainable=trainable,
        )

    def objective(train: Leaves) -> tuple[Tensor, Aux]:
        current = {**params, **train}
        out, new_buffers = model.apply(current, buffers, batch, True)
        total = algorithm.loss(step_for(current, out, None))
        for correction in algorithm.corrections:
            if overrides(correction, "loss"):
                total = total + correction.loss(step_for(current, out, correction))
        return total, (out, new_buffers, total)

    if not trainable:
        _, (_, new_buffers, loss) = objective({})
        return {**carry, "buffers": new_buffers, "loss": carry["loss"] + loss.detach()}

    compute_gradient = differentiate or gradient_by_transform
    grads, (out, new_buffers, loss) = compute_gradient(objective, only(params, trainable))
    unclipped: Leaves = {}
    state = carry["state"]
    for correction in algorithm.corrections:
        step = step_for(params, out, correction)
        if overrides(correction, "gradient"):
            grads = {**grads, **correction.gradient(only(grads, fixed["anchor"]), step)}
        if overrides(correction, "unclipped_gradient"):
            added = only(correction.unclipped_gradient(step), trainable)
            unclipped |= {k: unclipped[k] + v if k in unclipped else v for k, v in added.items()}
    if local.clip is not None:
        grads = clipped(grads, local.clip, model.extra)
    params, opt = local.optimizer.update(grads, unclipped, carry["opt"], params, fixed["lr"])
    for correction in algorithm.corrections:
        if overrides(correction, "advance"):
            state = {**state, correction.name: correction.advance(step_for(params, out, correction))}
    return {
        "params": params,
        "buffers": new_buffers,
        "opt": opt,
        "state": state,
        "loss": carry["loss"] + loss.detach(),
    }


def gradient_by_transform(objective: Objective, leaves: Leaves) -> tuple[Leaves, Aux]:
    """Gradient, output, buffers and loss by torch.func.grad, which works under vmap and torch.compile."""
    grads: tuple[Leaves, Aux] = grad(objective, has_aux=True)(leaves)
    return grads


def gradient_by_autograd(objective: Objective, leaves: Leaves) -> tuple[Leaves, Aux]:
    """The same by torch.autograd.grad, which needs less memory than the transform for a single client."""
    inputs = {k: v.detach().requires_grad_() for k, v in leaves.items()}
    total, (out, new_buffers, loss) = objective(inputs)
    grads = torch.autograd.grad(total, list(inputs.values()), allow_unused=True, materialize_grads=True)
    extra = {k: v.detach() for k, v in out.extra.items()}
    detached = Output(out.features.detach(), out.logits.detach(), extra)
    return dict(zip(inputs, grads, strict=True)), (detached, new_buffers, loss.detach())


def overrides(correction: Correction, hook: str) -> bool:
    """Whether the correction's class overrides `hook`."""
    return getattr(type(correction), hook) is not getattr(Correction, hook)


STEP_HOOKS = (
    "reach", "init_client", "broadcast", "loss", "gradient", "unclipped_gradient", "advance", "send",
)  # fmt: skip


def acts_in_steps(correction: Correction) -> bool:
    """Whether a correction affects a client's steps, memory or delta, not only its upload or the server."""
    return correction.needs_class_means or any(overrides(correction, hook) for hook in STEP_HOOKS)


def step_part(algorithm: Algorithm) -> Algorithm:
    """The algorithm without its name and without the corrections that do not act in steps.

    Algorithms with equal step parts use the same compiled program: FedAvg, FedAvgM and FedExP.
    """
    acting = tuple(c for c in algorithm.corrections if acts_in_steps(c))
    return replace(algorithm, name="", corrections=acting)


def clipped(grads: Leaves, limit: float, extra: tuple[str, ...]) -> Leaves:
    """Gradients times min(1, limit/‖g‖), with one norm for the model and one for the added heads `extra`."""
    groups = [only(grads, extra), {k: v for k, v in grads.items() if k not in extra}]
    scaled: Leaves = {}
    for group in groups:
        if group:
            factor = (limit / dot(group, group).sqrt()).clamp(max=1.0)
            scaled |= {k: factor * g for k, g in group.items()}
    return {k: scaled[k] for k in grads}


def initial_carry(local: LocalTraining, params: Leaves, buffers: Leaves, state: Tree) -> Carry:
    """A client's carry before the first step of a round."""
    loss = next(iter(params.values())).new_zeros(())
    return {
        "params": params,
        "buffers": buffers,
        "opt": local.optimizer.init(params),
        "state": state,
        "loss": loss,
    }


def finish(
    algorithm: Algorithm,
    carry: Carry,
    fixed: Fixed,
    steps: Tensor,
    lr_time: Leaves,
    class_means: ClassMeans | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A client's new memory, by slot, and its upload, computed after the last step of a round."""
    anchor = fixed["anchor"]
    shared = only(carry["params"], anchor)
    delta = sub(shared, anchor)
    memory: dict[str, Any] = {}
    upload: dict[str, Any] = {}
    sent = delta

    def end(slot: str, state: Tree) -> End:
        return End(
            params=shared,
            anchor=anchor,
            delta=delta,
            lr=fixed["lr"],
            steps=steps,
            lr_time=only(lr_time, anchor),
            state=state,
            broadcast=fixed["broadcast"][slot],
            facts=fixed["facts"],
            class_means=class_means,
        )

    for correction in algorithm.corrections:
        slot = correction.name
        memory[slot], upload[slot] = correction.finish(end(slot, carry["state"][slot]))
        if overrides(correction, "send"):
            sent = correction.send(sent, end(slot, memory[slot]))
    return memory, {
        "delta": sent,
        "slots": upload,
        "buffers": carry["buffers"],
        "loss": carry["loss"] / steps,
    }


def class_sums(model: Model, classes: int, params: Leaves, buffers: Leaves, batch: Batch) -> Leaves:
    """Per class: the sum of the batch's features in evaluation mode, and the number of samples."""
    features = model.apply(params, buffers, batch, False)[0].features
    one_hot = (batch.y[:, None] == torch.arange(classes, device=batch.y.device)) * batch.weight[:, None]
    return {"sum": one_hot.T @ features, "count": one_hot.sum(0)}


def class_means(sums: Leaves) -> ClassMeans:
    """The mean features of each class; 0 for a class without samples."""
    return ClassMeans(sums["sum"] / sums["count"].clamp_min(1)[:, None], sums["count"])


def unit_gradient_distance(count: Tensor, momentum: float) -> Tensor:
    """The distance that a constant gradient of 1 moves a weight in `count` steps at learning rate 1.

    Without momentum it is K = `count`; with momentum ρ it is (K − ρ(1−ρ^K)/(1−ρ))/(1−ρ).
    """
    if not momentum:
        return count
    return (count - momentum * (1 - momentum**count) / (1 - momentum)) / (1 - momentum)
