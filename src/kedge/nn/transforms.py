"""torch.func's transforms: check which one is active, and let autocast see operators before vmap."""

from __future__ import annotations  # so dynamo does not evaluate annotations of inner functions

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import grad

from kedge.torch_private import CInterpreter, TransformType, coerce_cinterpreter, peek_interpreter_stack

T = TypeVar("T")


def under_transform() -> bool:
    """Whether vmap or a gradient transform is active; dynamo can trace this check."""
    return isinstance(peek_interpreter_stack(), CInterpreter)


def under_vmap() -> bool:
    """Whether vmap is the innermost active transform, with no gradient transform inside it."""
    top = peek_interpreter_stack()
    return isinstance(top, CInterpreter) and coerce_cinterpreter(top).key() == TransformType.Vmap


def call_with_autocast_first(function: Callable[[], T], reference: Tensor) -> T:
    """Call `function` so that autocast sees operators before vmap, as it does in a gradient transform.

    vmap decomposes composite operators such as conv2d before autocast sees them: a convolution would get an
    input in bfloat16 and a bias in float32. Inside a gradient transform autocast casts their arguments
    first. Therefore `function` runs inside the gradient of a constant with the dtype and device of
    `reference`; autograd records nothing.
    """

    def constant(zero: Tensor) -> tuple[Tensor, T]:
        with torch.no_grad():
            return zero, function()

    result: T = grad(constant, has_aux=True)(reference.new_zeros(()))[1]
    return result
