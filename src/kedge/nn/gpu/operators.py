"""torch.ops.kedge: what stacks of clients compute with programs of their own on a GPU.

Each operator takes all clients at once, [clients, …]; under vmap the new axis of clients joins that one.
The programs, in `kernels.py` and its like, are imported when they run first: they need Triton.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kedge.torch_private import get_unwrapped, is_batchedtensor, is_gradtrackingtensor

# Kernels lie as [clients, out, window · channels], or `turned` as [clients, channels, window · out], and then
# windows from their end.
LIBRARY: Any = torch.library.Library("kedge", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define("convolve(Tensor x, Tensor w, Tensor? bias, int[] geometry, bool turned) -> Tensor")
LIBRARY.define("weigh(Tensor x, Tensor g, int[] geometry) -> Tensor")
LIBRARY.define(
    "gradients(Tensor x, Tensor w, Tensor g, int[] geometry, int[] back, bool turned) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "convolve_pool(Tensor x, Tensor w, Tensor? bias, int[] geometry, bool relu) -> (Tensor, Tensor)"
)
LIBRARY.define("weigh_pooled(Tensor x, Tensor g, Tensor which, int[] geometry) -> Tensor")
LIBRARY.define("pool(Tensor x, bool relu) -> (Tensor, Tensor)")
LIBRARY.define("unpool(Tensor g, Tensor which) -> Tensor")
LIBRARY.define(
    "contiguous_convolution_backward(Tensor g, Tensor x, Tensor w, int[]? bias_sizes, int[] stride, "
    "int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups, bool[] output_mask) "
    "-> (Tensor, Tensor, Tensor)"
)


def stackable(x: Tensor) -> bool:
    """Whether this, rows of a stack, can take the programs made for stacks."""
    if torch.compiler.is_compiling() or x.device.type != "cuda" or not (is_row(x) and has_triton()):
        return False
    return in_bfloat16(x) or (x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32)


def is_row(v: Tensor) -> bool:
    """Whether vmap runs over this tensor, below whatever follows its gradients."""
    while is_gradtrackingtensor(v):
        v = get_unwrapped(v)
    return is_batchedtensor(v)


def in_bfloat16(x: Tensor) -> bool:
    """Whether a convolution of this input computes in bfloat16."""
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return autocast or x.dtype == torch.bfloat16


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def out_channels(kernels: torch.Size, geometry: list[int], turned: bool) -> int:
    """How many channels come out of kernels of this shape."""
    return kernels[2] // (geometry[0] * geometry[1]) if turned else kernels[1]


def _convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], turned: bool) -> Tensor:
    from kedge.nn.gpu.stack_kernels import convolve

    return convolve(x, w, bias, geometry, turned)


def _weigh(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    from kedge.nn.gpu.weight_gradient_kernels import weigh

    return weigh(x, g, geometry)


def _gradients(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], turned: bool
) -> tuple[Tensor, Tensor]:
    from kedge.nn.gpu.stack_kernels import gradients

    return gradients(x, w, g, geometry, back, turned)


def _convolve_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    from kedge.nn.gpu.first_layer_kernels import convolve_pool

    return convolve_pool(x, w, bias, geometry, relu)


def _weigh_pooled(x: Tensor, g: Tensor, which: Tensor, geometry: list[int]) -> Tensor:
    from kedge.nn.gpu.first_layer_kernels import weigh_pooled

    return weigh_pooled(x, g, which, geometry)


def _pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    from kedge.nn.gpu.pooling_kernels import pool

    return pool(x, relu)


def _unpool(g: Tensor, which: Tensor) -> Tensor:
    from kedge.nn.gpu.pooling_kernels import unpool

    return unpool(g, which)


def _convolved(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], turned: bool) -> Tensor:
    return x.new_empty((*x.shape[:2], *geometry[-2:], out_channels(w.shape, geometry, turned)))


def _weighed(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], g.shape[4], geometry[0] * geometry[1] * x.shape[4]))


def _both(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], turned: bool
) -> tuple[Tensor, Tensor]:
    return _convolved(g, w, None, back, turned), _weighed(x, g, geometry)


def _convolved_pooled(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    *_, p, q = geometry
    out = x.new_empty((*x.shape[:2], p // 2, q, w.shape[1] // 2))
    return out, torch.empty_like(out, dtype=torch.int8)


def _weighed_pooled(x: Tensor, g: Tensor, which: Tensor, geometry: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], 2 * g.shape[4], geometry[0] * geometry[1] * x.shape[4]))


def _pooled(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    clients, n, high, wide, k = x.shape
    out = x.new_empty((clients, n, high // 2, wide // 2, k))
    return out, torch.empty_like(out, dtype=torch.int8)


def _unpooled(g: Tensor, which: Tensor) -> Tensor:
    clients, n, p, q, k = g.shape
    return g.new_empty((clients, n, 2 * p, 2 * q, k))


def _contiguous_convolution_backward(
    g: Tensor, x: Tensor, w: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's convolution_backward, whose results are contiguous; those not asked for are empty."""
    found = torch.ops.aten.convolution_backward(g, x, w, *settings)
    dx, dw, db = (g.new_empty(0) if v is None else v.contiguous() for v in found)
    return dx, dw, db


def _contiguous_gradients(
    g: Tensor, x: Tensor, w: Tensor, bias_sizes: list[int] | None, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (x.shape, w.shape, bias_sizes or [0])
    dx, dw, db = (
        g.new_empty(shape if wanted else 0) for shape, wanted in zip(shapes, settings[-1], strict=True)
    )
    return dx, dw, db


def _stacking(operator: Any) -> Any:
    """The rule under vmap."""

    def rule(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> Any:
        def joined(v: Any, dim: int | None) -> Any:
            if not isinstance(v, Tensor):
                return v
            wide = v.expand(info.batch_size, *v.shape) if dim is None else v.movedim(dim, 0)
            return wide.flatten(0, 1).contiguous()

        def apart(v: Tensor) -> Tensor:
            return v.view(info.batch_size, -1, *v.shape[1:])

        out = operator(*(joined(v, dim) for v, dim in zip(inputs, dims, strict=True)))
        return (apart(out), 0) if isinstance(out, Tensor) else (tuple(map(apart, out)), (0,) * len(out))

    return rule


for _name, _run, _shape in (
    ("convolve", _convolve, _convolved),
    ("weigh", _weigh, _weighed),
    ("gradients", _gradients, _both),
    ("convolve_pool", _convolve_pool, _convolved_pooled),
    ("weigh_pooled", _weigh_pooled, _weighed_pooled),
    ("pool", _pool, _pooled),
    ("unpool", _unpool, _unpooled),
):
    LIBRARY.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"kedge::{_name}", _shape, lib=LIBRARY)
    torch.library.register_vmap(f"kedge::{_name}", _stacking(getattr(torch.ops.kedge, _name)), lib=LIBRARY)

LIBRARY.impl("contiguous_convolution_backward", _contiguous_convolution_backward, "CompositeExplicitAutograd")
torch.library.register_fake("kedge::contiguous_convolution_backward", _contiguous_gradients, lib=LIBRARY)
