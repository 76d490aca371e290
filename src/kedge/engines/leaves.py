"""The leaves that train under a mask, and how long each of them trains."""

from collections.abc import Sequence

from torch import Tensor

from kedge.core.client import unit_gradient_distance
from kedge.core.model import Model
from kedge.core.tree import Leaves


def trainable(model: Model, mask: Sequence[bool]) -> tuple[str, ...]:
    """The leaves of the units that are trainable under `mask`; added heads always are."""
    return (
        *(k for unit, opened in zip(model.units, mask, strict=True) if opened for k in unit),
        *model.extra,
    )


def lr_times(model: Model, steps: Tensor, trained: Tensor, lr: Tensor, momentum: float) -> Leaves:
    """Per leaf: the sum of learning rates over the steps in which it trained, [clients].

    `steps` are each client's steps, [clients]; `trained` those in which each unit trained, [clients, units].
    """
    times = {
        k: lr * unit_gradient_distance(trained[:, u], momentum)
        for u, unit in enumerate(model.units)
        for k in unit
    }
    return times | {k: lr * unit_gradient_distance(steps, momentum) for k in model.extra}
