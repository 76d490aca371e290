"""Gradients of convolutions by their kernels, of many clients at once, as Triton programs (CUDA only).

A matrix product of slopes with windows that are read where they lie, as in `kernels.py`. Where it has too few
tiles for a GPU, its rows are cut into parts and those summed up, always in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.tiles import sum_tiles, weigh_parts, weigh_tiles, within


@triton.jit
def _weigh(
    x, g, dw, N, CLIENTS, ROWS,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """dw[k, r, s, c] = Σ g[n, p, q, k] · x[n, p·S + r·D − P, …, c], over ROWS rows (n, p, q) of each part.

    SPLIT: float32 as two bfloat16 and three products, finer than tf32, whose products want the other layout.
    """
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // COLUMNS
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    k = (tl.program_id(1) % COLUMNS) * BN + tl.arange(0, BN)
    total: tl.constexpr = KH * KW * CI
    across = at % (KW * CI)
    down = at // (KW * CI) * DH - PH
    right = at // CI % KW * DW - PW  # Triton sees that this is one for all channels, but not of across // CI
    offset = (down * W - PW) * CI + across if DW == 1 else (down * W + right) * CI + at % CI
    x += client * N * H * W * CI
    g += client * N * P * Q * K
    out = tl.zeros((BN, BM), dtype=tl.float32)
    first = part * ROWS
    last = tl.minimum(first + ROWS, N * P * Q)
    for start in range(first, last, BR):
        m = start + tl.arange(0, BR)
        there = m < last
        line = (m.to(tl.uint32) // Q).to(tl.int32)  # of outputs, counted through all images
        number = (m.to(tl.uint32) // (P * Q)).to(tl.int32)
        here = (m * SW + line * (SH * W - SW * Q) + number * ((H - SH * P) * W)) * CI
        inside = there[:, None] & (at < total)[None, :]
        if not WHOLE:
            low = ((line - number * P) * SH)[:, None] + down[None, :]
            wide = ((m - line * Q) * SW)[:, None] + right[None, :]
            inside = inside & (low >= 0) & (low < H) & (wide >= 0) & (wide < W)
        a = tl.load(x + here[:, None] + offset[None, :], mask=inside, other=0.0)
        if (
            SPLIT
        ):  # slopes are read turned round: a factor kept by threads is copied 16 bytes at a time only so
            b = tl.load(g + m[None, :] * K + k[:, None], mask=there[None, :] & (k < K)[:, None], other=0.0)
            above, over = leading(a), leading(b)
            high, tall = above.to(tl.bfloat16), over.to(tl.bfloat16)
            rest, left = (a - above).to(tl.bfloat16), (b - over).to(tl.bfloat16)
            out = tl.dot(left, high, out)
            out = tl.dot(tall, rest, out)
            out = tl.dot(tall, high, out)
        else:
            b = tl.load(g + m[:, None] * K + k[None, :], mask=there[:, None] & (k < K)[None, :], other=0.0)
            out = tl.dot(tl.trans(b), a, out)
    dw += (part * CLIENTS + client) * total * K
    where = dw + k[:, None] * total + at[None, :]
    tl.store(where, out.to(dw.dtype.element_ty), mask=(k < K)[:, None] & (at < total)[None, :])


@triton.jit
def leading(v):
    """What of a float32 a bfloat16 holds, the rest cut off: as a mask of bits, for rounding takes longer."""
    return (v.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _sum_parts(parts, whole, SIZE, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """whole[i] = Σ parts[p, i]: all of a column at once, always in the same order."""
    p = tl.arange(0, ROWS)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (p < PARTS)[:, None] & (i < SIZE)[None, :]
    values = tl.load(parts + p[:, None] * SIZE + i[None, :], mask=inside, other=0.0)
    tl.store(whole + i, tl.sum(values, 0).to(whole.dtype.element_ty), mask=i < SIZE)


def weigh(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    """[C, N, H, W, c] with [C, N, P, Q, k] to [C, k, window · c]."""
    kh, kw, sh, sw, _, _, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = g.shape[4]
    total, rows = kh * kw * ci, n * p * q
    whole = within(h, kh, sh, ph, dh, p) and within(width, kw, sw, pw, dw, q)
    t = weigh_tiles(x.dtype, total, k)
    high, columns = triton.cdiv(total, t["BM"]), triton.cdiv(k, t["BN"])
    parts, each = weigh_parts(t, x.dtype, rows, clients * high * columns)
    found = torch.empty((clients, k, total), dtype=x.dtype, device=x.device)
    sums = found[None] if parts == 1 else found.new_empty((parts, *found.shape), dtype=torch.float32)
    _weigh[(high, columns * parts, clients)](
        x, g, sums, n, clients, each, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, DH=dh, DW=dw, COLUMNS=columns,
        WHOLE=whole, SPLIT=x.dtype == torch.float32, **t,
    )  # fmt: skip
    if parts > 1:
        sum_parts(sums, found)
    return found


def sum_parts(parts: Tensor, whole: Tensor) -> None:
    """Σ over the first axis, put into `whole`."""
    t = sum_tiles(len(parts))
    _sum_parts[(triton.cdiv(whole.numel(), t["BLOCK"]),)](parts, whole, whole.numel(), PARTS=len(parts), **t)
