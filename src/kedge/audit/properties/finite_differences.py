"""The gradient that a client uses, against finite differences of its objective.

The objective is algorithm.loss + Σ correction.loss, as the kernel sums them. Its slopes along unit directions
d, one in each leaf and some in all leaves, are (8(F(h) − F(−h)) − (F(2h) − F(−2h))) / 12h in float64. With h
= 1e-4, the remainder h⁴F⁽⁵⁾/30 and the rounding 1e-16·F/h are both below 1e-10. The outputs of `Step.at` are
constants of the objective by definition, so they are recorded once and replayed at every other point.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from kedge.audit.client_step import (
    StepArguments,
    leaves_of_first_units,
    random_leaves,
    step_arguments,
    take_step,
)
from kedge.audit.finding import Finding, no_violations
from kedge.core.algorithm import Algorithm
from kedge.core.client import gradient_by_autograd, gradient_by_transform, overrides
from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves, axpy, dot, only, scale, sqnorm, sub

TOLERANCE = 1e-6
STEP = 1e-4
JOINT_DIRECTIONS = 3  # in all leaves together


def has_objective(algorithm: Algorithm) -> bool:
    """Whether the gradient is that of the loss terms: no correction changes it by a hook."""
    return not any(
        overrides(c, hook) for c in algorithm.corrections for hook in ("gradient", "unclipped_gradient")
    )


def gradient_matches_slopes(algorithm: Algorithm) -> Finding:
    """The gradients by transform and by autograd match the slopes, with two and with all three units open."""
    at = step_arguments(algorithm)
    compared: list[tuple[float, str]] = []  # error, and the text of its comparison
    for opened in (2, 3):
        leaves = leaves_of_first_units(at.model, opened)
        unit_vectors = directions(only(at.w, leaves))
        slopes = slopes_along(algorithm, at, leaves, unit_vectors)
        largest = max(map(abs, slopes.values())) or 1.0
        for differentiate in (gradient_by_transform, gradient_by_autograd):
            after = take_step(algorithm, at, leaves, differentiate)["params"]
            moved = [k for k, v in at.w.items() if k not in leaves and not torch.equal(v, after[k])]
            if moved:
                return no_violations("leaves that do not train", moved, "with a gradient")
            gradient = sub(at.w, after)
            for name, direction in unit_vectors.items():
                actual = float(dot(direction, gradient))
                difference = abs(actual - slopes[name])
                error = difference / largest if math.isfinite(difference) else math.inf
                values = f"finite differences give {slopes[name]:.9g}, the method used {actual:.9g}"
                compared.append((error, f"along {name} with {opened} units open: {values}"))
    error, text = max(compared)
    detail = f"{len(compared)} slopes, tolerance {TOLERANCE:.0e} of the largest; worst {text}"
    if error <= TOLERANCE:
        return Finding(True, error, detail)
    return Finding(False, error, f"{detail}. If a term is a constant on purpose, pass --objective")


def directions(leaves: Leaves) -> dict[str, Leaves]:
    """Random directions of length 1, in each leaf alone and in all leaves together."""
    vectors = {k: only(random_leaves(leaves, 5), [k]) for k in leaves}
    for number in range(JOINT_DIRECTIONS):
        vectors[f"direction {number + 1}"] = random_leaves(leaves, 6 + number)
    return {k: scale(1 / sqnorm(vector).sqrt(), vector) for k, vector in vectors.items()}


def slopes_along(
    algorithm: Algorithm, at: StepArguments, leaves: tuple[str, ...], unit_vectors: dict[str, Leaves]
) -> dict[str, float]:
    """The slope of the objective along each of `unit_vectors`."""
    outputs: list[Output] = []
    objective_value(algorithm, at._replace(model=recording_model(at.model, outputs)), leaves)
    return {name: slope(algorithm, at, outputs, leaves, vector) for name, vector in unit_vectors.items()}


def slope(
    algorithm: Algorithm,
    at: StepArguments,
    outputs: Sequence[Output],
    leaves: tuple[str, ...],
    direction: Leaves,
) -> float:
    """The slope along `direction`, in which `Step.at` replays `outputs`."""

    def value_at(distance: float) -> float:
        w = {**at.w, **axpy(distance, direction, only(at.w, direction))}
        return objective_value(algorithm, at._replace(model=replaying_model(at.model, outputs), w=w), leaves)

    near = value_at(STEP) - value_at(-STEP)
    far = value_at(2 * STEP) - value_at(-2 * STEP)
    return (8 * near - far) / (12 * STEP)


def objective_value(algorithm: Algorithm, at: StepArguments, leaves: tuple[str, ...]) -> float:
    """The objective as the kernel sums it."""
    return float(take_step(algorithm, at, leaves, gradient_by_autograd)["loss"])


def recording_model(model: Model, outputs: list[Output]) -> Model:
    """The model, with an `apply` that appends its outputs in evaluation mode to `outputs`."""

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        out, new_buffers = model.apply(params, buffers, batch, train)
        if not train:
            outputs.append(out)
        return out, new_buffers

    return replace(model, apply=apply)


def replaying_model(model: Model, outputs: Sequence[Output]) -> Model:
    """The model, with an `apply` that returns `outputs`, call by call, in evaluation mode."""
    remaining = list(outputs)

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        return model.apply(params, buffers, batch, train) if train else (remaining.pop(0), buffers)

    return replace(model, apply=apply)
