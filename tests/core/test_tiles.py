"""Which places of a window an output sees, and when rows of outputs are cut apart."""

import pytest
import torch
from torch.nn import functional as F

from kedge.core.tiles import power_of_two, row_by_row, seen, seen_places

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
    found = seen_places(size, window, stride, 1, padding, dilation, len(out))
    for value, places in zip(out, found, strict=True):
        (touched,) = torch.autograd.grad(value, kernel, retain_graph=True)
        assert [r for r in range(window) if touched[0, 0, r] != 0] == list(places)
    assert seen(found) == range(min(p.start for p in found), max(p.stop for p in found))


def test_an_image_no_window_reaches_has_one_place_for_form() -> None:
    assert seen([range(0), range(0)]) == range(1)


def test_rows_are_cut_apart_where_they_see_less_and_fill_their_tiles() -> None:
    full = seen_places(10, 5, 1, 1, 4, 1, 14)  # one to five places
    assert row_by_row(full, 50, 14, 128)
    assert not row_by_row(full, 1, 14, 128)  # fourteen tiles with fourteen outputs each
    assert not row_by_row(seen_places(14, 5, 1, 1, 0, 1, 10), 50, 10, 64)  # all see all


@pytest.mark.parametrize(("least", "found"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_powers(least: int, found: int) -> None:
    assert power_of_two(least) == found
