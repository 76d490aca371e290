"""The gradient a client really uses, against finite differences of its objective.

The objective is algorithm.loss + Σ correction.loss as the kernel sums them. Slopes are taken along unit
directions d, one in each leaf and some in all, by (8(F(h)−F(−h)) − (F(2h)−F(−2h)))/12h in float64: with
h = 1e-4 both the rest h⁴F⁽⁵⁾/30 and the rounding 1e-16·F/h stay below 1e-10. What `Step.at` gives is a
constant by its definition, so it is held at the point where the slopes are taken.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from kedge.audit.client_step import (
    StepArguments,
    after_one_step,
    leaves_of_first_units,
    random_leaves,
    step_arguments,
)
from kedge.audit.finding import Finding, holds
from kedge.core.algorithm import Algorithm
from kedge.core.client import gradient_by_autograd, gradient_by_transform, overrides
from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves, axpy, dot, only, scale, sqnorm, sub

TOLERANCE = 1e-6
STEP = 1e-4
JOINT = 3  # directions in all leaves at once


def has_objective(algorithm: Algorithm) -> bool:
    """Whether the method's gradient is that of its loss terms: no correction changes it by a hook."""
    return not any(
        overrides(c, hook) for c in algorithm.corrections for hook in ("gradient", "unclipped_gradient")
    )


def finite_differences(algorithm: Algorithm) -> Finding:
    """Both ways of taking the gradient, with two and with all three units open."""
    at = step_arguments(algorithm)
    worst: tuple[float, str] = (0.0, "none is off")
    count = 0
    for opened in (2, 3):
        leaves = leaves_of_first_units(at.model, opened)
        ways = directions(only(at.w, leaves))
        shown: list[Output] = []
        value(algorithm, at._replace(model=recorded(at.model, shown)), leaves)
        slopes = [slope(algorithm, at, shown, leaves, way) for way in ways.values()]
        largest = max(map(abs, slopes)) or 1.0
        for differentiate in (gradient_by_transform, gradient_by_autograd):
            after = after_one_step(algorithm, at, leaves, differentiate)["params"]
            touched = [k for k, v in at.w.items() if k not in leaves and not torch.equal(v, after[k])]
            if touched:
                return holds(False, f"leaves that do not train have a gradient: {touched}")
            used = sub(at.w, after)
            for (name, way), expected in zip(ways.items(), slopes, strict=True):
                got = float(dot(way, used))
                distance = abs(got - expected)
                error = distance / largest if math.isfinite(distance) else math.inf
                text = f"along {name} with {opened} units open: differences {expected:.9g}, used {got:.9g}"
                worst = max(worst, (error, text))
                count += 1
    error, where = worst
    detail = f"{count} slopes, tolerance {TOLERANCE:.0e} of the largest; worst {where}"
    if error <= TOLERANCE:
        return Finding(True, error, detail)
    return Finding(False, error, f"{detail}. A term that is a constant on purpose needs --objective")


def directions(leaves: Leaves) -> dict[str, Leaves]:
    """Random directions of length 1: in each leaf alone, and in all together."""
    found = {k: only(random_leaves(leaves, 5), [k]) for k in leaves}
    found |= {f"direction {number + 1}": random_leaves(leaves, 6 + number) for number in range(JOINT)}
    return {k: scale(1 / sqnorm(way).sqrt(), way) for k, way in found.items()}


def slope(
    algorithm: Algorithm, at: StepArguments, shown: Sequence[Output], leaves: tuple[str, ...], way: Leaves
) -> float:
    """How fast the objective grows along a direction."""

    def moved(distance: float) -> float:
        w = {**at.w, **axpy(distance, way, only(at.w, way))}
        return value(algorithm, at._replace(model=replayed(at.model, shown), w=w), leaves)

    near = moved(STEP) - moved(-STEP)
    far = moved(2 * STEP) - moved(-2 * STEP)
    return (8 * near - far) / (12 * STEP)


def value(algorithm: Algorithm, at: StepArguments, leaves: tuple[str, ...]) -> float:
    """The objective, as the kernel sums it up."""
    return float(after_one_step(algorithm, at, leaves, gradient_by_autograd)["loss"])


def recorded(model: Model, shown: list[Output]) -> Model:
    """The model, which notes what it gives in evaluation mode."""

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        out, moved = model.apply(params, buffers, batch, train)
        if not train:
            shown.append(out)
        return out, moved

    return replace(model, apply=apply)


def replayed(model: Model, shown: Sequence[Output]) -> Model:
    """The model, which gives in evaluation mode what was noted, call by call."""
    rest = list(shown)

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        return model.apply(params, buffers, batch, train) if train else (rest.pop(0), buffers)

    return replace(model, apply=apply)
