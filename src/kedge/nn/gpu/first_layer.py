"""A first layer's convolution with its 2×2 pooling and the ReLU behind it, for stacks: one program.

Its images have few channels and its outputs are the largest of the network; of them only the pooled quarter
is ever written (first_kernels.py).
"""

from typing import Any

import torch
from torch import Tensor

from kedge.nn.gpu.convolution import (
    AT_ONCE,
    Pair,
    backwards,
    doubled,
    filled,
    geometry,
    in_pairs,
    paired,
    undoubled,
)
from kedge.nn.gpu.operators import in_bfloat16

ONE: Pair = (1, 1)


class PooledConvolution(torch.autograd.Function):
    """conv2d of one client, pooled: [N, c, H, W] with [k, c, h, w] to [N, k, P/2, Q/2], and which of four."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, relu: bool
    ) -> tuple[Tensor, Tensor]:
        images, kernel = (filled(v.permute(0, 2, 3, 1)).contiguous() for v in (x, weight))
        inputs = images[None], doubled(kernel).flatten(1)[None], None if bias is None else bias[None]
        shape = paired(geometry(x.shape, weight.shape, ONE, padding, ONE))
        out, which = torch.ops.kedge.convolve_pool(*inputs, shape, relu)
        return out[0].permute(0, 3, 1, 2), which[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.padding, _ = inputs
        ctx.added = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, which = ctx.saved_tensors
        k, c, kh, kw = weight.shape
        slopes = g.permute(0, 2, 3, 1).contiguous()
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            kernel, *how = backwards(x.shape, weight, ONE, ctx.padding, ONE)
            spread = filled(torch.ops.kedge.unpool(slopes[None], which[None]))
            dx = torch.ops.kedge.convolve(spread, kernel[None], None, *how)[0].permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            images = filled(x.permute(0, 2, 3, 1)).contiguous()
            shape = paired(geometry(x.shape, weight.shape, ONE, ctx.padding, ONE))
            both = torch.ops.kedge.weigh_pooled(images[None], slopes[None], which[None], shape)[0]
            dweight = undoubled(both.view(2, k, kh, kw + 1, -1))[..., :c].permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            dbias = torch.where(which == 4, 0, slopes).sum((0, 1, 2), dtype=ctx.added)
        return dx, dweight, dbias, None, None


def pools(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    """Whether a convolution of rows of a stack can be pooled as it is made."""
    shape = geometry(x.shape, weight.shape, stride, padding, dilation)
    images = torch.Size((len(x), *x.shape[2:], x.shape[1] + -x.shape[1] % AT_ONCE))
    return stride == dilation == ONE and shape[-2] % 2 == 0 and in_pairs(images, shape)


def stacked_pooled_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any, relu: bool
) -> Tensor:
    """conv2d, 2×2 max pooling, and ReLU if so, of rows of a stack that `pools`."""
    if in_bfloat16(x):
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    out: Tensor = PooledConvolution.apply(x, weight, bias, padding, relu)[0]  # type: ignore[no-untyped-call]
    return out
