"""How the Triton programs cut their work: fixed by shapes, so that every run sums alike.

The numbers are from trials on an H200 with the standard CNN, one to a hundred clients.
"""

import torch

PROCESSORS = 132  # of a large GPU
SHARED = 200_000  # bytes of a processor's shared memory


def convolve_tiles(dtype: torch.dtype, clients: int, rows: int, channels: int, out: int) -> dict[str, int]:
    """How `convolve` cuts its work: the larger the tiles, the less is read twice, but each must have one."""

    def programs(high: int, columns: int) -> int:
        return clients * parts(rows, high) * parts(out, columns)

    whole = 128 // dtype.itemsize  # terms of a step: as many bytes as memory is read by
    columns = max(16, min(128, power_of_two(out)))
    if columns == 128 and programs(64, 128) < PROCESSORS // 2:
        columns = 64
    if out % 256 == 0 and programs(128, 256) >= 1.8 * PROCESSORS:
        columns = 256
    few = programs(64, columns) <= 1.2 * PROCESSORS
    sizes = (2 * whole, whole, whole // 2, 16) if few else (whole, whole // 2, 16)
    inner = next(size for size in sizes if channels % size == 0)
    high = 128 if columns == 256 or programs(128, columns) >= 3 * PROCESSORS else 64
    held = (high + columns) * inner * dtype.itemsize  # bytes that a stage keeps close by
    return {
        "BM": high,
        "BN": columns,
        "BK": inner,
        "num_warps": 8 if high * columns > 8192 else 4,
        "num_stages": max(1, min(3 if few or columns > 64 or dtype == torch.bfloat16 else 4, SHARED // held)),
    }


def few_tiles(dtype: torch.dtype, terms: int, out: int) -> dict[str, int]:
    """How `convolve_few` cuts its work; PROGRAMS is how many it aims at."""
    half = dtype == torch.bfloat16
    return {
        "BM": 64,
        "BN": max(16, min(128, power_of_two(out))),
        "BK": max(16, min(128 if half else 32, power_of_two(terms))),
        "PROGRAMS": 5 * PROCESSORS if half else 1 << 20,
        "num_warps": 4,
        "num_stages": 1 if half else 3,
    }


def first_tiles(dtype: torch.dtype, clients: int, terms: int, out: int) -> dict[str, int]:
    """How `convolve_pool` cuts its work: it sums for four outputs at once; two programs fit a processor."""
    t, columns = few_tiles(dtype, terms, out), max(16, min(64, power_of_two(out)))
    each, aim = clients * parts(out, columns), 2 * PROCESSORS
    return {**t, "BN": columns, "PROGRAMS": aim if aim // each * each >= 0.9 * aim else t["PROGRAMS"]}


def weigh_first_tiles(dtype: torch.dtype, total: int, out: int) -> dict[str, int]:
    """How `weigh_pooled` cuts its work: a row of it is two of `weigh`."""
    t = weigh_tiles(dtype, total, out)
    return {**t, "BR": t["BR"] // 2, "num_warps": 8}


def weigh_tiles(dtype: torch.dtype, total: int, out: int) -> dict[str, int]:
    """How `weigh` cuts its work."""
    half = dtype == torch.bfloat16
    wide = max(16, min(128 if half or total <= 128 else 64, power_of_two(out)))
    square = wide == 128 and total <= 128
    high = max(16, min(64 if wide == 128 and not square else 128 if wide > 16 else 256, power_of_two(total)))
    return {
        "BM": high,
        "BN": wide,
        "BR": 64 if half else 32,
        "num_warps": 4,
        "num_stages": 3,
    }


def weigh_parts(t: dict[str, int], dtype: torch.dtype, rows: int, tiles: int) -> tuple[int, int]:
    """Into how many parts, of how many rows, `weigh` cuts the rows, if a part is so many tiles of `t`.

    Enough that all processors have work, and none much more than others: one program to each suffices if the
    parts are short, and in bfloat16 if there is only one part or programs are large; else two or four.
    """
    count = 1
    for aim in (PROCESSORS, 2 * PROCESSORS, 4 * PROCESSORS):
        count = max(1, min(parts(rows, 4 * t["BR"]), aim // tiles))
        large = dtype == torch.bfloat16 and (count == 1 or t["num_warps"] > 4)
        enough = aim > PROCESSORS or large or parts(rows, count) <= 10 * t["BR"]
        if count * tiles >= 0.9 * aim and enough:
            break
    each = parts(parts(rows, count), t["BR"]) * t["BR"]
    return parts(rows, each), each


def sum_tiles(count: int) -> dict[str, int]:
    """How `sum_parts` cuts its work: 32 values a thread, so that many are on their way at once."""
    rows = power_of_two(count)
    return {"ROWS": rows, "BLOCK": max(32, 4096 // rows), "num_warps": 4}


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


def within(size: int, window: int, stride: int, padding: int, dilation: int, out: int) -> bool:
    """Whether no window reaches beyond the image."""
    return padding <= 0 and (out - 1) * stride + (window - 1) * dilation - padding < size


def cut(down: list[range], across: list[range], images: int, high: int) -> tuple[bool, int, int]:
    """Whether tiles are of one row of outputs each, and which of its columns have tiles together.

    Such tiles skip places of the window that the row does not see; columns that do not see all of it may
    have tiles of their own, which skip what they do not see. The less work is taken: tiles times places.
    Columns with tiles together: how many are before them, how many they are.
    """
    wide = len(across)
    all_see = [q for q, own in enumerate(across) if own == seen(across)]
    rows = sum(map(len, down))
    whole = parts(images * len(down) * wide, high) * len(seen(down)) * len(seen(across))
    ways = {(False, 0, wide): whole, (True, 0, wide): rows * parts(images * wide, high) * len(seen(across))}
    if len(all_see) < wide:
        beside = parts(images, high) * sum(len(own) for own in across if own != seen(across))
        together = parts(images * len(all_see), high) * len(seen(across))
        ways[True, all_see[0] if all_see else wide, len(all_see)] = rows * (together + beside)
    return min(ways, key=ways.__getitem__)


def parts(whole: int, part: int) -> int:
    """How many it takes."""
    return -(-whole // part)


def power_of_two(least: int) -> int:
    """The next power of two."""
    return 1 << (least - 1).bit_length()
