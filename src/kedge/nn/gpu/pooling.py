"""2×2 max pooling that stacks, with the ReLU behind it: under vmap one program there and one back.

Of four values one counts, and a code says which: the backward pass needs no more than that.
"""

from typing import Any

import torch
from torch import Tensor


class Pooling(torch.autograd.Function):
    """The largest of every 2×2 of [N, k, H, W], H and W even, or 0 if ReLU makes it so; and the codes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
        out, which = torch.ops.kedge.pool(x.permute(0, 2, 3, 1).contiguous()[None], relu)
        return out[0].permute(0, 3, 1, 2), which[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, None]:
        (which,) = ctx.saved_tensors
        dx: Tensor = torch.ops.kedge.unpool(g.permute(0, 2, 3, 1).contiguous()[None], which[None])[0]
        return dx.permute(0, 3, 1, 2), None


def stacked_pooling(x: Tensor, relu: bool) -> Tensor:
    """2×2 max pooling, and ReLU if so, of rows of a stack that are `stackable`."""
    out: Tensor = Pooling.apply(x, relu)[0]  # type: ignore[no-untyped-call]
    return out
