"""The positions of a window that an output uses, the division of outputs into tiles, and block sizes."""

import pytest
import torch
from torch.nn import functional as F

from kedge.nn.gpu.tiles import (
    MULTIPROCESSORS,
    SHARED_MEMORY,
    ceil_div,
    convolve_pool_tiles,
    convolve_tiles,
    few_channel_tiles,
    is_unpadded,
    next_power_of_two,
    pooled_weight_gradient_tiles,
    position_range,
    split_k,
    tile_layout,
    used_positions,
    weight_gradient_tiles,
)

CASES = {  # size, window, stride, padding, dilation
    "whole": (14, 5, 1, 0, 1),
    "full": (10, 5, 1, 4, 1),
    "same": (8, 3, 1, 1, 1),
    "halving": (7, 3, 2, 1, 1),
    "one place": (1, 3, 1, 1, 1),
    "dilated": (9, 3, 2, 2, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_places_seen_are_those_through_which_an_output_depends_on_the_image(case: str) -> None:
    size, window, stride, padding, dilation = CASES[case]
    kernel = torch.ones(1, 1, window, requires_grad=True)
    out = F.conv1d(torch.ones(1, 1, size), kernel, None, stride, padding, dilation)[0, 0]
    found = used_positions(size, window, stride, 1, padding, dilation, len(out))
    for value, places in zip(out, found, strict=True):
        (touched,) = torch.autograd.grad(value, kernel, retain_graph=True)
        assert [r for r in range(window) if touched[0, 0, r] != 0] == list(places)
    assert position_range(found) == range(min(p.start for p in found), max(p.stop for p in found))


def test_an_image_no_window_reaches_has_one_place_for_form() -> None:
    assert position_range([range(0), range(0)]) == range(1)


@pytest.mark.parametrize("case", CASES)
def test_no_window_reaches_beyond_the_image_where_none_sees_padding(case: str) -> None:
    size, window, stride, padding, dilation = CASES[case]
    out = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    ends = [p * stride - padding + r * dilation for p in range(out) for r in (0, window - 1)]
    assert is_unpadded(size, window, stride, padding, dilation, out) == (min(ends) >= 0 and max(ends) < size)
    assert not is_unpadded(3, 2, 1, 0, 2, 2)  # the second of two windows of places 0 and 2
    assert is_unpadded(3, 1, 1, -2, 2, 1)


def test_rows_are_cut_apart_where_they_see_less_and_fill_their_tiles() -> None:
    full = used_positions(10, 5, 1, 1, 4, 1, 14)  # one to five places
    assert tile_layout(full, full, 50, 128) == (True, 0, 14)
    assert tile_layout(full, full, 1, 128) == (False, 0, 14)  # fourteen tiles with fourteen outputs each
    every = used_positions(14, 5, 1, 1, 0, 1, 10)
    assert tile_layout(every, every, 50, 64) == (False, 0, 10)  # all see all


def test_columns_at_the_sides_have_tiles_of_their_own_where_they_fill_them() -> None:
    full = used_positions(10, 5, 1, 1, 4, 1, 14)
    assert tile_layout(full, full, 50, 64) == (True, 4, 6)  # 5 · 5 + 2 · (1 + 2 + 3 + 4) for 11 · 5
    assert tile_layout(full, full, 60, 64) == (True, 4, 6)
    assert tile_layout(full, full, 20, 64) == (True, 0, 14)  # those would be all but empty
    small = used_positions(2, 3, 1, 1, 1, 1, 2)  # no output sees all three places
    assert tile_layout(small, small, 50, 64) == (True, 2, 0)
    assert tile_layout(small, small, 10, 64) == (False, 0, 2)


@pytest.mark.parametrize(("least", "found"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_powers(least: int, found: int) -> None:
    assert next_power_of_two(least) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clients", [1, 4, 10, 100])
@pytest.mark.parametrize(
    ("rows", "channels", "out"),
    [
        (5000, 64, 64),
        (9800, 64, 64),
        (51200, 64, 64),
        (3200, 256, 256),
        (800, 512, 512),
        (51200, 16, 16),
        (1, 48, 10),
    ],
)
def test_tiles_fit_a_processor_and_divide_the_channels(
    rows: int, channels: int, out: int, clients: int, dtype: torch.dtype
) -> None:
    t = convolve_tiles(dtype, clients, rows, channels, out)
    assert channels % t["BK"] == 0
    assert t["num_stages"] * (t["BM"] + t["BN"]) * t["BK"] * dtype.itemsize <= SHARED_MEMORY
    assert t["BM"] * t["BN"] <= 128 * 32 * t["num_warps"]  # at most 128 sums for each thread


def test_tiles_grow_with_the_work_and_never_leave_processors_idle_for_it() -> None:
    few, many = (convolve_tiles(torch.bfloat16, clients, 3200, 256, 256) for clients in (1, 100))
    assert (few["BM"], few["BN"]) < (many["BM"], many["BN"])
    assert ceil_div(3200, few["BM"]) * ceil_div(256, few["BN"]) >= MULTIPROCESSORS // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tiles", [1, 4, 10, 13, 52, 100, 130, 5000])
def test_parts_of_a_sum_over_rows_give_every_processor_about_the_same(dtype: torch.dtype, tiles: int) -> None:
    t = {"BR": 32, "num_warps": 4}
    count, each = split_k(t, dtype, 39200, tiles)
    assert each % t["BR"] == 0
    assert (count - 1) * each < 39200 <= count * each  # all rows, and no part without one
    if tiles < MULTIPROCESSORS:
        share = count * tiles / MULTIPROCESSORS
        assert share / -(-share // 1) >= 0.9


def test_first_layers_sum_for_four_outputs_with_the_room_of_one() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for clients in (1, 100):
            t = convolve_pool_tiles(dtype, clients, 120, 64)
            assert 4 * t["BM"] * t["BN"] <= 128 * 32 * t["num_warps"]
        assert few_channel_tiles(dtype, 27, 64)["BK"] == 32
        assert (
            2 * pooled_weight_gradient_tiles(dtype, 120, 128)["BR"]
            == weight_gradient_tiles(dtype, 120, 128)["BR"]
        )
