"""Convolutions of images with few channels, those of a first layer, as a Triton program (CUDA only).

Like `kernels.py`, but a step of the sum is as many of the window's terms as it takes, whatever place they are
of. Where one step takes them all a program keeps its weights and goes from tile to tile of the outputs.
"""

import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.tiles import few_tiles


@triton.jit
def _convolve_few(
    x, w, bias, y, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, WHOLE: tl.constexpr, TURNED: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As `_convolve`."""
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total: tl.constexpr = KH * KW * CI
    x += client * N * H * W * CI
    w += client * total * K
    y += client * N * P * Q * K
    added = tl.zeros((BN,), dtype=tl.float32)
    if BIAS:
        added += tl.load(bias + client * K + k, mask=k < K, other=0.0).to(tl.float32)
    if total <= BK:
        kept = few_weights(w, k, inner, K, CI, KH, KW, TURNED)
    for tile in range(tl.program_id(0), tl.cdiv(N * P * Q, BM), tl.num_programs(0)):
        m = tile * BM + tl.arange(0, BM)
        if total <= BK:
            a = few_values(
                x, m, N, inner, H, W, P, Q, CI, KH, KW, SH, SW, UH, UW, PH, PW, DH, DW, WHOLE
            )  # fmt: skip
            out = tl.dot(a, kept, input_precision="tf32")
        else:
            out = tl.zeros((BM, BN), dtype=tl.float32)
            for start in range(0, total, BK):
                a = few_values(
                    x, m, N, start + inner, H, W, P, Q, CI, KH, KW, SH, SW, UH, UW, PH, PW, DH, DW, WHOLE
                )  # fmt: skip
                b = few_weights(w, k, start + inner, K, CI, KH, KW, TURNED)
                out = tl.dot(a, b, out, input_precision="tf32")
        out += added[None, :]
        tl.store(
            y + m[:, None] * K + k[None, :], out.to(y.dtype.element_ty),
            mask=(m < N * P * Q)[:, None] & (k < K)[None, :],
        )  # fmt: skip


@triton.jit
def few_values(
    x, m, N, at, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Of the windows of the outputs m the terms `at`, counted through rows, columns and channels."""
    line = (m.to(tl.uint32) // Q).to(tl.int32)  # of outputs, counted through all images
    number = (m.to(tl.uint32) // (P * Q)).to(tl.int32)
    down, across = at // (KW * CI) * DH, at % (KW * CI)
    right, channel = at // CI % KW * DW, at % CI
    inside = (m < N * P * Q)[:, None] & (at < KH * KW * CI)[None, :]
    if WHOLE:
        corner = (m * SW + line * (SH * W - SW * Q) + number * ((H - SH * P) * W)) * CI
        along = across if DW == 1 else right * CI + channel
        here = corner[:, None] + (down * W * CI + along)[None, :]
    else:
        row = ((line - number * P) * SH - PH)[:, None] + down[None, :]
        column = ((m - line * Q) * SW - PW)[:, None] + right[None, :]
        if UH > 1 or UW > 1:
            inside = inside & (row % UH == 0) & (column % UW == 0)
            row, column = row // UH, column // UW
        inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        here = (number * (H * W * CI))[:, None] + (row * W + column) * CI + channel[None, :]
    return tl.load(x + here, mask=inside, other=0.0)


@triton.jit
def few_weights(
    w, k, at, K: tl.constexpr, CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, TURNED: tl.constexpr
):  # fmt: skip
    """The weights of these terms, [terms, k]."""
    total: tl.constexpr = KH * KW * CI
    if TURNED:
        weights = (at % CI * (KH * KW * K) + (KH * KW - 1 - at // CI) * K)[:, None] + k[None, :]
    else:
        weights = k[None, :] * total + at[:, None]
    return tl.load(w + weights, mask=(at < total)[:, None] & (k < K)[None, :], other=0.0)


def convolve_few(
    x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, geometry: list[int], turned: bool
) -> None:
    """As `convolve`, into y."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = y.shape[4]
    t = few_tiles(x.dtype, kh * kw * ci, k)
    columns, tiles = triton.cdiv(k, t["BN"]), triton.cdiv(n * p * q, t["BM"])
    programs = min(tiles, max(1, t.pop("PROGRAMS") // (clients * columns)))
    _convolve_few[(programs, columns, clients)](
        x, w, w if bias is None else bias, y, n, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        WHOLE=not ph and not pw and uh == uw == 1, TURNED=turned, BIAS=bias is not None, **t,
    )  # fmt: skip
