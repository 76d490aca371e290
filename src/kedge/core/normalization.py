"""Norms and bilinear layers in bfloat16: their input becomes float32 where torch needs it.

Autocast leaves the input of layer norm (on a CPU) and of instance norm as it is, perhaps in bfloat16, beside
weights in float32. torch's kernels take the two together; under vmap the backward pass does not. There the
input becomes float32 first, as autocast does on a GPU. A bilinear layer's inputs it leaves so on a CPU, too,
and no kernel takes them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kedge.core.transforms import under_transform

NORMS = (nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


def widen_inputs(module: nn.Module) -> None:
    """Make these layers of a module, subclasses too, compute in float32 where they must."""
    for layer in module.modules():
        if isinstance(layer, NORMS) and layer.weight is not None:
            layer.register_forward_pre_hook(widened_under_transforms)
        elif isinstance(layer, nn.Bilinear):
            layer.register_forward_pre_hook(widened)


def widened(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, in float32 where they are in bfloat16."""
    return tuple(x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x for x in inputs)


def widened_under_transforms(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same under vmap or a gradient transform alone."""
    return widened(layer, inputs) if under_transform() else inputs
