"""torch.ops.kedge: convolution and pooling of a stack of clients, and their gradients, as operators.

The first dimension of every tensor is the client. Under vmap, the dimension that vmap adds is merged into it,
so one launch computes the whole stack. The Triton programs are in stack_kernels.py and the other files
*_kernels.py. They are imported when they first run, because they need Triton.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kedge.torch_private import get_unwrapped, is_batchedtensor, is_gradtrackingtensor

# Layouts. Images are [clients, images, height, width, channels], weights [clients, out, window · channels].
# `flipped` weights are [clients, channels, window · out], and the window is read from its end to its start.
# `geometry` is the list that the function of this name in convolution.py returns.
LIBRARY: Any = torch.library.Library("kedge", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("convolve(Tensor x, Tensor w, Tensor? bias, int[] geometry, bool flipped) -> Tensor")
LIBRARY.define("weight_gradient(Tensor x, Tensor g, int[] geometry) -> Tensor")
LIBRARY.define(
    "gradients(Tensor x, Tensor w, Tensor g, int[] geometry, int[] back, bool flipped) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "convolve_pool(Tensor x, Tensor w, Tensor? bias, int[] geometry, bool relu) -> (Tensor, Tensor)"
)
LIBRARY.define("pooled_weight_gradient(Tensor x, Tensor g, Tensor argmax, int[] geometry) -> Tensor")
LIBRARY.define("pool(Tensor x, bool relu) -> (Tensor, Tensor)")
LIBRARY.define("unpool(Tensor g, Tensor argmax) -> Tensor")
LIBRARY.define(
    "contiguous_convolution_backward(Tensor g, Tensor x, Tensor w, int[]? bias_sizes, int[] stride, "
    "int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups, bool[] output_mask) "
    "-> (Tensor, Tensor, Tensor)"
)


def uses_triton(x: Tensor) -> bool:
    """Whether `x` is a row of a stack, and the Triton programs support its device and precision."""
    if torch.compiler.is_compiling() or x.device.type != "cuda" or not (is_row(x) and has_triton()):
        return False
    return computes_in_bfloat16(x) or (x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32)


def is_row(v: Tensor) -> bool:
    """Whether vmap batches this tensor; a gradient transform inside vmap makes no difference."""
    while is_gradtrackingtensor(v):
        v = get_unwrapped(v)
    return is_batchedtensor(v)


def computes_in_bfloat16(x: Tensor) -> bool:
    """Whether a convolution of `x` computes in bfloat16, by autocast or because `x` is in bfloat16."""
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return autocast or x.dtype == torch.bfloat16


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def out_channels(kernels: torch.Size, geometry: list[int], flipped: bool) -> int:
    """The number of output channels of weights with this shape."""
    return kernels[2] // (geometry[0] * geometry[1]) if flipped else kernels[1]


def _convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], flipped: bool) -> Tensor:
    from kedge.nn.gpu.stack_kernels import convolve

    return convolve(x, w, bias, geometry, flipped)


def _weight_gradient(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    from kedge.nn.gpu.weight_gradient_kernels import weight_gradient

    return weight_gradient(x, g, geometry)


def _gradients(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], flipped: bool
) -> tuple[Tensor, Tensor]:
    from kedge.nn.gpu.stack_kernels import gradients

    return gradients(x, w, g, geometry, back, flipped)


def _convolve_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    from kedge.nn.gpu.first_layer_kernels import convolve_pool

    return convolve_pool(x, w, bias, geometry, relu)


def _pooled_weight_gradient(x: Tensor, g: Tensor, argmax: Tensor, geometry: list[int]) -> Tensor:
    from kedge.nn.gpu.first_layer_kernels import pooled_weight_gradient

    return pooled_weight_gradient(x, g, argmax, geometry)


def _pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    from kedge.nn.gpu.pooling_kernels import pool

    return pool(x, relu)


def _unpool(g: Tensor, argmax: Tensor) -> Tensor:
    from kedge.nn.gpu.pooling_kernels import unpool

    return unpool(g, argmax)


def _fake_convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], flipped: bool) -> Tensor:
    return x.new_empty((*x.shape[:2], *geometry[-2:], out_channels(w.shape, geometry, flipped)))


def _fake_weight_gradient(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], g.shape[4], geometry[0] * geometry[1] * x.shape[4]))


def _fake_gradients(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], flipped: bool
) -> tuple[Tensor, Tensor]:
    return _fake_convolve(g, w, None, back, flipped), _fake_weight_gradient(x, g, geometry)


def _fake_convolve_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    *_, p, q = geometry
    out = x.new_empty((*x.shape[:2], p // 2, q, w.shape[1] // 2))
    return out, torch.empty_like(out, dtype=torch.int8)


def _fake_pooled_weight_gradient(x: Tensor, g: Tensor, argmax: Tensor, geometry: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], 2 * g.shape[4], geometry[0] * geometry[1] * x.shape[4]))


def _fake_pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    clients, n, high, wide, k = x.shape
    out = x.new_empty((clients, n, high // 2, wide // 2, k))
    return out, torch.empty_like(out, dtype=torch.int8)


def _fake_unpool(g: Tensor, argmax: Tensor) -> Tensor:
    clients, n, p, q, k = g.shape
    return g.new_empty((clients, n, 2 * p, 2 * q, k))


def _contiguous_convolution_backward(
    g: Tensor, x: Tensor, w: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's convolution_backward with contiguous results; a gradient that is not needed is empty."""
    gradients = torch.ops.aten.convolution_backward(g, x, w, *settings)
    dx, dw, db = (g.new_empty(0) if v is None else v.contiguous() for v in gradients)
    return dx, dw, db


