"""2×2 max pooling of many clients at once, forward and backward, as Triton programs (CUDA only)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.tiles import pool_tiles


@triton.jit(do_not_specialize=["WINDOWS", "Q"])
def _pool(
    x, y, argmax, WINDOWS, Q, K,
    RELU: tl.constexpr, LARGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = max x[n, 2p + i, 2q + j, k] and `argmax` = 2i + j; with RELU, 0 and 4 if it is ≤ 0.

    WINDOWS is the number of windows (n, p, q) of all clients. LARGE: indices need 64 bits.
    """
    m = (tl.program_id(0).to(tl.int64) if LARGE else tl.program_id(0)) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    in_range = (m < WINDOWS)[:, None] & (k < K)[None, :]
    corner = (m // Q) * (4 * Q) + (m % Q) * 2
    best = tl.load(x + corner[:, None] * K + k[None, :], mask=in_range, other=0.0).to(tl.float32)
    index = tl.zeros((BM, BN), dtype=tl.int8)
    for i in tl.static_range(1, 4):
        at = (corner + i // 2 * 2 * Q + i % 2)[:, None] * K + k[None, :]
        value = tl.load(x + at, mask=in_range, other=0.0).to(tl.float32)
        larger = (value > best) | (value != value)  # NaN is the maximum, as in torch
        best = tl.where(larger, value, best)
        index = tl.where(larger, i, index).to(tl.int8)
    if RELU:
        index = tl.where(best <= 0, 4, index).to(tl.int8)
        best = tl.where(best <= 0, 0.0, best)
    at = m[:, None] * K + k[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=in_range)
    tl.store(argmax + at, index, mask=in_range)


@triton.jit(do_not_specialize=["WINDOWS", "Q"])
def _unpool(
    g, argmax, dx, WINDOWS, Q, K, LARGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """dx[n, 2p + i, 2q + j, k] = g[n, p, q, k] where `argmax` is 2i + j, else 0."""
    m = (tl.program_id(0).to(tl.int64) if LARGE else tl.program_id(0)) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    in_range = (m < WINDOWS)[:, None] & (k < K)[None, :]
    gradient = tl.load(g + m[:, None] * K + k[None, :], mask=in_range, other=0.0)
    index = tl.load(argmax + m[:, None] * K + k[None, :], mask=in_range, other=0)
    corner = (m // Q) * (4 * Q) + (m % Q) * 2
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            at = (corner + i * 2 * Q + j)[:, None] * K + k[None, :]
            tl.store(dx + at, tl.where(index == 2 * i + j, gradient, 0.0), mask=in_range)


def pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """Maximum and argmax (4: ReLU made it 0) of each 2×2 window: [C, N, 2P, 2Q, k] to [C, N, P, Q, k]."""
    clients, n, height, width, k = x.shape
    y = torch.empty((clients, n, height // 2, width // 2, k), dtype=x.dtype, device=x.device)
    argmax = torch.empty_like(y, dtype=torch.int8)
    windows, t = y.numel() // k, pool_tiles(k)
    grid = triton.cdiv(windows, t["BM"]), triton.cdiv(k, t["BN"])
    _pool[grid](x, y, argmax, windows, width // 2, k, RELU=relu, LARGE=x.numel() >= 2**31, **t)
    return y, argmax


def unpool(g: Tensor, argmax: Tensor) -> Tensor:
    """Zeros [C, N, 2P, 2Q, k] with each value of `g` [C, N, P, Q, k] at the pixel `argmax` of its window."""
    clients, n, p, q, k = g.shape
    dx = torch.empty((clients, n, 2 * p, 2 * q, k), dtype=g.dtype, device=g.device)
    windows, t = g.numel() // k, pool_tiles(k)
    grid = triton.cdiv(windows, t["BM"]), triton.cdiv(k, t["BN"])
    _unpool[grid](g, argmax, dx, windows, q, k, LARGE=dx.numel() >= 2**31, **t)
    return dx
