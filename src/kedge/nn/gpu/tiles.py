"""Block sizes of the Triton programs. They depend on shapes only, so that every run sums in the same order.

The numbers were tuned on an H200, with the standard CNN and 1 to 100 clients. In each dict of block sizes, a
program computes BM × BN values of the result (one block, or tile), and adds up BK or BR terms in each step of
its loop.
"""

import torch

MULTIPROCESSORS = 132  # streaming multiprocessors of an H200
SHARED_MEMORY = 200_000  # bytes of shared memory of a multiprocessor


def convolve_tiles(dtype: torch.dtype, clients: int, rows: int, channels: int, out: int) -> dict[str, int]:
    """Block sizes of `convolve`: large tiles reread fewer values, but each multiprocessor must get a tile."""

    def programs(high: int, columns: int) -> int:
        return clients * ceil_div(rows, high) * ceil_div(out, columns)

    whole = 128 // dtype.itemsize  # terms of a step that fill a memory transaction of 128 bytes
    columns = max(16, min(128, next_power_of_two(out)))
    if columns == 128 and programs(64, 128) < MULTIPROCESSORS // 2:
        columns = 64
    if out % 256 == 0 and programs(128, 256) >= 1.8 * MULTIPROCESSORS:
        columns = 256
    few = programs(64, columns) <= 1.2 * MULTIPROCESSORS
    sizes = (2 * whole, whole, whole // 2, 16) if few else (whole, whole // 2, 16)
    inner = next(size for size in sizes if channels % size == 0)
    high = 128 if columns == 256 or programs(128, columns) >= 3 * MULTIPROCESSORS else 64
    stage = (high + columns) * inner * dtype.itemsize  # bytes of shared memory for a pipeline stage
    return {
        "BM": high,
        "BN": columns,
        "BK": inner,
        "num_warps": 8 if high * columns > 8192 else 4,
        "num_stages": max(
            1, min(3 if few or columns > 64 or dtype == torch.bfloat16 else 4, SHARED_MEMORY // stage)
        ),
    }


def few_channel_tiles(dtype: torch.dtype, terms: int, out: int) -> dict[str, int]:
    """Block sizes of `convolve_few_channels`; PROGRAMS is the number of programs to aim at."""
    half = dtype == torch.bfloat16
    return {
        "BM": 64,
        "BN": max(16, min(128, next_power_of_two(out))),
        "BK": max(16, min(128 if half else 32, next_power_of_two(terms))),
        "PROGRAMS": 5 * MULTIPROCESSORS if half else 1 << 20,
        "num_warps": 4,
        "num_stages": 1 if half else 3,
    }


def convolve_pool_tiles(dtype: torch.dtype, clients: int, terms: int, out: int) -> dict[str, int]:
    """Block sizes of `convolve_pool`: four outputs at once, and two programs for each multiprocessor."""
    t, columns = few_channel_tiles(dtype, terms, out), max(16, min(64, next_power_of_two(out)))
    each, aim = clients * ceil_div(out, columns), 2 * MULTIPROCESSORS
    return {**t, "BN": columns, "PROGRAMS": aim if aim // each * each >= 0.9 * aim else t["PROGRAMS"]}


def pooled_weight_gradient_tiles(dtype: torch.dtype, total: int, out: int) -> dict[str, int]:
    """Block sizes of `pooled_weight_gradient`; one of its rows is two rows of `weight_gradient`."""
    t = weight_gradient_tiles(dtype, total, out)
    return {**t, "BR": t["BR"] // 2, "num_warps": 8}


def weight_gradient_tiles(dtype: torch.dtype, total: int, out: int) -> dict[str, int]:
    """Block sizes of `weight_gradient`."""
    half = dtype == torch.bfloat16
    wide = max(16, min(128 if half or total <= 128 else 64, next_power_of_two(out)))
    square = wide == 128 and total <= 128
    high = max(
        16, min(64 if wide == 128 and not square else 128 if wide > 16 else 256, next_power_of_two(total))
    )
    return {
        "BM": high,
        "BN": wide,
        "BR": 64 if half else 32,
        "num_warps": 4,
        "num_stages": 3,
    }


def split_k(t: dict[str, int], dtype: torch.dtype, rows: int, tiles: int) -> tuple[int, int]:
    """Split-K of the weight gradient: the number of parts of its sum over `rows`, and the rows of a part.

    A part has `tiles` tiles of the block sizes `t`, and each tile is one program. The number of parts is such
    that all multiprocessors get about the same number of programs. This number is one if parts are short or,
    in bfloat16, if there is only one part or programs are large; otherwise it is two or four.
    """
    count = 1
    for aim in (MULTIPROCESSORS, 2 * MULTIPROCESSORS, 4 * MULTIPROCESSORS):
        count = max(1, min(ceil_div(rows, 4 * t["BR"]), aim // tiles))
        large = dtype == torch.bfloat16 and (count == 1 or t["num_warps"] > 4)
        enough = aim > MULTIPROCESSORS or large or ceil_div(rows, count) <= 10 * t["BR"]
        if count * tiles >= 0.9 * aim and enough:
            break
    each = ceil_div(ceil_div(rows, count), t["BR"]) * t["BR"]
    return ceil_div(rows, each), each


def sum_tiles(count: int) -> dict[str, int]:
    """Block sizes of `sum_parts` for `count` parts: 32 values a thread, to have many loads in flight."""
    rows = next_power_of_two(count)
    return {"ROWS": rows, "BLOCK": max(32, 4096 // rows), "num_warps": 4}


def pool_tiles(channels: int) -> dict[str, int]:
    """Block sizes of `pool` and `unpool`."""
    columns = min(128, next_power_of_two(channels))
    return {"BM": 1024 // columns, "BN": columns, "num_warps": 4}


def used_positions(  # noqa: PLR0913  # the geometry of one axis
    size: int, window: int, stride: int, upsampling: int, padding: int, dilation: int, out: int
) -> list[range]:
    """For each output, along one axis, the positions of its window from the first to the last on the image.

    The arguments are the entries of a geometry for one axis; `size` is the image's size.
    """
    last = (size - 1) * upsampling
    found = []
    for p in range(out):
        inside = [r for r in range(window) if 0 <= p * stride + r * dilation - padding <= last]
        found.append(range(inside[0], inside[-1] + 1) if inside else range(0))
    return found


def position_range(positions: list[range]) -> range:
    """The smallest range with the `used_positions` of all outputs; range(1) if no window meets the image."""
    used = [own for own in positions if own]
    return range(min(own.start for own in used), max(own.stop for own in used)) if used else range(1)


def is_unpadded(size: int, window: int, stride: int, padding: int, dilation: int, out: int) -> bool:
    """Whether all windows are inside the image, along one axis."""
    return padding <= 0 and (out - 1) * stride + (window - 1) * dilation - padding < size


def tile_layout(down: list[range], across: list[range], images: int, high: int) -> tuple[bool, int, int]:
    """The division of outputs into tiles of `high` outputs: (by_row, left, middle), see `_convolve`.

    `down` and `across` are the `used_positions` of rows and columns. If `by_row`, a tile has outputs of one
    row only, and skips the window's positions that this row does not use. The `middle` columns after the
    first `left` use all positions and share tiles; each other column has tiles of its own, which skip the
    positions that it does not use. The division with the least work is chosen: tiles times positions.
    """
    wide, every = len(across), len(position_range(across))
    full = [q for q, own in enumerate(across) if own == position_range(across)]
    rows = sum(map(len, down))
    work = {
        (False, 0, wide): ceil_div(images * len(down) * wide, high) * len(position_range(down)) * every,
        (True, 0, wide): rows * ceil_div(images * wide, high) * every,
    }
    if len(full) < wide:
        sides = ceil_div(images, high) * sum(len(own) for own in across if own != position_range(across))
        shared = ceil_div(images * len(full), high) * every
        work[True, full[0] if full else wide, len(full)] = rows * (shared + sides)
    return min(work, key=work.__getitem__)


def ceil_div(whole: int, part: int) -> int:
    """`whole` / `part`, rounded up."""
    return -(-whole // part)


def next_power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`."""
    return 1 << (least - 1).bit_length()
