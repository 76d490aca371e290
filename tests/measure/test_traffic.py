"""Bytes of a round: tensors of leaves that train, and tensors that belong to no leaf."""

import pytest
import torch

from kedge.core.model import Statistics
from kedge.measure.cost.traffic import Traffic, tensor_bytes

LEAVES = {"body.weight": torch.zeros(3, 4), "head.weight": torch.zeros(2, dtype=torch.float64)}
BROADCAST = {"control": {"c": {"head.weight": torch.zeros(2)}}, "centroids": {"mean": torch.zeros(5)}}
BUFFERS = {"norm.running_mean": torch.zeros(7)}


def traffic(statistics: Statistics = "shared") -> Traffic:
    return Traffic(
        frozenset(LEAVES), {"anchor": LEAVES, "broadcast": BROADCAST}, {"delta": LEAVES}, BUFFERS, statistics
    )


def test_every_tensor_counts_in_its_own_precision() -> None:
    assert tensor_bytes({"a": LEAVES, "b": BROADCAST}) == {
        "a/body.weight": 48, "a/head.weight": 16, "b/control/c/head.weight": 8, "b/centroids/mean": 20,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trained", "down", "up"),
    [
        ({"body.weight", "head.weight"}, 48 + 16 + 8 + 20 + 28, 48 + 16 + 28),
        ({"body.weight"}, 48 + 20 + 28, 48 + 28),
        ({"head.weight"}, 16 + 8 + 20 + 28, 16 + 28),
        (set(), 20 + 28, 28),
    ],
)
def test_what_is_about_a_leaf_that_rests_is_not_sent(trained: set[str], down: int, up: int) -> None:
    assert traffic().bytes_down(frozenset(trained)) == down
    assert traffic().bytes_up(frozenset(trained)) == up


@pytest.mark.parametrize(
    ("statistics", "first", "later", "up"),
    [("shared", 28, 28, 28), ("local", 28, 0, 28), ("frozen", 0, 0, 0)],
)
def test_statistics(statistics: Statistics, first: int, later: int, up: int) -> None:
    nothing = frozenset[str]()
    own = traffic(statistics)
    assert (own.bytes_down(nothing, True), own.bytes_down(nothing), own.bytes_up(nothing)) == (
        20 + first, 20 + later, up,
    )  # fmt: skip
