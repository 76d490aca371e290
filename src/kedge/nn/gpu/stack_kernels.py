"""Convolutions of many clients at once, each with its own weights, as a Triton program (CUDA only).

A client's convolution is a matrix product: windows of its images times its weights. The program reads the
windows from the images and never writes them to memory (implicit GEMM). operators.py describes the layouts.
The order of every sum is fixed, so the same call gives the same bits.
"""

from functools import cache
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from kedge.nn.gpu.few_channel_kernels import convolve_few_channels
from kedge.nn.gpu.operators import out_channels
from kedge.nn.gpu.tiles import convolve_tiles, position_range, tile_layout, used_positions
from kedge.nn.gpu.weight_gradient_kernels import weight_gradient


@triton.jit
def _convolve(
    x, w, bias, y, N,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    CI: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr, FLIPPED: tl.constexpr, BIAS: tl.constexpr,
    FIRST_ROW: tl.constexpr, FIRST_COLUMN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BY_ROW: tl.constexpr, LEFT: tl.constexpr, MIDDLE: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[n, p, q, k] = Σ x[n, p·SH + r·DH − PH, q·SW + s·DW − PW, c] · w[k, r, s, c], for each client.

    N images of H × W pixels and CI channels give outputs of P × Q pixels and K channels; the window has
    KH × KW positions (r, s). S is the stride, P the padding, D the dilation, each for height and width. U is
    the upsampling: x is read as if U − 1 zeros were between neighboring pixels. A tile has BM outputs
    (n, p, q) and BN channels.

    UNPADDED: every window is inside the image, and U is 1.
    FLIPPED: the weights are stored as [c, −r, −s, k].
    FIRST_ROW, FIRST_COLUMN, ROWS, COLUMNS: the sum runs over these positions of the window; the others only
    meet padding.
    BY_ROW: a tile has outputs of one row p only, and skips rows of the window that are outside the image.
    MIDDLE: the number of columns q, after the first LEFT, whose windows use all COLUMNS and share tiles. Each
    other column has tiles of its own, which skip columns of the window that are outside the image.
    With upsampling, a tile has every U-th output only, and the sum runs over every STEP-th position: the
    positions between them meet zeros.
    """
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    if UH > 1 or UW > 1:
        down, right = tl.program_id(0) % (UH * UW) // UW, tl.program_id(0) % UW
        m = tl.program_id(0) // (UH * UW) * BM + tl.arange(0, BM)
        high: tl.constexpr = (P + UH - 1) // UH
        wide: tl.constexpr = (Q + UW - 1) // UW
        image, i, j = m // (high * wide), m % (high * wide) // wide, m % wide
        p, q = i * UH + down, j * UW + right
        valid = (image < N) & (p < P) & (q < Q)
        m = (image * P + p) * Q + q
        first_row = first_aligned_position(down - PH, KH, UH, DH)
        first_column = first_aligned_position(right - PW, KW, UW, DW)
        rows, columns = (KH - first_row + STEP_H - 1) // STEP_H, (KW - first_column + STEP_W - 1) // STEP_W
        top, left = i + (down - PH + first_row * DH) // UH, j + (right - PW + first_column * DW) // UW
    else:
        first_column, columns = FIRST_COLUMN, COLUMNS
        if BY_ROW:
            middle_tiles, side_tiles = tl.cdiv(N * MIDDLE, BM), tl.cdiv(N, BM)
            tiles = middle_tiles + (Q - MIDDLE) * side_tiles
            p, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
            if MIDDLE < Q:
                side_tile = tl.maximum(tile - middle_tiles, 0)
                is_side = tile >= middle_tiles
                side_column = side_tile // side_tiles
                side_column += tl.where(side_column < LEFT, 0, MIDDLE)
                m = tl.where(is_side, side_tile % side_tiles, tile) * BM + tl.arange(0, BM)
                image = tl.where(is_side, m, m // (MIDDLE + (MIDDLE == 0)))
                q = tl.where(is_side, side_column, LEFT + m % (MIDDLE + (MIDDLE == 0)))
                edge_column = side_column * SW - PW
                first_column = tl.where(
                    is_side, tl.maximum((DW - 1 - edge_column) // DW, FIRST_COLUMN), FIRST_COLUMN
                )
                end_column = tl.minimum(tl.maximum(W - 1 - edge_column + DW, 0) // DW, FIRST_COLUMN + COLUMNS)
                columns = tl.where(is_side, end_column, FIRST_COLUMN + COLUMNS) - first_column
            else:
                m = tile * BM + tl.arange(0, BM)
                image, q = m // Q, m % Q
            valid = image < N
            m = (image * P + p) * Q + q
            edge_row = p * SH - PH
            first_row = tl.maximum((DH - 1 - edge_row) // DH, FIRST_ROW)
            rows = tl.minimum(tl.maximum(H - 1 - edge_row + DH, 0) // DH, FIRST_ROW + ROWS) - first_row
            top = q * 0 + edge_row + first_row * DH
        else:
            m = tl.program_id(0) * BM + tl.arange(0, BM)
            valid = m < N * P * Q
            image, q = m // (P * Q), m % Q
            first_row, rows = FIRST_ROW, ROWS
            top = (m % (P * Q) // Q) * SH - PH + FIRST_ROW * DH
        left = q * SW - PW + first_column * DW
    corner = image * (H * W * CI) + (top * W + left) * CI  # address of the window's first needed value
    total: tl.constexpr = KH * KW * CI
    x += client * N * H * W * CI
    w += client * total * K
    out = tl.zeros((BM, BN), dtype=tl.float32)
    inner = tl.arange(0, BK)
    in_range = (k < K)[None, :]
    # A step adds BK channels of one position of the window. Its row is position // columns, computed as
    # position · reciprocal / 2^16, which is exact for small windows.
    reciprocal = 65536 // tl.maximum(columns, 1) + 1
    for start in range(0, rows * columns * CI, BK):
        position = start // CI
        down = (position * reciprocal) >> 16 if KH * KW * KW < 65536 else position // columns
        right = position - down * columns
        window = (first_row + down * STEP_H) * KW + first_column + right * STEP_W
        channel = tl.multiple_of(start % CI, BK)  # Triton 3.6 would read single values otherwise
        row, column = top + down * (DH * STEP_H // UH), left + right * (DW * STEP_W // UW)
        address = corner + (down * (DH * STEP_H // UH) * W + right * (DW * STEP_W // UW)) * CI
        inside = valid
        if not UNPADDED and MIDDLE == Q:
            inside = inside & (column >= 0) & (column < W)
            if not BY_ROW:
                inside = inside & (row >= 0) & (row < H)
        a = tl.load(x + (address[:, None] + inner[None, :] + channel), mask=inside[:, None], other=0.0)
        if FLIPPED:
            weights = inner[:, None] * (KH * KW * K) + k[None, :]
            weights += channel * (KH * KW * K) + (KH * KW - 1 - window) * K
        else:
            weights = k[None, :] * total + inner[:, None] + (window * CI + channel)
        b = tl.load(w + weights, mask=in_range, other=0.0)
        out = tl.dot(a, b, out, input_precision="tf32")
    if BIAS:
        out += tl.load(bias + client * K + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
    y += client * N * P * Q * K
    tl.store(y + m[:, None] * K + k[None, :], out.to(y.dtype.element_ty), mask=valid[:, None] & in_range)


@triton.jit
def first_aligned_position(start, SIZE: tl.constexpr, U: tl.constexpr, D: tl.constexpr):
    """The first position of a window at `start` that meets a pixel of the upsampled image; SIZE if none."""
    first = SIZE
    for number in tl.static_range(U):
        position = U - 1 - number
        first = tl.where((start + position * D) % U == 0, position, first)
    return first


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], flipped: bool) -> Tensor:
    """The convolution of images [C, N, H, W, c] for all clients: [C, N, P, Q, k].

    With `flipped`, the weights of a forward pass serve its backward pass without a copy.
    """
    y = empty_output(x, w, geometry, flipped)
    convolve_into(y, x, w, bias, geometry, flipped)
    return y


def empty_output(x: Tensor, w: Tensor, geometry: list[int], flipped: bool) -> Tensor:
    """Memory for the result of `convolve`."""
    k = out_channels(w.shape, geometry, flipped)
    return torch.empty((*x.shape[:2], *geometry[-2:], k), dtype=x.dtype, device=x.device)


def convolve_into(
    y: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, geometry: list[int], flipped: bool
) -> None:
    """Write the result of `convolve` into `y`."""
    kh, kw, sh, sw, uh, uw, ph, pw, dh, dw, p, q = geometry
    clients, n, h, width, ci = x.shape
    k = y.shape[4]
    if ci % 16:
        convolve_few_channels(x, w, bias, y, geometry, flipped)
        return
    unpadded = not ph and not pw and uh == uw == 1
    down, across = used_positions(h, kh, sh, uh, ph, dh, p), used_positions(width, kw, sw, uw, pw, dw, q)
    t = convolve_tiles(x.dtype, clients, n * p * q, ci, k)
    by_row, left, middle = tile_layout(down, across, n, t["BM"]) if uh == uw == 1 else (False, 0, q)
    rows, columns = position_range(down), position_range(across)
    if uh > 1 or uw > 1:
        tiles = uh * uw * triton.cdiv(n * triton.cdiv(p, uh) * triton.cdiv(q, uw), t["BM"])
    else:
        tiles_of_row = triton.cdiv(n * middle, t["BM"]) + (q - middle) * triton.cdiv(n, t["BM"])
        tiles = p * tiles_of_row if by_row else triton.cdiv(n * p * q, t["BM"])
    _convolve[(tiles, triton.cdiv(k, t["BN"]), clients)](
        x, w, w if bias is None else bias, y, n, H=h, W=width, P=p, Q=q, K=k,
        CI=ci, KH=kh, KW=kw, SH=sh, SW=sw, UH=uh, UW=uw, PH=ph, PW=pw, DH=dh, DW=dw,
        UNPADDED=unpadded, FLIPPED=flipped, BIAS=bias is not None,
        FIRST_ROW=rows.start, FIRST_COLUMN=columns.start, ROWS=len(rows), COLUMNS=len(columns),
        BY_ROW=by_row, LEFT=left, MIDDLE=middle,
        STEP_H=uh // gcd(uh, dh), STEP_W=uw // gcd(uw, dw), **t,
    )  # fmt: skip


def gradients(
    x: Tensor, w: Tensor, g: Tensor, geometry: list[int], back: list[int], flipped: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution by its input and by its weights, computed on two streams at once.

    `geometry` is that of the convolution, `back` that of the convolution that gives the input gradient.
    The weight gradient is launched first and on the current stream, because it needs two programs one after
    the other. All memory is allocated on the current stream. `dx` is allocated before the weight gradient is
    launched: memory that `weight_gradient` frees may still be in use by its programs.
    """
    current = torch.cuda.current_stream()
    side = side_stream(current.cuda_stream)
    dx = empty_output(g, w, back, flipped)
    side.wait_stream(current)  # until all work that used this memory before is finished
    dw = weight_gradient(x, g, geometry)
    with torch.cuda.stream(side):
        convolve_into(dx, g, w, None, back, flipped)
    current.wait_stream(side)
    return dx, dw


@cache
def side_stream(stream: int) -> torch.cuda.Stream:
    """The second stream that runs beside the stream with the handle `stream`."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
