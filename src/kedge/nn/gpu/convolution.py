"""A convolution that stacks: under vmap over clients with kernels of their own it is one implicit product.

torch turns such a convolution into a grouped one, which GPUs do slowly. Here the vmapped operators
(operators.py) run the programs of `kernels.py`; in precisions those do not have (float64, exact float32),
without CUDA or without Triton, the convolution stays torch's.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kedge.nn.gpu.operators import in_bfloat16
from kedge.nn.gpu.tiles import seen, seen_places

Pair = tuple[int, int]
AT_ONCE = 4  # channels that are read together


class Convolution(torch.autograd.Function):
    """conv2d of one client, [N, c, H, W] with [k, c, h, w]: written with operators that stack."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        images, kernel = (filled(v.permute(0, 2, 3, 1)).contiguous() for v in (x, weight))
        shape = geometry(x.shape, weight.shape, stride, padding, dilation)
        how = shape
        if in_pairs(images.shape, shape):
            kernel, how = doubled(kernel), paired(shape)
            bias = bias if bias is None else bias.repeat(2)
        inputs = images[None], kernel.flatten(1)[None], None if bias is None else bias[None]
        out: Tensor = torch.ops.kedge.convolve(*inputs, how, False)[0]
        out = out.view(len(x), *shape[-2:], len(weight))
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, *ctx.how = inputs
        ctx.added = None if bias is None else bias.dtype
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        shape = geometry(x.shape, weight.shape, *ctx.how)
        part, around = of_seen(x.shape, shape)
        k, c, kh, kw = weight.shape
        images, slopes = (filled(v.permute(0, 2, 3, 1)).contiguous()[None] for v in (x, g))
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            kernel, *how = backwards(x.shape, weight, *ctx.how)
            if ctx.needs_input_grad[1]:
                dx, dweight = torch.ops.kedge.gradients(images, kernel[None], slopes, part, *how)
            else:
                dx = torch.ops.kedge.convolve(slopes, kernel[None], None, *how)
            dx = dx[0].permute(0, 3, 1, 2)
        elif ctx.needs_input_grad[1] and in_pairs(images[0].shape, shape):
            twos = slopes.view(1, len(x), shape[-2], shape[-1] // 2, -1)
            both = torch.ops.kedge.weigh(images, twos, paired(shape))[0]
            dweight = undoubled(both.view(2, slopes.shape[-1], kh, kw + 1, -1)).flatten(1)[None]
            part, around = shape, []
        elif ctx.needs_input_grad[1]:
            dweight = torch.ops.kedge.weigh(images, slopes, part)
        if dweight is not None:
            dweight = dweight[0].unflatten(1, (*part[:2], -1))[:k, :, :, :c].permute(0, 3, 1, 2)
            dweight = pad(dweight, around) if any(around) else dweight
        if ctx.needs_input_grad[2]:
            dbias = slopes[0].sum((0, 1, 2), dtype=ctx.added)[:k]
        return dx, dweight, dbias, None, None, None


def filled(v: Tensor) -> Tensor:
    """With channels that are 0 behind the others, so that no window's row begins between two reads."""
    return pad(v, (0, -v.shape[-1] % AT_ONCE)) if v.shape[-1] % AT_ONCE else v


def in_pairs(images: torch.Size, shape: list[int]) -> bool:
    """Whether two neighbours in a row are made as one output with twice the channels.

    Of images with few channels that reads more at once, and every window begins where memory is read from.
    """
    _, _, wide, channels = images
    _, _, _, stride, _, _, _, padding, _, dilation, _, q = shape
    return channels == AT_ONCE and stride == dilation == 1 and padding % 2 == wide % 2 == q % 2 == 0


def doubled(kernel: Tensor) -> Tensor:
    """[k, h, w, c] for pairs: the right one of two sees its window one place further."""
    return torch.cat([pad(kernel, (0, 0, 0, 1)), pad(kernel, (0, 0, 1, 0))])


def undoubled(both: Tensor) -> Tensor:
    """The gradient [k, h, w, c] from that of kernels for pairs, [2, k, h, w + 1, c]."""
    return both[0, :, :, :-1] + both[1, :, :, 1:]


def paired(shape: list[int]) -> list[int]:
    """The geometry of a convolution in pairs."""
    kh, kw, sh, sw, *between, p, q = shape
    return [kh, kw + 1, sh, 2 * sw, *between, p, q // 2]


def geometry(x: torch.Size, weight: torch.Size, stride: Pair, padding: Pair, dilation: Pair) -> list[int]:
    """Window, stride, spread, padding, dilation and the shape that comes out, as the operators take them."""
    out = [
        (size + 2 * pad - d * (k - 1) - 1) // step + 1
        for size, k, step, pad, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return [*weight[2:], *stride, 1, 1, *padding, *dilation, *out]


def of_seen(x: torch.Size, shape: list[int]) -> tuple[list[int], list[int]]:
    """The geometry of the part of the window that ever sees the images, and how to pad what it is of.

    Of a 3×3 window on 1×1 images it is one place; the gradient by the weights of the others is 0.
    """
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = shape
    down = seen(seen_places(x[2], kh, sh, uh, ph, dh, p))
    right = seen(seen_places(x[3], kw, sw, uw, pw, dw, q))
    part = [len(down), len(right), sh, sw, uh, uw, ph - down.start * dh, pw - right.start * dw, dh, dw, p, q]
    return part, [right.start, kw - right.stop, down.start, kh - down.stop]


def backwards(
    x: torch.Size, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, list[int], bool]:
    """A convolution of filled slopes to the gradient by the input: kernel, geometry, whether it is turned."""
    *_, kh, kw = weight.shape
    weight = filled(weight.movedim(0, -1)).movedim(-1, 0)
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    back = [kh, kw, 1, 1, sh, sw, dh * (kh - 1) - ph, dw * (kw - 1) - pw, dh, dw, *x[2:]]
    if weight.dtype == torch.bfloat16:  # read turned round where it lies
        return weight.permute(0, 2, 3, 1).flatten(1).contiguous(), back, True
    return weight.flip(2, 3).permute(1, 2, 3, 0).flatten(1).contiguous(), back, False


def stacked_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """conv2d of rows of a stack, both of them `stackable`."""
    if in_bfloat16(x):
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    out: Tensor = Convolution.apply(x, weight, bias, stride, padding, dilation)  # type: ignore[no-untyped-call]
    return out
