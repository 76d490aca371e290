"""torch.func's transforms and autocast: which of the two comes first."""

from __future__ import annotations  # dynamo does not evaluate the annotations of inner functions

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._functorch import CInterpreter, TransformType, peek_interpreter_stack
from torch._functorch.pyfunctorch import coerce_cinterpreter
from torch.func import grad

T = TypeVar("T")


def under_transform() -> bool:
    """Whether this runs inside vmap or a gradient transform; dynamo can trace the question."""
    return isinstance(peek_interpreter_stack(), CInterpreter)


def under_vmap() -> bool:
    """Whether vmap is the innermost transform: it runs, and no gradient is taken inside it."""
    top = peek_interpreter_stack()
    return isinstance(top, CInterpreter) and coerce_cinterpreter(top).key() == TransformType.Vmap


def above_vmap(function: Callable[[], T], like: Tensor) -> T:
    """Call `function` so that autocast comes before vmap, as it does where a gradient is taken.

    vmap takes composite operators such as conv2d apart before autocast sees them: a convolution would get an
    input in bfloat16 and a bias in float32. Inside a gradient transform autocast casts their arguments
    first. This gradient is of a constant, and nothing is recorded for it.
    """

    def constant(zero: Tensor) -> tuple[Tensor, T]:
        with torch.no_grad():
            return zero, function()

    found: T = grad(constant, has_aux=True)(like.new_zeros(()))[1]
    return found
