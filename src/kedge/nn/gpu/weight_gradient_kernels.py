"""Gradients of convolutions by their weights, for many clients at once, as Triton programs (CUDA only).

The gradient is a matrix product of output gradients and image windows, which are read from the images as in
stack_kernels.py. If it has too few tiles to fill a GPU, its sum is divided into parts (split-K), and a second
program adds the parts. The order of every sum is fixed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.tiles import is_unpadded, split_k, sum_tiles, weight_gradient_tiles


@triton.jit
def _weight_gradient(
    x, g, dw, N, CLIENTS, ROWS,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, COLUMN_TILES: tl.constexpr,
    UNPADDED: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """dw[k, r, s, c] = Σ g[n, p, q, k] · x[n, p·SH + r·DH − PH, q·SW + s·DW − PW, c], for each client.

    The sum of a part runs over ROWS rows (n, p, q). The other names are those of `_convolve`.
    SPLIT: each float32 is split into two bfloat16, and three of the four products are added. This is more
    exact than tf32, whose products require another memory layout.
    """
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // COLUMN_TILES
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    k = (tl.program_id(1) % COLUMN_TILES) * BN + tl.arange(0, BN)
    total: tl.constexpr = KH * KW * CI
    across = at % (KW * CI)
    down = at // (KW * CI) * DH - PH
    right = at // CI % KW * DW - PW  # Triton infers that all channels share it; not of across // CI
    offset = (down * W - PW) * CI + across if DW == 1 else (down * W + right) * CI + at % CI
    x += client * N * H * W * CI
    g += client * N * P * Q * K
    out = tl.zeros((BN, BM), dtype=tl.float32)
    first = part * ROWS
    last = tl.minimum(first + ROWS, N * P * Q)
    for start in range(first, last, BR):
        m = start + tl.arange(0, BR)
        valid = m < last
        row_number = (m.to(tl.uint32) // Q).to(tl.int32)  # of the output's row among the rows of all images
        image = (m.to(tl.uint32) // (P * Q)).to(tl.int32)
        address = (m * SW + row_number * (SH * W - SW * Q) + image * ((H - SH * P) * W)) * CI
        inside = valid[:, None] & (at < total)[None, :]
        if not UNPADDED:
            row = ((row_number - image * P) * SH)[:, None] + down[None, :]
            column = ((m - row_number * Q) * SW)[:, None] + right[None, :]
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        a = tl.load(x + address[:, None] + offset[None, :], mask=inside, other=0.0)
        if SPLIT:
            # Read g transposed: only then is a factor that is kept in registers copied 16 bytes at a time.
            b = tl.load(g + m[None, :] * K + k[:, None], mask=valid[None, :] & (k < K)[:, None], other=0.0)
            a_high, b_high = leading_bits(a), leading_bits(b)
            a_head, b_head = a_high.to(tl.bfloat16), b_high.to(tl.bfloat16)
            a_tail, b_tail = (a - a_high).to(tl.bfloat16), (b - b_high).to(tl.bfloat16)
            out = tl.dot(b_tail, a_head, out)
            out = tl.dot(b_head, a_tail, out)
            out = tl.dot(b_head, a_head, out)
        else:
            b = tl.load(g + m[:, None] * K + k[None, :], mask=valid[:, None] & (k < K)[None, :], other=0.0)
            out = tl.dot(tl.trans(b), a, out)
    dw += (part * CLIENTS + client) * total * K
    where = dw + k[:, None] * total + at[None, :]
    tl.store(where, out.to(dw.dtype.element_ty), mask=(k < K)[:, None] & (at < total)[None, :])


@triton.jit
def leading_bits(v):
    """A float32 truncated to the bits of a bfloat16, by a bit mask: rounding would take longer."""
    return (v.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _sum_parts(parts, whole, SIZE, PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """whole[i] = Σ parts[p, i]; a program adds all parts of BLOCK columns, in a fixed order."""
    p = tl.arange(0, ROWS)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (p < PARTS)[:, None] & (i < SIZE)[None, :]
    values = tl.load(parts + p[:, None] * SIZE + i[None, :], mask=inside, other=0.0)
    tl.store(whole + i, tl.sum(values, 0).to(whole.dtype.element_ty), mask=i < SIZE)


def weight_gradient(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    """The weight gradient [C, k, window · c]; images are [C, N, H, W, c], `g` is [C, N, P, Q, k]."""
    kh, kw, sh, sw, _, _, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = g.shape[4]
    total, rows = kh * kw * ci, n * p * q
    unpadded = is_unpadded(h, kh, sh, ph, dh, p) and is_unpadded(width, kw, sw, pw, dw, q)
    t = weight_gradient_tiles(x.dtype, total, k)
    row_tiles, column_tiles = triton.cdiv(total, t["BM"]), triton.cdiv(k, t["BN"])
    parts, rows_of_part = split_k(t, x.dtype, rows, clients * row_tiles * column_tiles)
    result = torch.empty((clients, k, total), dtype=x.dtype, device=x.device)
    sums = result[None] if parts == 1 else result.new_empty((parts, *result.shape), dtype=torch.float32)
    _weight_gradient[(row_tiles, column_tiles * parts, clients)](
        x, g, sums, n, clients, rows_of_part, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, DH=dh, DW=dw, COLUMN_TILES=column_tiles,
        UNPADDED=unpadded, SPLIT=x.dtype == torch.float32, **t,
    )  # fmt: skip
    if parts > 1:
        sum_parts(sums, result)
    return result


def sum_parts(parts: Tensor, whole: Tensor) -> None:
    """Write the sum of `parts` over their first dimension into `whole`."""
    t = sum_tiles(len(parts))
    _sum_parts[(triton.cdiv(whole.numel(), t["BLOCK"]),)](parts, whole, whole.numel(), PARTS=len(parts), **t)
