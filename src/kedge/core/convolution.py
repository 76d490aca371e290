"""A convolution that stacks: under vmap over clients with kernels of their own it is one implicit product.

torch turns such a convolution into a grouped one, which GPUs do slowly. Here the vmapped operators
(kedge::convolve, kedge::weigh) run the programs of `kernels.py`; in precisions those do not have (float64,
exact float32), without CUDA or without Triton, the convolution stays torch's.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

Pair = tuple[int, int]
# How kernels of many clients lie for `convolve`:
OUT_FIRST = 0  # [clients, out, window · channels]
OUT_LAST = 1  # [clients, window · channels, out]
TURNED = 2  # [clients, channels, window · out], to be read with the window turned round
LIBRARY: Any = torch.library.Library("kedge", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("convolve(Tensor x, Tensor w, int[] geometry, int laid) -> Tensor")
LIBRARY.define("weigh(Tensor x, Tensor g, int[] geometry) -> Tensor")


class Convolution(torch.autograd.Function):
    """conv2d of one client, [N, c, H, W] with [k, c, h, w]: written with operators that stack."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        # Products of bfloat16 want what comes out side by side in memory, those of tf32 what they sum over.
        last = weight.dtype == torch.bfloat16
        kernel = weight.permute(2, 3, 1, 0).flatten(0, 2) if last else weight.permute(0, 2, 3, 1).flatten(1)
        images = x.permute(0, 2, 3, 1).contiguous()
        shape = geometry(x.shape, weight.shape, stride, padding, dilation)
        laid = OUT_LAST if last else OUT_FIRST
        out: Tensor = torch.ops.kedge.convolve(images[None], kernel.contiguous()[None], shape, laid)[0]
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, *ctx.how = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        shape = geometry(x.shape, weight.shape, *ctx.how)
        k, c, kh, kw = weight.shape
        (sh, sw), (ph, pw), (dh, dw) = ctx.how
        slopes = g.permute(0, 2, 3, 1).contiguous()
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            backwards = weight.dtype == torch.bfloat16  # read so where it lies
            kernel = weight if backwards else weight.flip(2, 3).transpose(0, 1)
            kernel = kernel.permute(0, 2, 3, 1).flatten(1).contiguous()
            back = [kh, kw, 1, 1, sh, sw, dh * (kh - 1) - ph, dw * (kw - 1) - pw, dh, dw, *x.shape[2:]]
            laid = TURNED if backwards else OUT_FIRST
            dx = torch.ops.kedge.convolve(slopes[None], kernel[None], back, laid)[0]
            dx = dx.permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            images = x.permute(0, 2, 3, 1).contiguous()
            flat = torch.ops.kedge.weigh(images[None], slopes[None], shape)[0]
            dweight = flat.view(k, kh, kw, c).permute(0, 3, 1, 2)
        return dx, dweight, None, None, None


def geometry(x: torch.Size, weight: torch.Size, stride: Pair, padding: Pair, dilation: Pair) -> list[int]:
    """Window, stride, spread, padding, dilation and the shape that comes out, as the operators take them."""
    out = [
        (size + 2 * pad - d * (k - 1) - 1) // step + 1
        for size, k, step, pad, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return [*weight[2:], *stride, 1, 1, *padding, *dilation, *out]


def out_channels(kernels: torch.Size, geometry: list[int], laid: int) -> int:
    """How many channels come out of kernels of this shape."""
    windows = geometry[0] * geometry[1] if laid == TURNED else 1
    return kernels[1] if laid == OUT_FIRST else kernels[2] // windows


def stackable(x: Tensor, weight: Tensor) -> bool:
    """Whether these, rows of a stack, can take the programs made for stacks."""
    if torch.compiler.is_compiling() or x.device.type != "cuda":
        return False
    if not (is_row(x) and is_row(weight) and has_triton()):
        return False
    return in_bfloat16(x) or (x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32)


def is_row(v: Tensor) -> bool:
    """Whether vmap runs over this tensor, below whatever follows its gradients."""
    functorch = torch._C._functorch
    while functorch.is_gradtrackingtensor(v):
        v = functorch.get_unwrapped(v)
    return functorch.is_batchedtensor(v)


def in_bfloat16(x: Tensor) -> bool:
    """Whether a convolution of this input computes in bfloat16."""
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return autocast or x.dtype == torch.bfloat16


def stacked_convolution(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """conv2d without bias, of an input that is `stackable`."""
    if in_bfloat16(x):
        x, weight = x.to(torch.bfloat16), weight.to(torch.bfloat16)
    out: Tensor = Convolution.apply(x, weight, stride, padding, dilation)  # type: ignore[no-untyped-call]
    return out


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def _convolve(x: Tensor, w: Tensor, geometry: list[int], laid: int) -> Tensor:
    from kedge.core.kernels import convolve

    return convolve(x, w, geometry, laid)


def _weigh(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    from kedge.core.kernels import weigh

    return weigh(x, g, geometry)


def _convolved_shape(x: Tensor, w: Tensor, geometry: list[int], laid: int) -> Tensor:
    return x.new_empty((*x.shape[:2], *geometry[-2:], out_channels(w.shape, geometry, laid)))


def _weighed_shape(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], g.shape[4], geometry[0] * geometry[1] * x.shape[4]))


def _stacking(operator: Any) -> Any:
    """The rule under vmap: the new axis of clients joins the one that is there."""

    def rule(info: Any, dims: tuple[int | None, ...], left: Tensor, right: Tensor, *how: Any) -> Any:
        def joined(v: Tensor, dim: int | None) -> Tensor:
            wide = v.expand(info.batch_size, *v.shape) if dim is None else v.movedim(dim, 0)
            return wide.flatten(0, 1).contiguous()

        out = operator(joined(left, dims[0]), joined(right, dims[1]), *how)
        return out.unflatten(0, (info.batch_size, -1)), 0

    return rule


for _name, _run, _shape in (("convolve", _convolve, _convolved_shape), ("weigh", _weigh, _weighed_shape)):
    LIBRARY.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"kedge::{_name}", _shape, lib=LIBRARY)
    torch.library.register_vmap(f"kedge::{_name}", _stacking(getattr(torch.ops.kedge, _name)), lib=LIBRARY)
