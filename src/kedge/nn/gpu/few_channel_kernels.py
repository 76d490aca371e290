"""Convolution of images with few channels, such as the inputs of a first layer, in Triton (CUDA only).

Unlike in stack_kernels.py, a step of the sum adds terms of several positions of the window: there are too few
channels to fill a step. If one step adds all terms, a program loads its weights once and computes several
tiles of outputs.
"""

import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.tiles import few_channel_tiles


@triton.jit
def _convolve_few_channels(
    x, w, bias, y, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr, FLIPPED: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same as `_convolve` in stack_kernels.py; a term is a position of the window and a channel."""
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total: tl.constexpr = KH * KW * CI
    x += client * N * H * W * CI
    w += client * total * K
    y += client * N * P * Q * K
    bias_values = tl.zeros((BN,), dtype=tl.float32)
    if BIAS:
        bias_values += tl.load(bias + client * K + k, mask=k < K, other=0.0).to(tl.float32)
    if total <= BK:
        weights = load_weights(w, k, inner, K, CI, KH, KW, FLIPPED)
    for tile in range(tl.program_id(0), tl.cdiv(N * P * Q, BM), tl.num_programs(0)):
        m = tile * BM + tl.arange(0, BM)
        if total <= BK:
            a = load_terms(
                x, m, N, inner, H, W, P, Q, CI, KH, KW, SH, SW, UH, UW, PH, PW, DH, DW, UNPADDED
            )  # fmt: skip
            out = tl.dot(a, weights, input_precision="tf32")
        else:
            out = tl.zeros((BM, BN), dtype=tl.float32)
            for start in range(0, total, BK):
                a = load_terms(
                    x, m, N, start + inner, H, W, P, Q, CI, KH, KW, SH, SW, UH, UW, PH, PW, DH, DW, UNPADDED
                )  # fmt: skip
                b = load_weights(w, k, start + inner, K, CI, KH, KW, FLIPPED)
                out = tl.dot(a, b, out, input_precision="tf32")
        out += bias_values[None, :]
        tl.store(
            y + m[:, None] * K + k[None, :], out.to(y.dtype.element_ty),
            mask=(m < N * P * Q)[:, None] & (k < K)[None, :],
        )  # fmt: skip


@triton.jit
def load_terms(
    x, m, N, at, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr,
):  # fmt: skip
    """The terms `at` of the windows of outputs `m`: [m, at]; terms are numbered by (row, column, channel)."""
    row_number = (m.to(tl.uint32) // Q).to(tl.int32)  # of the output's row among the rows of all images
    image = (m.to(tl.uint32) // (P * Q)).to(tl.int32)
    down, across = at // (KW * CI) * DH, at % (KW * CI)
    right, channel = at // CI % KW * DW, at % CI
    inside = (m < N * P * Q)[:, None] & (at < KH * KW * CI)[None, :]
    if UNPADDED:
        corner = (m * SW + row_number * (SH * W - SW * Q) + image * ((H - SH * P) * W)) * CI
        along = across if DW == 1 else right * CI + channel
        address = corner[:, None] + (down * W * CI + along)[None, :]
    else:
        row = ((row_number - image * P) * SH - PH)[:, None] + down[None, :]
        column = ((m - row_number * Q) * SW - PW)[:, None] + right[None, :]
        if UH > 1 or UW > 1:
            inside = inside & (row % UH == 0) & (column % UW == 0)
            row, column = row // UH, column // UW
        inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        address = (image * (H * W * CI))[:, None] + (row * W + column) * CI + channel[None, :]
    return tl.load(x + address, mask=inside, other=0.0)


@triton.jit
def load_weights(
    w, k, at, K: tl.constexpr, CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, FLIPPED: tl.constexpr
):  # fmt: skip
    """The weights of the terms `at` for the channels `k`: [at, k]."""
    total: tl.constexpr = KH * KW * CI
    if FLIPPED:
        weights = (at % CI * (KH * KW * K) + (KH * KW - 1 - at // CI) * K)[:, None] + k[None, :]
    else:
        weights = k[None, :] * total + at[:, None]
    return tl.load(w + weights, mask=(at < total)[:, None] & (k < K)[None, :], other=0.0)


def convolve_few_channels(
    x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, geometry: list[int], flipped: bool
) -> None:
    """Write the result of `convolve` into `y`, for any number of channels."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = y.shape[4]
    t = few_channel_tiles(x.dtype, kh * kw * ci, k)
    columns, tiles = triton.cdiv(k, t["BN"]), triton.cdiv(n * p * q, t["BM"])
    programs = min(tiles, max(1, t.pop("PROGRAMS") // (clients * columns)))
    _convolve_few_channels[(programs, columns, clients)](
        x, w, w if bias is None else bias, y, n, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        UNPADDED=not ph and not pw and uh == uw == 1, FLIPPED=flipped, BIAS=bias is not None, **t,
    )  # fmt: skip
