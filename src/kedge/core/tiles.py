"""How the Triton programs cut their work: fixed by shapes, so that every run sums alike.

The numbers are from trials on an H200 with the standard CNN, one to a hundred clients.
"""

import torch

PROGRAMS = 528  # four to each of a large GPU's processors
SHARED = 200_000  # bytes of a processor's shared memory


def convolve_tiles(
    dtype: torch.dtype,
    clients: int,
    rows: int,
    channels: int,
    windows: int,
    out: int,
    whole: bool,
    apart: bool,
) -> dict[str, int]:
    """How `convolve` cuts its work; `whole`: no window reaches beyond its image; `apart`: row by row."""
    half = dtype == torch.bfloat16
    columns = max(16, min(64, power_of_two(out)))
    tiles = clients * parts(out, columns)
    many, some = (tiles * parts(rows, high) >= PROGRAMS for high in (128, 64))
    wide = not half and channels % 64 == 0 and (many or (rows >= 512 and not whole))
    deep = many or not whole or not some if half else wide and not whole
    inner = next((b for b in ((64, 32, 16) if deep else (32, 16)) if channels % b == 0), None)
    inner = inner or max(16, min(128, power_of_two(windows * channels)))
    high = 256 if wide and whole else 128 if wide or (many and not apart) else 64
    held = (high + columns) * inner * dtype.itemsize  # bytes that a stage keeps close by
    return {
        "BM": high,
        "BN": columns,
        "BK": inner,
        "num_warps": 8 if wide else 4,
        "num_stages": max(1, min(3 if some or half or not whole else 2, SHARED // held)),
    }


def weigh_tiles(dtype: torch.dtype, clients: int, rows: int, total: int, out: int) -> dict[str, int]:
    """How `weigh` cuts its work; PROGRAMS is how many it aims at."""
    half = dtype == torch.bfloat16
    flat = half and out >= 128
    high = max(16, min(64 if flat else 128, power_of_two(total)))
    wide = 128 if flat else max(16, min(64, power_of_two(out)))
    programs = PROGRAMS // 2
    each = rows * clients * parts(total, high) * parts(out, wide) // programs  # rows of a program
    short = total % 16 and each < 768
    return {
        "BM": high,
        "BN": wide,
        "BR": 64 if half and not flat and not short else 32,
        "PROGRAMS": programs,
        "num_warps": 4,
        "num_stages": 3,
    }


def pool_tiles(channels: int) -> dict[str, int]:
    """How `pool` and `unpool` cut their work."""
    columns = min(128, power_of_two(channels))
    return {"BM": 1024 // columns, "BN": columns, "num_warps": 4}


def seen_places(
    size: int, window: int, stride: int, spread: int, padding: int, dilation: int, out: int
) -> list[range]:
    """For each output the places of its window from the first to the last that lies on the image."""
    last = (size - 1) * spread
    found = []
    for p in range(out):
        inside = [r for r in range(window) if 0 <= p * stride + r * dilation - padding <= last]
        found.append(range(inside[0], inside[-1] + 1) if inside else range(0))
    return found


def seen(places: list[range]) -> range:
    """The places that some output sees; a 3×3 window on 1×1 has only one."""
    some = [one for one in places if one]
    return range(min(one.start for one in some), max(one.stop for one in some)) if some else range(1)


def row_by_row(places: list[range], images: int, width: int, high: int) -> bool:
    """Whether tiles of one row of outputs each, which skip the places that row does not see, do less work."""
    apart = sum(map(len, places)) * parts(images * width, high)
    return apart < len(seen(places)) * parts(images * width * len(places), high)


def parts(whole: int, part: int) -> int:
    """How many it takes."""
    return -(-whole // part)


def power_of_two(least: int) -> int:
    """The next power of two."""
    return 1 << (least - 1).bit_length()
