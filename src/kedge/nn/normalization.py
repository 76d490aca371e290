"""Norms and bilinear layers under autocast: cast bfloat16 inputs to float32 where torch needs it.

Autocast does not cast the input of layer norm (on a CPU) and of instance norm: it may be bfloat16 while the
weights are float32. torch's kernels accept this mixture, but the backward pass under vmap does not, so under
transforms the input is cast to float32, as autocast does on a GPU. On a CPU autocast does not cast the inputs
of a bilinear layer either, and no kernel accepts them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kedge.nn.transforms import under_transform
from kedge.torch_private import AnyInstanceNorm

NORMS = (nn.LayerNorm, AnyInstanceNorm)


def add_float32_hooks(module: nn.Module) -> None:
    """Add hooks to norms and bilinear layers (subclasses, too) that cast their inputs to float32."""
    for layer in module.modules():
        if isinstance(layer, NORMS) and layer.weight is not None:
            layer.register_forward_pre_hook(to_float32_under_transforms)
        elif isinstance(layer, nn.Bilinear):
            layer.register_forward_pre_hook(to_float32)


def to_float32(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs, with bfloat16 tensors cast to float32."""
    return tuple(x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x for x in inputs)


def to_float32_under_transforms(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs as `to_float32` returns them, but only under vmap or a gradient transform."""
    return to_float32(layer, inputs) if under_transform() else inputs
