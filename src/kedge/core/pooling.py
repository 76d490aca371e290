"""2×2 max pooling that stacks: under vmap its gradient is one program that writes every value once.

The forward pass is a few elementwise operators, which compile into one with their neighbours.
"""

from typing import Any

import torch
from torch import Tensor


class Pooling(torch.autograd.Function):
    """The largest of every 2×2 of [N, k, H, W], H and W even; and which it was: of equals the first."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c, d = (x[:, :, i::2, j::2] for i in range(2) for j in range(2))
        out = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
        which = torch.where(a == out, 0, torch.where(b == out, 1, torch.where(c == out, 2, 3)))
        return out, which.to(torch.int8)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        (which,) = ctx.saved_tensors
        slopes, places = (v.permute(0, 2, 3, 1).contiguous()[None] for v in (g, which))
        dx: Tensor = torch.ops.kedge.unpool(slopes, places)[0]
        return dx.permute(0, 3, 1, 2)


def stacked_pooling(x: Tensor) -> Tensor:
    """2×2 max pooling of rows of a stack that are `stackable`."""
    out: Tensor = Pooling.apply(x)[0]  # type: ignore[no-untyped-call]
    return out
