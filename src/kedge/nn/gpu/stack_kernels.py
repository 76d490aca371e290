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

from kedge.nn.gpu.few_channel_kernels import convolve_few
from kedge.nn.gpu.operators import out_channels
from kedge.nn.gpu.tiles import convolve_tiles, cut, seen, seen_places
from kedge.nn.gpu.weight_gradient_kernels import weigh


@triton.jit
def _convolve(
    x, w, bias, y, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr, APART: tl.constexpr,
    LEFT: tl.constexpr, MIDDLE: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = Σ x[n, p·S + r·D − P, …, c] · w[k, r, s, c]; with U > 1 x is read as if spread by U.

    TURNED: the weights lie as [c, −r, −s, k].
    The sum runs over RH · RW places of the window from (R, S) on; the others only ever see padding.
    APART: a tile is of one row of outputs, and leaves out the rows of the window that lie outside for it.
    MIDDLE: so many outputs of a row, after LEFT others, are in tiles of their own and see all columns of the
    window; of those beside them each has its own tiles, which leave out the columns that lie outside.
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
            middle, beside = tl.cdiv(N * MIDDLE, BM), tl.cdiv(N, BM)
            tiles = middle + (Q - MIDDLE) * beside
            p, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
            if MIDDLE < Q:
                further = tl.maximum(tile - middle, 0)
                single = tile >= middle
                only = further // beside
                only += tl.where(only < LEFT, 0, MIDDLE)
                m = tl.where(single, further % beside, tile) * BM + tl.arange(0, BM)
                number = tl.where(single, m, m // (MIDDLE + (MIDDLE == 0)))
                q = tl.where(single, only, LEFT + m % (MIDDLE + (MIDDLE == 0)))
                side = only * SW - PW
                begin = tl.where(single, tl.maximum((DW - 1 - side) // DW, S), S)
                last = tl.minimum(tl.maximum(W - 1 - side + DW, 0) // DW, S + RW)
                columns = tl.where(single, last, S + RW) - begin
            else:
                m = tile * BM + tl.arange(0, BM)
                number, q = m // Q, m % Q
            there = number < N
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
        left = q * SW - PW + begin * DW
    corner = number * (H * W * CI) + (top * W + left) * CI  # where what is read of a window begins
    total: tl.constexpr = KH * KW * CI
    x += client * N * H * W * CI
    w += client * total * K
    out = tl.zeros((BM, BN), dtype=tl.float32)
    inner = tl.arange(0, BK)
    real = (k < K)[None, :]
    # A step is one place of the window, and some of its channels.
    share = 65536 // tl.maximum(columns, 1) + 1  # multiplying by it is as exact as dividing in small windows
    for start in range(0, rows * columns * CI, BK):
        place = start // CI
        down = (place * share) >> 16 if KH * KW * KW < 65536 else place // columns
        right = place - down * columns
        window = (first + down * TH) * KW + begin + right * TW
        channel = tl.multiple_of(start % CI, BK)  # else Triton 3.6 reads the images value by value
        row, column = top + down * (DH * TH // UH), left + right * (DW * TW // UW)
        here = corner + (down * (DH * TH // UH) * W + right * (DW * TW // UW)) * CI
        inside = there
        if not WHOLE and MIDDLE == Q:
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
    places, across = seen_places(h, kh, sh, uh, ph, dh, p), seen_places(width, kw, sw, uw, pw, dw, q)
    t = convolve_tiles(x.dtype, clients, n * p * q, ci, k)
    apart, left, middle = cut(places, across, n, t["BM"]) if uh == uw == 1 else (False, 0, q)
    down, right = seen(places), seen(across)
    if uh > 1 or uw > 1:
        high = uh * uw * triton.cdiv(n * triton.cdiv(p, uh) * triton.cdiv(q, uw), t["BM"])
    else:
        row = triton.cdiv(n * middle, t["BM"]) + (q - middle) * triton.cdiv(n, t["BM"])
        high = p * row if apart else triton.cdiv(n * p * q, t["BM"])
    _convolve[(high, triton.cdiv(k, t["BN"]), clients)](
        x, w, w if bias is None else bias, y, n, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        WHOLE=whole, TURNED=turned, BIAS=bias is not None,
        R=down.start, S=right.start, RH=len(down), RW=len(right), APART=apart, LEFT=left, MIDDLE=middle,
        TH=uh // gcd(uh, dh), TW=uw // gcd(uw, dw), **t,
    )  # fmt: skip


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
