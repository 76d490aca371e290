"""Norms with weights of their own, in bfloat16 and under vmap.

Autocast leaves the input of layer norm (on a CPU) and of instance norm as it is, perhaps in bfloat16, beside
weights in float32. torch's kernels take the two together; under vmap the backward pass does not. There the
input becomes float32 first, as autocast does on a GPU.
"""

from typing import Any

import torch
from torch import nn

from kedge.core.transforms import under_transform

NORMS = (nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


def widen_inputs(module: nn.Module) -> None:
    """Make the norms of a module, those of its own kinds too, compute in float32 under vmap."""
    for layer in module.modules():
        if isinstance(layer, NORMS) and layer.weight is not None:
            layer.register_forward_pre_hook(widened)


def widened(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a norm, in float32 where they are in bfloat16 under a transform."""
    x, *rest = inputs
    return (x.float(), *rest) if x.dtype == torch.bfloat16 and under_transform() else inputs
