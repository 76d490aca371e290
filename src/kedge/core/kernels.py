"""Convolutions of many clients at once, each with its own kernel, as Triton programs (CUDA only).

A client's convolution is a matrix product of its images' windows with its kernel; the windows are read where
they lie and never written out (implicit product). Images are [clients, N, H, W, channels]. Kernels lie in one
of three ways (convolution.py). Sums run in one order, so the same call gives the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.core.convolution import out_channels


@triton.jit
def _convolve(
    x, w, y, N, H, W, P, Q, K,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, WHOLE: tl.constexpr, LAID: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = Σ x[n, p·S + r·D − P, …, c] · w[k, r, s, c]; with U > 1 x is read as if spread by U.

    LAID: how the weights lie: as [k, r, s, c], [r, s, c, k], or [c, −r, −s, k].
    The sum runs over RH · RW places of the window from (R, S) on; the others only ever see padding.
    """
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    place = m % (P * Q)
    there = m < N * P * Q
    top = (place // Q) * SH - PH
    left = (place % Q) * SW - PW
    image = (m // (P * Q)) * (H * W * CI)
    total: tl.constexpr = KH * KW * CI
    x += client * N * H * W * CI
    w += client * total * K
    turned: tl.constexpr = KH * KW - 1
    out = tl.zeros((BM, BN), dtype=tl.float32)
    inner = tl.arange(0, BK)
    if CI % BK == 0:  # a step is one place of the window, and some of its channels
        for start in range(0, RH * RW * CI, BK):
            window = (R + start // CI // RW) * KW + S + start // CI % RW
            row = top + (window // KW) * DH
            column = left + (window % KW) * DW
            inside = there
            if UH > 1 or UW > 1:
                inside = inside & (row % UH == 0) & (column % UW == 0)
                row, column = row // UH, column // UW
            if not WHOLE:
                inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            here = image + (row * W + column) * CI + start % CI
            a = tl.load(x + here[:, None] + inner[None, :], mask=inside[:, None], other=0.0)
            if LAID == 2:
                weights = (start % CI + inner)[:, None] * (KH * KW * K) + ((turned - window) * K + k)[None, :]
            elif LAID == 1:
                weights = (window * CI + start % CI + inner)[:, None] * K + k[None, :]
            else:
                weights = k[None, :] * total + (window * CI + start % CI + inner)[:, None]
            b = tl.load(w + weights, mask=(k < K)[None, :], other=0.0)
            out = tl.dot(a, b, out, input_precision="tf32")
    else:  # few channels: a step is one row of the window
        across, channel = inner // CI, inner % CI
        real = inner < KW * CI
        for window in range(KH):
            row = top + window * DH
            column = left[:, None] + (across * DW)[None, :]
            inside = there[:, None] & real[None, :]
            if UH > 1 or UW > 1:
                inside = inside & (row % UH == 0)[:, None] & (column % UW == 0)
                row, column = row // UH, column // UW
            if not WHOLE:
                inside = inside & ((row >= 0) & (row < H))[:, None] & (column >= 0) & (column < W)
            here = (image + row * W * CI)[:, None] + column * CI + channel[None, :]
            a = tl.load(x + here, mask=inside, other=0.0)
            if LAID == 2:
                at = channel * (KH * KW * K) + (turned - window * KW - across) * K
                weights = at[:, None] + k[None, :]
            elif LAID == 1:
                weights = (window * KW * CI + inner)[:, None] * K + k[None, :]
            else:
                weights = k[None, :] * total + (window * KW * CI + inner)[:, None]
            b = tl.load(w + weights, mask=real[:, None] & (k < K)[None, :], other=0.0)
            out = tl.dot(a, b, out, input_precision="tf32")
    y += client * N * P * Q * K
    tl.store(
        y + m[:, None] * K + k[None, :], out.to(y.dtype.element_ty), mask=there[:, None] & (k < K)[None, :]
    )


@triton.jit
def _weigh(
    x, g, dw, N, H, W, P, Q, K, CLIENTS, ROWS,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SPLIT: tl.constexpr, TURNED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """dw[k, r, s, c] = Σ g[n, p, q, k] · x[n, p·S + r·D − P, …, c], over ROWS rows (n, p, q) of each part.

    SPLIT: float32 as two bfloat16 and three products, finer than tf32, whose products want the other layout.
    TURNED: the sums are made as [r, s, c, k], which is faster where there are few channels.
    """
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1) // COLUMNS
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    k = (tl.program_id(1) % COLUMNS) * BN + tl.arange(0, BN)
    total: tl.constexpr = KH * KW * CI
    window = at // CI
    down = (window // KW) * DH - PH
    right = (window % KW) * DW - PW
    offset = (down * W + right) * CI + at % CI
    x += client * N * H * W * CI
    g += client * N * P * Q * K
    out = tl.zeros((BM, BN) if TURNED else (BN, BM), dtype=tl.float32)
    first = part * ROWS
    last = tl.minimum(first + ROWS, N * P * Q)
    for start in range(first, last, BR):
        m = start + tl.arange(0, BR)
        there = m < last
        place = m % (P * Q)
        row, column = (place // Q) * SH, (place % Q) * SW
        here = (m // (P * Q)) * (H * W * CI) + (row * W + column) * CI
        inside = there[:, None] & (at < total)[None, :]
        if not WHOLE:
            low, wide = row[:, None] + down[None, :], column[:, None] + right[None, :]
            inside = inside & (low >= 0) & (low < H) & (wide >= 0) & (wide < W)
        a = tl.load(x + here[:, None] + offset[None, :], mask=inside, other=0.0)
        b = tl.load(g + m[:, None] * K + k[None, :], mask=there[:, None] & (k < K)[None, :], other=0.0)
        if SPLIT:
            high, tall = a.to(tl.bfloat16), b.to(tl.bfloat16)
            rest, left = (a - high.to(tl.float32)).to(tl.bfloat16), (b - tall.to(tl.float32)).to(tl.bfloat16)
            if TURNED:
                out = tl.dot(tl.trans(high), left, out)
                out = tl.dot(tl.trans(rest), tall, out)
                out = tl.dot(tl.trans(high), tall, out)
            else:
                out = tl.dot(tl.trans(left), high, out)
                out = tl.dot(tl.trans(tall), rest, out)
                out = tl.dot(tl.trans(tall), high, out)
        elif TURNED:
            out = tl.dot(tl.trans(a), b, out)
        else:
            out = tl.dot(tl.trans(b), a, out)
    dw += (part * CLIENTS + client) * total * K
    if TURNED:
        where = dw + k[None, :] * total + at[:, None]
        tl.store(where, out.to(dw.dtype.element_ty), mask=(k < K)[None, :] & (at < total)[:, None])
    else:
        where = dw + k[:, None] * total + at[None, :]
        tl.store(where, out.to(dw.dtype.element_ty), mask=(k < K)[:, None] & (at < total)[None, :])


def convolve(
    x: Tensor, w: Tensor, geometry: list[int], laid: int, tiles: dict[str, int] | None = None
) -> Tensor:
    """[C, N, H, W, c] with kernels to [C, N, P, Q, k]; TURNED, a kernel serves its own backward pass."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = out_channels(w.shape, geometry, laid)
    y = torch.empty((clients, n, p, q, k), dtype=x.dtype, device=x.device)
    whole = not ph and not pw and uh == uw == 1
    t = convolve_tiles(x.dtype, clients, n * p * q, ci, kw, k, whole) | (tiles or {})
    grid = (triton.cdiv(n * p * q, t["BM"]), triton.cdiv(k, t["BN"]), clients)
    down, right = seen(h, kh, sh, uh, ph, dh, p), seen(width, kw, sw, uw, pw, dw, q)
    _convolve[grid](
        x, w, y, n, h, width, p, q, k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        WHOLE=whole, LAID=laid,
        R=down.start, S=right.start, RH=len(down), RW=len(right), **t,
    )  # fmt: skip
    return y


def weigh(x: Tensor, g: Tensor, geometry: list[int], tiles: dict[str, int] | None = None) -> Tensor:
    """[C, N, H, W, c] with [C, N, P, Q, k] to [C, k, window · c]."""
    kh, kw, sh, sw, _, _, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = g.shape[4]
    total, rows = kh * kw * ci, n * p * q
    t = weigh_tiles(x.dtype, total, k) | (tiles or {})
    programs = t.pop("PROGRAMS")
    high, columns = triton.cdiv(total, t["BM"]), triton.cdiv(k, t["BN"])
    parts = max(1, min(triton.cdiv(rows, 4 * t["BR"]), programs // (clients * high * columns)))
    each = triton.cdiv(triton.cdiv(rows, parts), t["BR"]) * t["BR"]
    parts = triton.cdiv(rows, each)
    dtype = x.dtype if parts == 1 else torch.float32
    out = torch.empty((parts, clients, k, total), dtype=dtype, device=x.device)
    _weigh[(high, columns * parts, clients)](
        x, g, out, n, h, width, p, q, k, clients, each,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, PH=ph, PW=pw, DH=dh, DW=dw, COLUMNS=columns,
        WHOLE=not ph and not pw, SPLIT=x.dtype == torch.float32, TURNED=ci % 16 != 0, **t,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0).to(x.dtype)


def seen(size: int, window: int, stride: int, spread: int, padding: int, dilation: int, out: int) -> range:
    """The places of a window that lie on the image for some output; a 3×3 window on 1×1 has only one."""
    last = (size - 1) * spread
    inside = [
        r for r in range(window) if any(0 <= p * stride + r * dilation - padding <= last for p in range(out))
    ]
    return range(inside[0], inside[-1] + 1) if inside else range(1)


def convolve_tiles(
    dtype: torch.dtype, clients: int, rows: int, channels: int, across: int, out: int, whole: bool
) -> dict[str, int]:
    """How `convolve` cuts its work: fixed by the shapes, so that every run sums alike."""
    half = dtype == torch.bfloat16
    columns = max(16, min(64, triton.next_power_of_2(out)))
    many = clients * triton.cdiv(rows, 128) * triton.cdiv(out, columns) >= PROGRAMS
    wide = many and not half and channels % 64 == 0
    tall = wide and whole
    fitting = (64, 32, 16) if (half and (many or not whole)) or (wide and not whole) else (32, 16)
    inner = next((b for b in fitting if channels % b == 0), None)
    inner = inner or max(16, triton.next_power_of_2(across * channels))
    high = 256 if tall else 128 if many else 64
    held = (high + columns) * inner * dtype.itemsize  # bytes that a stage keeps close by
    return {
        "BM": high,
        "BN": columns,
        "BK": inner,
        "num_warps": 8 if wide else 4,
        "num_stages": max(1, min(3, SHARED // held)),
    }


def weigh_tiles(dtype: torch.dtype, total: int, out: int) -> dict[str, int]:
    """How `weigh` cuts its work; PROGRAMS is how many it aims at."""
    half = dtype == torch.bfloat16
    flat = half and out >= 128
    return {
        "BM": max(16, min(64 if flat else 128, triton.next_power_of_2(total))),
        "BN": 128 if flat else max(16, min(64, triton.next_power_of_2(out))),
        "BR": 64 if half and not flat else 32,
        "PROGRAMS": PROGRAMS // 2,
        "num_warps": 4,
        "num_stages": 3,
    }


PROGRAMS = 528  # four to each of a large GPU's processors
SHARED = 200_000  # bytes of a processor's shared memory
