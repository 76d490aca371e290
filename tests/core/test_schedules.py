"""Schedules: which units train in which step."""

from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.algorithms.fedbug import BottomUp
from kedge.algorithms.layer_expansion import Thaw
from kedge.algorithms.top_down import TopDown
from kedge.core.errors import RequestError
from kedge.core.schedules import Clock, FixLast, all_units


def opened(ratio: float, units: int, steps: int) -> list[int]:
    """The number of trainable units in each step."""
    masks = [BottomUp(ratio)(Clock(0, 0, step, steps), units) for step in range(steps)]
    assert all(mask == tuple(sorted(mask, reverse=True)) for mask in masks)
    return [sum(mask) for mask in masks]


def test_all_units_always_train() -> None:
    assert all_units(Clock(3, 1, 0, 5), 4) == (True,) * 4


def test_the_papers_sequence() -> None:
    assert opened(0.4, 5, 20) == [1, 2, 2, 3, 4, 4] + [5] * 14


def test_ratio_zero_opens_everything_at_once() -> None:
    assert opened(0.0, 5, 7) == [5] * 7


def test_the_ceiling_is_exact() -> None:
    """35·5/(0.7·250) is 1; in floating point it is a little more, and a unit would open a step early."""
    assert ceil(35 * 5 / 0.7 / 250) == 2
    assert opened(0.7, 5, 250)[34] == 1


PERCENT = st.integers(1, 100)


@given(PERCENT, st.integers(1, 12), st.integers(1, 60))
def test_units_open_as_the_formula_says(percent: int, units: int, steps: int) -> None:
    """min(M, ⌈kM/(PK)⌉), P in whole percent, so that the formula is exact in whole numbers."""
    want = [min(units, -(-k * units * 100 // (percent * steps))) for k in range(1, steps + 1)]
    assert opened(percent / 100, units, steps) == want


@given(PERCENT, st.integers(1, 12), st.integers(1, 60))
def test_units_open_from_the_input_side_never_close_and_all_train_in_the_end(
    percent: int, units: int, steps: int
) -> None:
    sequence = opened(percent / 100, units, steps)
    assert sequence == sorted(sequence)
    assert sequence[0] >= 1
    assert sequence[-1] == units
    thaw = Fraction(percent, 100) * steps
    assert all(n == units for k, n in enumerate(sequence, 1) if k >= thaw)


def test_a_ratio_of_small_decimals_is_taken_as_written() -> None:
    assert opened(0.1, 5, 50)[:5] == [1, 2, 3, 4, 5]
    assert opened(1e-9, 5, 50) == [5] * 50


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(RequestError, match="0 ≤ ratio ≤ 1"):
        BottomUp(ratio)


@given(PERCENT, st.integers(1, 12), st.integers(1, 60))
def test_top_down_is_bottom_up_seen_from_the_output_side(percent: int, units: int, steps: int) -> None:
    for step in range(steps):
        clock = Clock(0, 0, step, steps)
        assert TopDown(percent / 100)(clock, units) == BottomUp(percent / 100)(clock, units)[::-1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).map(sorted), st.booleans())
def test_thawed_units_never_freeze_again_and_the_head_always_trains(thaw: list[int], strict: bool) -> None:
    masks = [Thaw(tuple(thaw), False, strict)(Clock(round, 0, 0, 1), len(thaw) + 1) for round in range(11)]
    assert all(mask[-1] for mask in masks)
    assert all(before <= after for a, b in pairwise(masks) for before, after in zip(a, b, strict=True))
    assert all(masks[-1])
    first = [[mask[unit] for mask in masks].index(True) + 1 for unit in range(len(thaw))]
    assert first == [max(1, t + strict) for t in thaw]


def test_fixed_units_never_train() -> None:
    assert FixLast(2)(Clock(5, 0, 3, 9), 4) == (True, True, False, False)
    with pytest.raises(RequestError, match="at least 1"):
        FixLast(0)
