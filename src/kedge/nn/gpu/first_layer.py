"""The first convolution of a network, the 2×2 max pooling and the ReLU after it, as one program for a stack.

A first layer has few input channels and the largest outputs of the network. The program
(first_layer_kernels.py) writes only the quarter of them that pooling keeps.
"""

from typing import Any

import torch
from torch import Tensor

from kedge.nn.gpu.convolution import (
    VECTOR,
    Pair,
    computes_pairs,
    geometry,
    input_gradient_arguments,
    padded_channels,
    pair_geometry,
    pair_kernel,
    unpaired_gradient,
)
from kedge.nn.gpu.operators import computes_in_bfloat16

ONE: Pair = (1, 1)


class PooledConvolution(torch.autograd.Function):
    """conv2d of one client's images with 2×2 max pooling: outputs [N, k, P/2, Q/2] and their argmax.

    The argmax is the number 2 · row + column of the largest value in its 2×2 window, or 4 if the ReLU made
    it 0. The shapes are those of `Convolution`; P and Q are the sizes before pooling.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair, relu: bool
    ) -> tuple[Tensor, Tensor]:
        images, kernel = (padded_channels(v.permute(0, 2, 3, 1)).contiguous() for v in (x, weight))
        inputs = images[None], pair_kernel(kernel).flatten(1)[None], None if bias is None else bias[None]
        shape = pair_geometry(geometry(x.shape, weight.shape, ONE, padding, ONE))
        out, argmax = torch.ops.kedge.convolve_pool(*inputs, shape, relu)
        return out[0].permute(0, 3, 1, 2), argmax[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.padding, _ = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, argmax = ctx.saved_tensors
        k, c, kh, kw = weight.shape
        grads = g.permute(0, 2, 3, 1).contiguous()
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            kernel, *settings = input_gradient_arguments(x.shape, weight, ONE, ctx.padding, ONE)
            unpooled = padded_channels(torch.ops.kedge.unpool(grads[None], argmax[None]))
            dx = torch.ops.kedge.convolve(unpooled, kernel[None], None, *settings)[0].permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            images = padded_channels(x.permute(0, 2, 3, 1)).contiguous()
            shape = pair_geometry(geometry(x.shape, weight.shape, ONE, ctx.padding, ONE))
            gradient = torch.ops.kedge.pooled_weight_gradient(images[None], grads[None], argmax[None], shape)[
                0
            ]
            dweight = unpaired_gradient(gradient.view(2, k, kh, kw + 1, -1))[..., :c].permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            dbias = torch.where(argmax == 4, 0, grads).sum((0, 1, 2), dtype=ctx.bias_dtype)
        return dx, dweight, dbias, None, None


def can_fuse_pooling(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    """Whether the program can compute this convolution of a row of a stack together with its pooling."""
    shape = geometry(x.shape, weight.shape, stride, padding, dilation)
    images = torch.Size((len(x), *x.shape[2:], x.shape[1] + -x.shape[1] % VECTOR))
    return stride == dilation == ONE and shape[-2] % 2 == 0 and computes_pairs(images, shape)


def stacked_pooled_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any, relu: bool
) -> Tensor:
    """conv2d, 2×2 max pooling and, if `relu`, ReLU of a row of a stack; needs `can_fuse_pooling`."""
    if computes_in_bfloat16(x):
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    out: Tensor = PooledConvolution.apply(x, weight, bias, padding, relu)[0]  # type: ignore[no-untyped-call]
    return out