def _fake_contiguous_convolution_backward(
    g: Tensor, x: Tensor, w: Tensor, bias_sizes: list[int] | None, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (x.shape, w.shape, bias_sizes or [0])
    dx, dw, db = (
        g.new_empty(shape if needed else 0) for shape, needed in zip(shapes, settings[-1], strict=True)
    )
    return dx, dw, db


def _vmap_rule(operator: Any) -> Any:
    """The vmap rule of an operator: merge the dimension that vmap adds into the dimension of clients."""

    def rule(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> Any:
        def merged(v: Any, dim: int | None) -> Any:
            if not isinstance(v, Tensor):
                return v
            batched = v.expand(info.batch_size, *v.shape) if dim is None else v.movedim(dim, 0)
            return batched.flatten(0, 1).contiguous()

        def split(v: Tensor) -> Tensor:
            return v.view(info.batch_size, -1, *v.shape[1:])

        out = operator(*(merged(v, dim) for v, dim in zip(inputs, dims, strict=True)))
        return (split(out), 0) if isinstance(out, Tensor) else (tuple(map(split, out)), (0,) * len(out))

    return rule


for _name, _program, _fake in (
    ("convolve", _convolve, _fake_convolve),
    ("weight_gradient", _weight_gradient, _fake_weight_gradient),
    ("gradients", _gradients, _fake_gradients),
    ("convolve_pool", _convolve_pool, _fake_convolve_pool),
    ("pooled_weight_gradient", _pooled_weight_gradient, _fake_pooled_weight_gradient),
    ("pool", _pool, _fake_pool),
    ("unpool", _unpool, _fake_unpool),
):
    LIBRARY.impl(_name, _program, "CUDA")
    torch.library.register_fake(f"kedge::{_name}", _fake, lib=LIBRARY)
    torch.library.register_vmap(f"kedge::{_name}", _vmap_rule(getattr(torch.ops.kedge, _name)), lib=LIBRARY)

LIBRARY.impl("contiguous_convolution_backward", _contiguous_convolution_backward, "CompositeExplicitAutograd")
torch.library.register_fake(
    "kedge::contiguous_convolution_backward", _fake_contiguous_convolution_backward, lib=LIBRARY
)
