"""2×2 max pooling of many clients at once, and its way back, as Triton programs (CUDA only)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.tiles import pool_tiles


@triton.jit(do_not_specialize=["PLACES", "Q"])
def _pool(
    x, y, which, PLACES, Q, K,
    RELU: tl.constexpr, LARGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = max x[n, 2p + i, 2q + j, k], `which` = 2i + j; with RELU 0 and 4 where that is ≤ 0.

    PLACES counts (n, p, q); LARGE: more values than 32 bits count.
    """
    m = (tl.program_id(0).to(tl.int64) if LARGE else tl.program_id(0)) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    real = (m < PLACES)[:, None] & (k < K)[None, :]
    corner = (m // Q) * (4 * Q) + (m % Q) * 2
    best = tl.load(x + corner[:, None] * K + k[None, :], mask=real, other=0.0).to(tl.float32)
    place = tl.zeros((BM, BN), dtype=tl.int8)
    for i in tl.static_range(1, 4):
        at = (corner + i // 2 * 2 * Q + i % 2)[:, None] * K + k[None, :]
        value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        more = (value > best) | (value != value)  # what is no number wins, as in torch
        best = tl.where(more, value, best)
        place = tl.where(more, i, place).to(tl.int8)
    if RELU:
        place = tl.where(best <= 0, 4, place).to(tl.int8)
        best = tl.where(best <= 0, 0.0, best)
    at = m[:, None] * K + k[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=real)
    tl.store(which + at, place, mask=real)


@triton.jit(do_not_specialize=["PLACES", "Q"])
def _unpool(
    g, which, dx, PLACES, Q, K, LARGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """dx[n, 2p + i, 2q + j, k] = g[n, p, q, k] where `which` is 2i + j, else 0."""
    m = (tl.program_id(0).to(tl.int64) if LARGE else tl.program_id(0)) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    real = (m < PLACES)[:, None] & (k < K)[None, :]
    slope = tl.load(g + m[:, None] * K + k[None, :], mask=real, other=0.0)
    place = tl.load(which + m[:, None] * K + k[None, :], mask=real, other=0)
    corner = (m // Q) * (4 * Q) + (m % Q) * 2
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            at = (corner + i * 2 * Q + j)[:, None] * K + k[None, :]
            tl.store(dx + at, tl.where(place == 2 * i + j, slope, 0.0), mask=real)


def pool(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """[C, N, 2P, 2Q, k] to [C, N, P, Q, k]: the largest of four, and which it is (4: ReLU made it 0)."""
    clients, n, high, wide, k = x.shape
    y = torch.empty((clients, n, high // 2, wide // 2, k), dtype=x.dtype, device=x.device)
    which = torch.empty_like(y, dtype=torch.int8)
    places, t = y.numel() // k, pool_tiles(k)
    grid = triton.cdiv(places, t["BM"]), triton.cdiv(k, t["BN"])
    _pool[grid](x, y, which, places, wide // 2, k, RELU=relu, LARGE=x.numel() >= 2**31, **t)
    return y, which


def unpool(g: Tensor, which: Tensor) -> Tensor:
    """[C, N, P, Q, k] to [C, N, 2P, 2Q, k]: each value at the one of its four places that `which` says."""
    clients, n, p, q, k = g.shape
    dx = torch.empty((clients, n, 2 * p, 2 * q, k), dtype=g.dtype, device=g.device)
    places, t = g.numel() // k, pool_tiles(k)
    grid = triton.cdiv(places, t["BM"]), triton.cdiv(k, t["BN"])
    _unpool[grid](g, which, dx, places, q, k, LARGE=dx.numel() >= 2**31, **t)
    return dx
