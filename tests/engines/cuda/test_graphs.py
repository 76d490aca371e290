"""`copy_into` copies values to the fixed addresses that graphs read."""

from typing import Any

import torch

from kedge.engines.cuda.graphs import copy_into


def test_values_are_put_by_name_whatever_their_order_layout_and_kind() -> None:
    places: Any = (
        {"a": torch.zeros(2), "n": {"b": torch.zeros(3, dtype=torch.int64), "c": torch.zeros(2, 3)}},
        None,
        [torch.zeros(1)],
    )
    turned = torch.arange(6.0).view(3, 2).T
    values = (
        {"n": {"c": turned, "b": torch.tensor([1, 2, 3])}, "a": torch.ones(2)},
        None,
        [torch.full((1,), 7.0, dtype=torch.float64)],
    )
    held = places[0]["n"]["c"]
    copy_into(places, values)
    assert places[0]["a"].tolist() == [1, 1]
    assert places[0]["n"]["b"].tolist() == [1, 2, 3]
    assert held.tolist() == turned.tolist()
    assert held.is_contiguous()
    assert places[2][0].tolist() == [7]


def test_nothing_is_put_where_there_is_nothing() -> None:
    copy_into(({}, None), ({}, None))
