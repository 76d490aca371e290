"""Convolutions of many clients at once, each with its own kernel, as Triton programs (CUDA only).

A client's convolution is a matrix product of its images' windows with its kernel; the windows are read where
they lie and never written out (implicit product). Images are [clients, N, H, W, channels]. Kernels lie in one
of two ways (operators.py). Sums run in one order, so the same call gives the same bits.
"""

from functools import cache
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.core.few_kernels import convolve_few
from kedge.core.operators import out_channels
from kedge.core.tiles import (
    convolve_tiles,
    row_by_row,
    seen,
    seen_places,
    sum_tiles,
    weigh_parts,
    weigh_tiles,
    within,
)


@triton.jit
def _convolve(
    x, w, bias, y, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr, APART: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = Σ x[n, p·S + r·D − P, …, c] · w[k, r, s, c]; with U > 1 x is read as if spread by U.

    TURNED: the weights lie as [c, −r, −s, k].
    The sum runs over RH · RW places of the window from (R, S) on; the others only ever see padding.
    APART: a tile is of one row of outputs, and leaves out the rows of the window that lie outside for it.
    Where x is spread a tile is of every U-th output, and takes every T-th place: between are only zeros.
    """
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    if UH > 1 or UW > 1:
        down, right = tl.program_id(0) % (UH * UW) // UW, tl.program_id(0) % UW
        m = tl.program_id(0) // (UH * UW) * BM + tl.arange(0, BM)
        high: tl.constexpr = (P + UH - 1) // UH
        wide: tl.constexpr = (Q + UW - 1) // UW
        number, i, j = m // (high * wide), m % (high * wide) // wide, m % wide
        p, q = i * UH + down, j * UW + right
        there = (number < N) & (p < P) & (q < Q)
        m = (number * P + p) * Q + q
        first, begin = met(down - PH, KH, UH, DH), met(right - PW, KW, UW, DW)
        rows, columns = (KH - first + TH - 1) // TH, (KW - begin + TW - 1) // TW
        top, left = i + (down - PH + first * DH) // UH, j + (right - PW + begin * DW) // UW
    else:
        begin, columns = S, RW
        if APART:
            tiles = tl.cdiv(N * Q, BM)
            p = tl.program_id(0) // tiles
            m = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
            there = m < N * Q
            number, q = m // Q, m % Q
            m = (number * P + p) * Q + q
            edge = p * SH - PH
            first = tl.maximum((DH - 1 - edge) // DH, R)
            rows = tl.minimum(tl.maximum(H - 1 - edge + DH, 0) // DH, R + RH) - first
            top = q * 0 + edge + first * DH
        else:
            m = tl.program_id(0) * BM + tl.arange(0, BM)
            there = m < N * P * Q
            number, q = m // (P * Q), m % Q
            first, rows = R, RH
            top = (m % (P * Q) // Q) * SH - PH + R * DH
        left = q * SW - PW + S * DW
    corner = number * (H * W * CI) + (top * W + left) * CI  # where what is read of a window begins
    total: tl.constexpr = KH * KW * CI
    x += client * N * H * W * CI
    w += client * total * K
    out = tl.zeros((BM, BN), dtype=tl.float32)
    inner = tl.arange(0, BK)
    real = (k < K)[None, :]
    # A step is one place of the window, and some of its channels.
    for start in range(0, rows * columns * CI, BK):
        down, right = start // CI // columns, start // CI % columns
        window = (first + down * TH) * KW + begin + right * TW
        channel = tl.multiple_of(start % CI, BK)  # else Triton 3.6 reads the images value by value
        row, column = top + down * (DH * TH // UH), left + right * (DW * TW // UW)
        here = corner + (down * (DH * TH // UH) * W + right * (DW * TW // UW)) * CI
        inside = there
        if not WHOLE:
            inside = inside & (column >= 0) & (column < W)
            if not APART:
                inside = inside & (row >= 0) & (row < H)
        a = tl.load(x + (here[:, None] + inner[None, :] + channel), mask=inside[:, None], other=0.0)
        if TURNED:
            weights = inner[:, None] * (KH * KW * K) + k[None, :]
            weights += channel * (KH * KW * K) + (KH * KW - 1 - window) * K
        else:
            weights = k[None, :] * total + inner[:, None] + (window * CI + channel)
        b = tl.load(w + weights, mask=real, other=0.0)
        out = tl.dot(a, b, out, input_precision="tf32")
    if BIAS:
        out += tl.load(bias + client * K + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
    y += client * N * P * Q * K
    tl.store(y + m[:, None] * K + k[None, :], out.to(y.dtype.element_ty), mask=there[:, None] & real)


@triton.jit
def met(start, SIZE: tl.constexpr, U: tl.constexpr, D: tl.constexpr):
    """The first place of a window from `start` on that meets a value of what is spread; none: its SIZE."""
    first = SIZE
    for place in tl.static_range(U):
        at = U - 1 - place
        first = tl.where((start + at * D) % U == 0, at, first)
    return first


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


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], turned: bool) -> Tensor:
    """[C, N, H, W, c] with kernels to [C, N, P, Q, k]; TURNED, a kernel serves its own backward pass."""
    y = room(x, w, geometry, turned)
    convolve_into(y, x, w, bias, geometry, turned)
    return y


def room(x: Tensor, w: Tensor, geometry: list[int], turned: bool) -> Tensor:
    """For what `convolve` gives."""
    k = out_channels(w.shape, geometry, turned)
    return torch.empty((*x.shape[:2], *geometry[-2:], k), dtype=x.dtype, device=x.device)


def convolve_into(
    y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], turned: bool
) -> None:
    """The same, into memory that is there."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = y.shape[4]
    if ci % 16:
        convolve_few(x, w, bias, y, geometry, turned)
        return
    whole = not ph and not pw and uh == uw == 1
    places = seen_places(h, kh, sh, uh, ph, dh, p)
    t = convolve_tiles(x.dtype, clients, n * p * q, ci, k)
    apart = uh == uw == 1 and row_by_row(places, n, q, t["BM"])
    down, right = seen(places), seen(seen_places(width, kw, sw, uw, pw, dw, q))
    if uh > 1 or uw > 1:
        high = uh * uw * triton.cdiv(n * triton.cdiv(p, uh) * triton.cdiv(q, uw), t["BM"])
    else:
        high = p * triton.cdiv(n * q, t["BM"]) if apart else triton.cdiv(n * p * q, t["BM"])
    _convolve[(high, triton.cdiv(k, t["BN"]), clients)](
        x, w, w if bias is None else bias, y, n, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        WHOLE=whole, TURNED=turned, BIAS=bias is not None,
        R=down.start, S=right.start, RH=len(down), RW=len(right), APART=apart,
        TH=uh // gcd(uh, dh), TW=uw // gcd(uw, dw), **t,
    )  # fmt: skip


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


def gradients(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], turned: bool
) -> tuple[Tensor, Tensor]:
    """Those of a convolution by its input and its kernels, side by side: one fills what the other leaves.

    The kernels' come first and on the stream itself: they take two programs, one after the other. All memory
    is that stream's; what the other one writes into is taken before, for what `weigh` gives back is in use.
    """
    here = torch.cuda.current_stream()
    beside = stream_beside(here.cuda_stream)
    dx = room(g, w, back, turned)
    beside.wait_stream(here)  # and so for all that lay in its memory before
    dw = weigh(x, g, geometry)
    with torch.cuda.stream(beside):
        convolve_into(dx, g, w, None, back, turned)
    here.wait_stream(beside)
    return dx, dw


@cache
def stream_beside(stream: int) -> torch.cuda.Stream:
    """One for each."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
