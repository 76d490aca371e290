"""The leaves that train under a mask, and the learning rate of each leaf summed over its steps."""

from collections.abc import Sequence

from torch import Tensor

from kedge.core.client import unit_gradient_distance
from kedge.core.model import Model
from kedge.core.tree import Leaves


def trainable(model: Model, mask: Sequence[bool]) -> tuple[str, ...]:
    """The names of the leaves that train under `mask`; heads that a method adds always train."""
    return (
        *(name for unit, trains in zip(model.units, mask, strict=True) if trains for name in unit),
        *model.extra,
    )


def lr_times(model: Model, steps: Tensor, trained: Tensor, lr: Tensor, momentum: float) -> Leaves:
    """By leaf: the learning rate summed over the steps in which the leaf trained, [clients].

    With `momentum` it is the distance that SGD moves a weight whose gradient is always 1. `steps` are the
    numbers of steps, [clients], and `trained` of steps in which a unit trained, [clients, units].
    """
    times = {
        k: lr * unit_gradient_distance(trained[:, u], momentum)
        for u, unit in enumerate(model.units)
        for k in unit
    }
    return times | {k: lr * unit_gradient_distance(steps, momentum) for k in model.extra}
