"""Convolutions of many clients at once, each with its own kernel, as Triton programs (CUDA only).

A client's convolution is a matrix product of its images' windows with its kernel; the windows are read where
they lie and never written out (implicit product). Images are [clients, N, H, W, channels], kernels
[clients, window · channels, out]. Sums run in one order, so the same call gives the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _convolve(
    x, w, y, N, H, W, P, Q, K,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = Σ x[n, p·S + r·D − P, …, c] · w[r, s, c, k]; with U > 1 x is read as if spread by U."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    place = m % (P * Q)
    there = m < N * P * Q
    top = (place // Q) * SH - PH
    left = (place % Q) * SW - PW
    image = client * N * H * W * CI + (m // (P * Q)).to(tl.int64) * H * W * CI
    total: tl.constexpr = KH * KW * CI
    w += client * total * K
    out = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, total, BK):
        at = start + tl.arange(0, BK)
        if CI % BK == 0:
            window = start // CI
            row = top + (window // KW) * DH
            column = left + (window % KW) * DW
            if UH > 1 or UW > 1:
                inside = there & (row % UH == 0) & (column % UW == 0)
                row, column = row // UH, column // UW
            else:
                inside = there
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            channel = start % CI + tl.arange(0, BK)
            here = x + (image + (row * W + column) * CI)[:, None] + channel[None, :]
            a = tl.load(here, mask=inside[:, None], other=0.0)
            b = tl.load(w + at[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0)
        else:
            window = at // CI
            row = top[:, None] + ((window // KW) * DH)[None, :]
            column = left[:, None] + ((window % KW) * DW)[None, :]
            inside = there[:, None] & (at < total)[None, :]
            if UH > 1 or UW > 1:
                inside = inside & (row % UH == 0) & (column % UW == 0)
                row, column = row // UH, column // UW
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            here = x + image[:, None] + (row * W + column) * CI + (at % CI)[None, :]
            a = tl.load(here, mask=inside, other=0.0)
            b = tl.load(
                w + at[:, None] * K + k[None, :], mask=(at < total)[:, None] & (k < K)[None, :], other=0.0
            )
        out = tl.dot(a, b, out, input_precision=PRECISION)
    y += client * N * P * Q * K
    where = y + m.to(tl.int64)[:, None] * K + k[None, :]
    tl.store(where, out.to(y.dtype.element_ty), mask=there[:, None] & (k < K)[None, :])


@triton.jit
def _weigh(
    x, g, dw, N, H, W, P, Q, K, CLIENTS, ROWS,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, TILES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw[r, s, c, k] = Σ x[n, p·S + r·D − P, …, c] · g[n, p, q, k], over ROWS rows (n, p, q) of each part."""
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // TILES
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    k = (tl.program_id(1) % TILES) * BN + tl.arange(0, BN)
    total: tl.constexpr = KH * KW * CI
    window = at // CI
    down = (window // KW) * DH - PH
    right = (window % KW) * DW - PW
    channel = at % CI
    x += client * N * H * W * CI
    g += client * N * P * Q * K
    out = tl.zeros((BM, BN), dtype=tl.float32)
    first = part * ROWS
    for start in range(first, first + ROWS, BR):
        m = start + tl.arange(0, BR)
        there = (m < N * P * Q) & (m < first + ROWS)
        place = m % (P * Q)
        row = ((place // Q) * SH)[:, None] + down[None, :]
        column = ((place % Q) * SW)[:, None] + right[None, :]
        inside = there[:, None] & (at < total)[None, :]
        inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        image = (m // (P * Q)) * (H * W * CI)
        a = tl.load(
            x + image[:, None] + (row * W + column) * CI + channel[None, :], mask=inside, other=0.0
        )
        b = tl.load(
            g + m[:, None] * K + k[None, :], mask=there[:, None] & (k < K)[None, :], other=0.0
        )
        out = tl.dot(tl.trans(a), b, out, input_precision=PRECISION)
    dw += (part * CLIENTS + client) * total * K
    where = dw + at[:, None] * K + k[None, :]
    tl.store(where, out.to(dw.dtype.element_ty), mask=(at < total)[:, None] & (k < K)[None, :])


def convolve(x: Tensor, w: Tensor, geometry: list[int]) -> Tensor:
    """[C, N, H, W, c] with [C, window · c, k] to [C, N, P, Q, k]."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = w.shape[2]
    y = torch.empty((clients, n, p, q, k), dtype=x.dtype, device=x.device)
    half = x.dtype == torch.bfloat16
    bn = max(16, min(64, triton.next_power_of_2(k)))
    bk = 64 if half and ci % 64 == 0 else 32
    bm = 128 if n * p * q >= 128 else 64
    grid = (triton.cdiv(n * p * q, bm), triton.cdiv(k, bn), clients)
    _convolve[grid](
        x, w, y, n, h, width, p, q, k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        BM=bm, BN=bn, BK=bk, PRECISION="tf32", num_warps=4, num_stages=4 if half else 3,
    )  # fmt: skip
    return y


def weigh(x: Tensor, g: Tensor, geometry: list[int]) -> Tensor:
    """[C, N, H, W, c] with [C, N, P, Q, k] to [C, window · c, k]."""
    kh, kw, sh, sw, _, _, ph, pw, dh, dw, _, _ = geometry
    clients, n, h, width, ci = x.shape
    p, q, k = g.shape[2:]
    total, rows = kh * kw * ci, n * p * q
    half = x.dtype == torch.bfloat16
    bn = max(16, min(64, triton.next_power_of_2(k)))
    bm = 128 if total >= 96 else max(16, triton.next_power_of_2(total))
    br = 64 if half else 32
    tiles, columns = triton.cdiv(total, bm), triton.cdiv(k, bn)
    parts = max(1, min(triton.cdiv(rows, 8 * br), PROGRAMS // max(1, clients * tiles * columns)))
    each = triton.cdiv(triton.cdiv(rows, parts), br) * br
    parts = triton.cdiv(rows, each)
    dtype = x.dtype if parts == 1 else torch.float32
    out = torch.empty((parts, clients, total, k), dtype=dtype, device=x.device)
    _weigh[(tiles, columns * parts, clients)](
        x, g, out, n, h, width, p, q, k, clients, each,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, DH=dh, DW=dw, TILES=columns,
        BM=bm, BN=bn, BR=br, PRECISION="tf32", num_warps=4, num_stages=4 if half else 3,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0).to(x.dtype)


PROGRAMS = 528  # four to each of a large GPU's processors
