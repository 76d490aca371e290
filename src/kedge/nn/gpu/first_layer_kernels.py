"""A first layer, its 2×2 max pooling and ReLU as one Triton program, and its weights' gradient (CUDA only).

Neighbours in a row are made in pairs (convolution.py), and two rows at a time: the four of which pooling
takes one never leave the processor. The way back reads the pooled gradient and to which of four it belongs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.few_channel_kernels import few_values, few_weights
from kedge.nn.gpu.tiles import first_tiles, weigh_first_tiles, weigh_parts
from kedge.nn.gpu.weight_gradient_kernels import leading, sum_parts


@triton.jit
def larger(best, place, value, number: tl.constexpr):
    """The larger of two, and its number; what is no number is larger than all."""
    place = tl.where(value > best, number, place).to(tl.int8)
    return tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL), place


@triton.jit
def _convolve_pool(
    x, w, bias, y, which, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    WHOLE: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = the largest of four, `which` of them (2 · row + column), 4 if ReLU makes it 0.

    P and Q count rows and pairs before pooling; w has the weights of all left ones, then of all right ones.
    """
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total: tl.constexpr = KH * KW * CI
    cells = N * (P // 2) * Q
    x += client * N * H * W * CI
    w += client * total * (2 * K)
    added = tl.zeros((BN,), dtype=tl.float32)
    if BIAS:
        added += tl.load(bias + client * K + k, mask=k < K, other=0.0).to(tl.float32)
    if total <= BK:
        lefts = few_weights(w, k, inner, K, CI, KH, KW, False)
        rights = few_weights(w + total * K, k, inner, K, CI, KH, KW, False)
    for tile in range(tl.program_id(0), tl.cdiv(cells, BM), tl.num_programs(0)):
        m = tile * BM + tl.arange(0, BM)
        above = m + (m.to(tl.uint32) // Q).to(tl.int32) * Q  # the upper row's pair, among all pairs
        below = above + Q
        if total <= BK:
            a = few_values(x, above, N, inner, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, WHOLE)
            b = few_values(x, below, N, inner, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, WHOLE)
            one = tl.dot(a, lefts, input_precision="tf32")
            two = tl.dot(a, rights, input_precision="tf32")
            three = tl.dot(b, lefts, input_precision="tf32")
            four = tl.dot(b, rights, input_precision="tf32")
        else:
            one = tl.zeros((BM, BN), dtype=tl.float32)
            two, three, four = one, one, one
            for start in range(0, total, BK):
                at = start + inner
                a = few_values(x, above, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, WHOLE)
                b = few_values(x, below, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, WHOLE)
                left = few_weights(w, k, at, K, CI, KH, KW, False)
                right = few_weights(w + total * K, k, at, K, CI, KH, KW, False)
                one = tl.dot(a, left, one, input_precision="tf32")
                two = tl.dot(a, right, two, input_precision="tf32")
                three = tl.dot(b, left, three, input_precision="tf32")
                four = tl.dot(b, right, four, input_precision="tf32")
        best, place = larger(one, tl.zeros((BM, BN), dtype=tl.int8), two, 1)
        best, place = larger(best, place, three, 2)
        best, place = larger(best, place, four, 3)
        best += added[None, :]
        if RELU:
            place = tl.where(best <= 0, 4, place).to(tl.int8)
            best = tl.where(best <= 0, 0.0, best)
        at = client * cells * K + (m[:, None] * K + k[None, :])
        real = (m < cells)[:, None] & (k < K)[None, :]
        tl.store(y + at, best.to(y.dtype.element_ty), mask=real)
        tl.store(which + at, place, mask=real)


@triton.jit
def _weigh_pooled(
    x, g, which, dw, N, CLIENTS, ROWS,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """As `_weigh`, of pairs; g is the gradient after pooling, of the cell that `which` names."""
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // COLUMNS
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    k = (tl.program_id(1) % COLUMNS) * BN + tl.arange(0, BN)  # all left ones, then all right ones
    total: tl.constexpr = KH * KW * CI
    cells = N * (P // 2) * Q
    x += client * N * H * W * CI
    g += client * cells * K
    which += client * cells * K
    out = tl.zeros((BN, BM), dtype=tl.float32)
    first = part * ROWS
    last = tl.minimum(first + ROWS, cells)
    for start in range(first, last, BR):
        m = start + tl.arange(0, BR)
        above = m + (m.to(tl.uint32) // Q).to(tl.int32) * Q
        below = above + Q
        a = few_values(x, above, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, WHOLE)
        b = few_values(x, below, N, at, H, W, P, Q, CI, KH, KW, 1, 2, 1, 1, PH, PW, 1, 1, WHOLE)
        here = m[:, None] * K + (k % K)[None, :]
        real = (m < last)[:, None] & (k < 2 * K)[None, :]
        slope = tl.load(g + here, mask=real, other=0.0)
        place = tl.load(which + here, mask=real, other=4)
        column = (k // K)[None, :]
        if SPLIT:
            large = leading(slope)
            small = (slope - large).to(tl.bfloat16)
            large = large.to(tl.bfloat16)
            out = weighed(
                out, a, tl.where(place == column, large, 0.0), tl.where(place == column, small, 0.0)
            )
            column += 2
            out = weighed(
                out, b, tl.where(place == column, large, 0.0), tl.where(place == column, small, 0.0)
            )
        else:
            out = tl.dot(tl.trans(tl.where(place == column, slope, 0.0)), a, out)
            out = tl.dot(tl.trans(tl.where(place == column + 2, slope, 0.0)), b, out)
    dw += (part * CLIENTS + client) * total * (2 * K)
    where = dw + k[:, None] * total + at[None, :]
    tl.store(where, out.to(dw.dtype.element_ty), mask=(k < 2 * K)[:, None] & (at < total)[None, :])


@triton.jit
def weighed(out, values, large, small):
    """Adds products of slopes and float32 values, both in two parts; that of the small parts is left out."""
    above = leading(values)
    high, rest = above.to(tl.bfloat16), (values - above).to(tl.bfloat16)
    out = tl.dot(tl.trans(small), high, out)
    out = tl.dot(tl.trans(large), rest, out)
    return tl.dot(tl.trans(large), high, out)


def convolve_pool(
    x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], relu: bool
) -> tuple[Tensor, Tensor]:
    """[C, N, H, W, c] with kernels of pairs [C, 2k, window · c] to [C, N, P/2, Q, k], and which of four."""
    kh, kw, *_, ph, pw, _, _, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = w.shape[1] // 2
    y = torch.empty((clients, n, p // 2, q, k), dtype=x.dtype, device=x.device)
    which = torch.empty_like(y, dtype=torch.int8)
    t = first_tiles(x.dtype, clients, kh * kw * ci, k)
    columns, tiles = triton.cdiv(k, t["BN"]), triton.cdiv(n * (p // 2) * q, t["BM"])
    programs = min(tiles, max(1, t.pop("PROGRAMS") // (clients * columns)))
    _convolve_pool[(programs, columns, clients)](
        x, w, w if bias is None else bias, y, which, n, H=h, W=width, P=p, Q=q, K=k, CI=ci, KH=kh, KW=kw,
        PH=ph, PW=pw, WHOLE=not ph and not pw, BIAS=bias is not None, RELU=relu, **t,
    )  # fmt: skip
    return y, which


def weigh_pooled(x: Tensor, g: Tensor, which: Tensor, geometry: list[int]) -> Tensor:
    """[C, N, H, W, c] with [C, N, P/2, Q, k] to [C, 2k, window · c]."""
    kh, kw, *_, ph, pw, _, _, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = g.shape[4]
    total, rows = kh * kw * ci, n * (p // 2) * q
    t = weigh_first_tiles(x.dtype, total, 2 * k)
    high, columns = triton.cdiv(total, t["BM"]), triton.cdiv(2 * k, t["BN"])
    parts, each = weigh_parts(t, x.dtype, rows, clients * high * columns)
    found = torch.empty((clients, 2 * k, total), dtype=x.dtype, device=x.device)
    sums = found[None] if parts == 1 else found.new_empty((parts, *found.shape), dtype=torch.float32)
    _weigh_pooled[(high, columns * parts, clients)](
        x, g, which, sums, n, clients, each, H=h, W=width, P=p, Q=q, K=k, CI=ci, KH=kh, KW=kw,
        PH=ph, PW=pw, COLUMNS=columns, WHOLE=not ph and not pw, SPLIT=x.dtype == torch.float32, **t,
    )  # fmt: skip
    if parts > 1:
        sum_parts(sums, found)
    return found
