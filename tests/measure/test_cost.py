"""The mean price of a round."""

import pytest

from kedge.measure.cost.cost import relative_cost


def test_the_relative_cost_of_stages_is_the_mean_price_of_their_rounds() -> None:
    assert relative_cost([750, 250], [1.5, 1.0]) == 1.375
    assert relative_cost([10], [2.0]) == 2.0
    assert relative_cost([0, 4], [9.0, 1.0]) == 1.0


def test_every_stage_needs_a_price() -> None:
    with pytest.raises(ValueError, match="zip"):
        relative_cost([1, 2], [1.0])
