"""Frozen parameters: the parameters of a user's module with requires_grad=False.

Their values never change. `Model.init` does not return them and `Model.units` does not contain them, so
optimizers, corrections, client memories and uploads do not contain them either. `Model.apply` reads them from
one copy that all clients share, on the run's device and in its dtype; `place_frozen` makes that copy.
"""

from dataclasses import replace

import torch
from torch import nn

from kedge.core.model import Batch, Model, Output
from kedge.core.tree import Leaves, tree_to


def frozen_leaves(model: Model) -> Leaves:
    """The frozen parameters by name, with their values and dtypes in the module."""
    return {k: v for k, v in model.constants if k in model.frozen}


def place_frozen(model: Model, dtype: torch.dtype, device: torch.device | str = "cpu") -> Model:
    """The model with its frozen parameters on `device` and in `dtype`."""
    placed = tree_to(frozen_leaves(model), dtype, device)
    return with_frozen(model, {k: nn.Parameter(v, requires_grad=False) for k, v in placed.items()})


def with_frozen(model: Model, leaves: Leaves) -> Model:
    """The model with `leaves` as its frozen parameters."""
    if not leaves:
        return model

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        return model.apply({**leaves, **params}, buffers, batch, train)

    return replace(model, apply=apply, frozen=leaves)


def same_frozen(left: Model, right: Model) -> bool:
    """Whether two models have the same frozen parameters, to the last bit."""
    left_leaves, right_leaves = frozen_leaves(left), frozen_leaves(right)
    return left_leaves.keys() == right_leaves.keys() and all(
        identical(v, right_leaves[k]) for k, v in left_leaves.items()
    )


def identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype and equal values."""
    return left is right or (left.dtype == right.dtype and torch.equal(left, right))


def frozen_note(model: Model) -> str:
    """A sentence about frozen parameters, to append to a message about units; empty if nothing is frozen."""
    if not model.frozen:
        return ""
    return (
        f" {len(model.frozen)} of the module's {len(model.parameters)} parameters have requires_grad=False: "
        "a layer with only such parameters is no unit."
    )
