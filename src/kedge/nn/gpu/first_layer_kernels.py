"""A first convolution with 2×2 max pooling and ReLU, and its weight gradient, as Triton programs (CUDA only).

A program computes outputs in pairs of neighbors (`computes_pairs` in convolution.py) and two rows at a time.
It pools these four values in registers and writes only the largest. The backward pass reads the gradient
after pooling and the argmax of each 2×2 window.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.few_channel_kernels import load_terms, load_weights
from kedge.nn.gpu.tiles import convolve_pool_tiles, pooled_weight_gradient_tiles, split_k
from kedge.nn.gpu.weight_gradient_kernels import leading_bits, sum_parts


@triton.jit
def running_max(best, index, value, number: tl.constexpr):
    """The larger of `best` and `value`, and its index; NaN is larger than any number."""
    index = tl.where(value > best, number, index).to(tl.int8)
    return tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL), index


@triton.jit
def _convolve_pool(
    x, w, bias, y, argmax, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    UNPADDED: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = the largest of a 2×2 window; `argmax` is 2 · row + column, or 4 if ReLU made it 0.

    P is the number of rows before pooling, Q the number of pairs in a row. `w` has the weights of the left
    outputs of all pairs, then those of the right outputs. The other names are those of `_convolve`.
    """
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total: tl.constexpr = KH * KW * CI
    windows = N * (P // 2) * Q
    x += client * N * H * W * CI
    w += client * total * (2 * K)
    bias_values = tl.zeros((BN,), dtype=tl.float32)
    if BIAS:
        bias_values += tl.load(bias + client * K + k, mask=k < K, other=0.0).to(tl.float32)
    if total <= BK:
        left_weights = load_weights(w, k, inner, K, CI, KH, KW, False)
        right_weights = load_weights(w + total * K, k, inner, K, CI, KH, KW, False)
    for tile in range(tl.program_id(0), tl.cdiv(windows, BM), tl.num_programs(0)):
        m = tile * BM + tl.arange(0, BM)
        above = (
            m + (m.to(tl.uint32) // Q).to(tl.int32) * Q
        )  # the pair in the window's upper row, among all pairs
        below = above + Q
        if total <= BK:
            a = load_terms(x, above, N, inner, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, UNPADDED)
            b = load_terms(x, below, N, inner, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, UNPADDED)
            top_left = tl.dot(a, left_weights, input_precision="tf32")
            top_right = tl.dot(a, right_weights, input_precision="tf32")
            bottom_left = tl.dot(b, left_weights, input_precision="tf32")
            bottom_right = tl.dot(b, right_weights, input_precision="tf32")
        else:
            top_left = tl.zeros((BM, BN), dtype=tl.float32)
            top_right, bottom_left, bottom_right = top_left, top_left, top_left
            for start in range(0, total, BK):
                at = start + inner
                a = load_terms(x, above, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, UNPADDED)
                b = load_terms(x, below, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, UNPADDED)
                left_weights = load_weights(w, k, at, K, CI, KH, KW, False)
                right_weights = load_weights(w + total * K, k, at, K, CI, KH, KW, False)
                top_left = tl.dot(a, left_weights, top_left, input_precision="tf32")
                top_right = tl.dot(a, right_weights, top_right, input_precision="tf32")
                bottom_left = tl.dot(b, left_weights, bottom_left, input_precision="tf32")
                bottom_right = tl.dot(b, right_weights, bottom_right, input_precision="tf32")
        best, index = running_max(top_left, tl.zeros((BM, BN), dtype=tl.int8), top_right, 1)
        best, index = running_max(best, index, bottom_left, 2)
        best, index = running_max(best, index, bottom_right, 3)
        best += bias_values[None, :]
        if RELU:
            index = tl.where(best <= 0, 4, index).to(tl.int8)
            best = tl.where(best <= 0, 0.0, best)
        at = client * windows * K + (m[:, None] * K + k[None, :])
        in_range = (m < windows)[:, None] & (k < K)[None, :]
        tl.store(y + at, best.to(y.dtype.element_ty), mask=in_range)
        tl.store(argmax + at, index, mask=in_range)


@triton.jit
def _pooled_weight_gradient(
    x, g, argmax, dw, N, CLIENTS, ROWS,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    COLUMN_TILES: tl.constexpr, UNPADDED: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """The same as `_weight_gradient`, for pairs; `g` is the gradient after pooling, at the pixel `argmax`."""
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // COLUMN_TILES
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    k = (tl.program_id(1) % COLUMN_TILES) * BN + tl.arange(
        0, BN
    )  # left outputs of all pairs, then right outputs
    total: tl.constexpr = KH * KW * CI
    windows = N * (P // 2) * Q
    x += client * N * H * W * CI
    g += client * windows * K
    argmax += client * windows * K
    out = tl.zeros((BN, BM), dtype=tl.float32)
    first = part * ROWS
    last = tl.minimum(first + ROWS, windows)
    for start in range(first, last, BR):
        m = start + tl.arange(0, BR)
        above = m + (m.to(tl.uint32) // Q).to(tl.int32) * Q
        below = above + Q
        a = load_terms(x, above, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, UNPADDED)
        b = load_terms(x, below, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, UNPADDED)
        address = m[:, None] * K + (k % K)[None, :]
        in_range = (m < last)[:, None] & (k < 2 * K)[None, :]
        grad = tl.load(g + address, mask=in_range, other=0.0)
        index = tl.load(argmax + address, mask=in_range, other=4)
        column = (k // K)[None, :]
        if SPLIT:
            large = leading_bits(grad)
            small = (grad - large).to(tl.bfloat16)
            large = large.to(tl.bfloat16)
            out = add_split_products(
                out, a, tl.where(index == column, large, 0.0), tl.where(index == column, small, 0.0)
            )
            column += 2
            out = add_split_products(
                out, b, tl.where(index == column, large, 0.0), tl.where(index == column, small, 0.0)
            )
        else:
            out = tl.dot(tl.trans(tl.where(index == column, grad, 0.0)), a, out)
            out = tl.dot(tl.trans(tl.where(index == column + 2, grad, 0.0)), b, out)
    dw += (part * CLIENTS + client) * total * (2 * K)
    where = dw + k[:, None] * total + at[None, :]
    tl.store(where, out.to(dw.dtype.element_ty), mask=(k < 2 * K)[:, None] & (at < total)[None, :])


@triton.jit
def add_split_products(out, values, large, small):
    """`out` plus (large + small)ᵀ · values in bfloat16 products; the product of both small parts is left out.

    The gradient is given in two bfloat16 parts. The float32 `values` are split in the same way.
    """
    head = leading_bits(values)
    head_half, tail_half = head.to(tl.bfloat16), (values - head).to(tl.bfloat16)
    out = tl.dot(tl.trans(small), head_half, out)
    out = tl.dot(tl.trans(large), tail_half, out)
    return tl.dot(tl.trans(large), head_half, out)


def convolve_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    """Pooled outputs [C, N, P/2, Q, k] and argmax of images [C, N, H, W, c] and a `pair_kernel`."""
    kh, kw, *_, ph, pw, _, _, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = w.shape[1] // 2
    y = torch.empty((clients, n, p // 2, q, k), dtype=x.dtype, device=x.device)
    argmax = torch.empty_like(y, dtype=torch.int8)
    t = convolve_pool_tiles(x.dtype, clients, kh * kw * ci, k)
    column_tiles, tiles = triton.cdiv(k, t["BN"]), triton.cdiv(n * (p // 2) * q, t["BM"])
    programs = min(tiles, max(1, t.pop("PROGRAMS") // (clients * column_tiles)))
    _convolve_pool[(programs, column_tiles, clients)](
        x, w, w if bias is None else bias, y, argmax, n, H=h, W=width, P=p, Q=q, K=k, CI=ci, KH=kh, KW=kw,
        PH=ph, PW=pw, UNPADDED=not ph and not pw, BIAS=bias is not None, RELU=relu, **t,
    )  # fmt: skip
    return y, argmax


def pooled_weight_gradient(x: Tensor, g: Tensor, argmax: Tensor, geometry: list[int]) -> Tensor:
    """The weight gradient [C, 2k, window · c] of pairs; `g` is [C, N, P/2, Q, k]."""
    kh, kw, *_, ph, pw, _, _, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = g.shape[4]
    total, rows = kh * kw * ci, n * (p // 2) * q
    t = pooled_weight_gradient_tiles(x.dtype, total, 2 * k)
    row_tiles, column_tiles = triton.cdiv(total, t["BM"]), triton.cdiv(2 * k, t["BN"])
    parts, rows_of_part = split_k(t, x.dtype, rows, clients * row_tiles * column_tiles)
    result = torch.empty((clients, 2 * k, total), dtype=x.dtype, device=x.device)
    sums = result[None] if parts == 1 else result.new_empty((parts, *result.shape), dtype=torch.float32)
    _pooled_weight_gradient[(row_tiles, column_tiles * parts, clients)](
        x, g, argmax, sums, n, clients, rows_of_part, H=h, W=width, P=p, Q=q, K=k, CI=ci, KH=kh, KW=kw,
        PH=ph, PW=pw, COLUMN_TILES=column_tiles, UNPADDED=not ph and not pw, SPLIT=x.dtype == torch.float32,
        **t,
    )  # fmt: skip
    if parts > 1:
        sum_parts(sums, result)
    return result
