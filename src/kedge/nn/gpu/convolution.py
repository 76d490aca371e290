"""A conv2d that is fast under vmap over clients with different weights.

Under vmap torch computes a grouped convolution, which is slow on a GPU. `Convolution` calls the operators of
operators.py instead: one implicit matrix product for all clients. Without CUDA, without Triton, in float64
and in exact float32 kedge keeps torch's convolution (`uses_triton`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kedge.nn.gpu.operators import computes_in_bfloat16
from kedge.nn.gpu.tiles import position_range, used_positions

Pair = tuple[int, int]
VECTOR = 4  # channels that the programs read in one load


class Convolution(torch.autograd.Function):
    """conv2d of one client's images [N, c, H, W] with weights [k, c, h, w], by operators that stack."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        images, kernel = (padded_channels(v.permute(0, 2, 3, 1)).contiguous() for v in (x, weight))
        shape = geometry(x.shape, weight.shape, stride, padding, dilation)
        settings = shape
        if computes_pairs(images.shape, shape):
            kernel, settings = pair_kernel(kernel), pair_geometry(shape)
            bias = bias if bias is None else bias.repeat(2)
        inputs = images[None], kernel.flatten(1)[None], None if bias is None else bias[None]
        out: Tensor = torch.ops.kedge.convolve(*inputs, settings, False)[0]
        out = out.view(len(x), *shape[-2:], len(weight))
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, *ctx.settings = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        shape = geometry(x.shape, weight.shape, *ctx.settings)
        cropped, margins = cropped_geometry(x.shape, shape)
        k, c, kh, kw = weight.shape
        images, grads = (padded_channels(v.permute(0, 2, 3, 1)).contiguous()[None] for v in (x, g))
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            kernel, *settings = input_gradient_arguments(x.shape, weight, *ctx.settings)
            if ctx.needs_input_grad[1]:
                dx, dweight = torch.ops.kedge.gradients(images, kernel[None], grads, cropped, *settings)
            else:
                dx = torch.ops.kedge.convolve(grads, kernel[None], None, *settings)
            dx = dx[0].permute(0, 3, 1, 2)
        elif ctx.needs_input_grad[1] and computes_pairs(images[0].shape, shape):
            pairs = grads.view(1, len(x), shape[-2], shape[-1] // 2, -1)
            pair_gradient = torch.ops.kedge.weight_gradient(images, pairs, pair_geometry(shape))[0]
            pair_gradient = pair_gradient.view(2, grads.shape[-1], kh, kw + 1, -1)
            dweight = unpaired_gradient(pair_gradient).flatten(1)[None]
            cropped, margins = shape, []
        elif ctx.needs_input_grad[1]:
            dweight = torch.ops.kedge.weight_gradient(images, grads, cropped)
        if dweight is not None:
            dweight = dweight[0].unflatten(1, (*cropped[:2], -1))[:k, :, :, :c].permute(0, 3, 1, 2)
            dweight = pad(dweight, margins) if any(margins) else dweight
        if ctx.needs_input_grad[2]:
            dbias = grads[0].sum((0, 1, 2), dtype=ctx.bias_dtype)[:k]
        return dx, dweight, dbias, None, None, None


def padded_channels(v: Tensor) -> Tensor:
    """`v`, with channels of zeros appended up to a multiple of VECTOR, so that every load is aligned."""
    return pad(v, (0, -v.shape[-1] % VECTOR)) if v.shape[-1] % VECTOR else v


def computes_pairs(images: torch.Size, shape: list[int]) -> bool:
    """Whether the program computes two neighbors of a row as one output with twice the channels.

    `images` is the shape of the images with padded channels, `shape` the geometry. If images have few
    channels, pairs give longer loads, and the window of every pair starts at an aligned address.
    """
    _, _, wide, channels = images
    _, _, _, stride, _, _, _, padding, _, dilation, _, q = shape
    return channels == VECTOR and stride == dilation == 1 and padding % 2 == wide % 2 == q % 2 == 0


def pair_kernel(kernel: Tensor) -> Tensor:
    """The weights [2k, h, w + 1, c] of a convolution in pairs; the right output's window is one further."""
    return torch.cat([pad(kernel, (0, 0, 0, 1)), pad(kernel, (0, 0, 1, 0))])


def unpaired_gradient(pair_gradient: Tensor) -> Tensor:
    """The gradient of weights [k, h, w, c], from the gradient of their `pair_kernel`, [2, k, h, w + 1, c]."""
    return pair_gradient[0, :, :, :-1] + pair_gradient[1, :, :, 1:]


def pair_geometry(shape: list[int]) -> list[int]:
    """The geometry of the same convolution in pairs."""
    kh, kw, sh, sw, *between, p, q = shape
    return [kh, kw + 1, sh, 2 * sw, *between, p, q // 2]


def geometry(x: torch.Size, weight: torch.Size, stride: Pair, padding: Pair, dilation: Pair) -> list[int]:
    """The geometry of the operators: window size, stride, upsampling, padding, dilation, output size.

    Each has two entries, for height and width. Upsampling by U means that the program reads the images as if
    U − 1 zeros were between neighboring pixels; it is 1 except in the gradient by the input.
    """
    out = [
        (size + 2 * pad - d * (k - 1) - 1) // step + 1
        for size, k, step, pad, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return [*weight[2:], *stride, 1, 1, *padding, *dilation, *out]


def cropped_geometry(x: torch.Size, shape: list[int]) -> tuple[list[int], list[int]]:
    """The geometry without the window's positions that only meet padding, and the margins to `pad` again.

    For a 3×3 window on 1×1 images one position remains. The gradient of the other weights is 0.
    """
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = shape
    down = position_range(used_positions(x[2], kh, sh, uh, ph, dh, p))
    right = position_range(used_positions(x[3], kw, sw, uw, pw, dw, q))
    ph, pw = ph - down.start * dh, pw - right.start * dw
    cropped = [len(down), len(right), sh, sw, uh, uw, ph, pw, dh, dw, p, q]
    return cropped, [right.start, kw - right.stop, down.start, kh - down.stop]


def input_gradient_arguments(
    x: torch.Size, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, list[int], bool]:
    """Weights, geometry and `flipped` of the convolution that turns output into input gradients."""
    *_, kh, kw = weight.shape
    weight = padded_channels(weight.movedim(0, -1)).movedim(-1, 0)
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    back = [kh, kw, 1, 1, sh, sw, dh * (kh - 1) - ph, dw * (kw - 1) - pw, dh, dw, *x[2:]]
    if weight.dtype == torch.bfloat16:  # the layout of the forward pass, which the program reads flipped
        return weight.permute(0, 2, 3, 1).flatten(1).contiguous(), back, True
    return weight.flip(2, 3).permute(1, 2, 3, 0).flatten(1).contiguous(), back, False


def stacked_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """conv2d of a row of a stack; `x` and `weight` must satisfy `uses_triton`."""
    if computes_in_bfloat16(x):
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    out: Tensor = Convolution.apply(x, weight, bias, stride, padding, dilation)  # type: ignore[no-untyped-call]
    return out
