"""2×2 max pooling and the ReLU after it, as one program for a whole stack, forward and backward.

The forward pass saves the argmax of each window (0 to 3, or 4 if the ReLU made it 0). The backward pass needs
nothing else.
"""

from typing import Any

import torch
from torch import Tensor


class Pooling(torch.autograd.Function):
    """The largest value of each 2×2 window of [N, k, H, W], after a ReLU if `relu`, and its argmax.

    H and W must be even.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
        out, argmax = torch.ops.kedge.pool(x.permute(0, 2, 3, 1).contiguous()[None], relu)
        return out[0].permute(0, 3, 1, 2), argmax[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, None]:
        (argmax,) = ctx.saved_tensors
        dx: Tensor = torch.ops.kedge.unpool(g.permute(0, 2, 3, 1).contiguous()[None], argmax[None])[0]
        return dx.permute(0, 3, 1, 2), None


def stacked_pooling(x: Tensor, relu: bool) -> Tensor:
    """2×2 max pooling and, if `relu`, ReLU of a row of a stack; `x` must satisfy `uses_triton`."""
    out: Tensor = Pooling.apply(x, relu)[0]  # type: ignore[no-untyped-call]
    return out
