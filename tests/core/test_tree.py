"""Arithmetic on trees of tensors."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kedge.core.tree import (
    Leaves,
    add,
    axpy,
    dot,
    finite,
    flatten,
    in_memory_order,
    only,
    row,
    scale,
    sqnorm,
    stack,
    sub,
    tree_foreach,
    tree_map,
    tree_to,
    unflatten,
    where,
    zeros,
)

A: Leaves = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
B: Leaves = {"b": torch.tensor([[-1.0]]), "a": torch.tensor([0.5, 4.0])}


def same(left: Leaves, right: Leaves) -> bool:
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_arithmetic_is_that_of_the_tensors() -> None:
    assert same(add(A, B), {"a": torch.tensor([1.5, 6.0]), "b": torch.tensor([[2.0]])})
    assert same(sub(A, B), {"a": torch.tensor([0.5, -2.0]), "b": torch.tensor([[4.0]])})
    assert same(scale(2.0, A), {"a": torch.tensor([2.0, 4.0]), "b": torch.tensor([[6.0]])})
    assert same(axpy(2.0, B, A), {"a": torch.tensor([2.0, 10.0]), "b": torch.tensor([[1.0]])})
    assert same(zeros(A), {"a": torch.zeros(2), "b": torch.zeros(1, 1)})


def test_dot_and_square_norm_run_over_all_leaves() -> None:
    assert float(dot(A, B)) == 1 * 0.5 + 2 * 4 - 3
    assert float(sqnorm(A)) == 1 + 4 + 9


def test_dot_does_not_depend_on_the_order_of_the_leaves() -> None:
    """A checkpoint lists tensors in another order; a resumed run must still be the same to the last bit."""
    generator = torch.Generator().manual_seed(0)
    leaves = {f"{k}": 10.0**k * torch.randn(3, generator=generator) for k in range(-6, 7)}
    backwards = dict(reversed(leaves.items()))
    assert torch.equal(sqnorm(leaves), sqnorm(backwards))


def test_a_sum_may_run_over_fewer_leaves_than_the_other_side_has() -> None:
    part = only(A, ["a"])
    assert same(sub(part, B), {"a": torch.tensor([0.5, -2.0])})
    assert float(dot(part, B)) == 8.5


def test_many_vectors_are_summed_with_the_rest() -> None:
    make = torch.Generator().manual_seed(0)
    sizes = [(), *[(n,) for n in range(1, 12)], (3, 4), (2, 3, 2, 2)]
    left, right = (
        {f"{n}": torch.randn(size, generator=make, dtype=torch.float64) for n, size in enumerate(sizes)}
        for _ in "ab"
    )
    expected = sum(float((v * right[k]).sum()) for k, v in left.items())
    assert float(dot(left, right)) == pytest.approx(expected, rel=1e-13)
    assert torch.equal(dot(left, right), dot(dict(reversed(left.items())), right))
    twice = {k: torch.stack([v, 2 * v]) for k, v in left.items()}
    rows = torch.func.vmap(dot, in_dims=(0, None))(twice, right)
    assert rows.tolist() == pytest.approx([expected, 2 * expected], rel=1e-13)


def test_only_keeps_the_order_of_the_leaves_and_ignores_names_that_are_not_there() -> None:
    assert list(only(A, ["b", "a", "c"])) == ["a", "b"]
    assert only(A, []) == {}


def test_nothing_modifies_its_arguments() -> None:
    before = {k: v.clone() for k, v in A.items()}
    for result in (add(A, B), sub(A, B), scale(3.0, A), axpy(1.0, A, B), zeros(A), only(A, ["a"])):
        result |= {"a": torch.ones(1)}
    assert same(A, before)


def test_tree_map_walks_nested_trees_side_by_side() -> None:
    left = {"x": {"y": torch.tensor(1.0)}, "z": torch.tensor(2.0), "empty": {}}
    right = {"x": {"y": torch.tensor(10.0)}, "z": torch.tensor(20.0), "empty": {}}
    got = tree_map(torch.add, left, right)
    assert got == {"x": {"y": torch.tensor(11.0)}, "z": torch.tensor(22.0), "empty": {}}


def test_stack_and_row_are_inverse() -> None:
    trees: list[dict[str, Any]] = [{"s": A, "e": {}}, {"s": B, "e": {}}]
    both = stack(trees)
    assert both["s"]["a"].shape == (2, 2)
    for number, tree in enumerate(trees):
        again = row(both, number)
        assert torch.equal(again["s"]["a"], tree["s"]["a"])
        assert again["e"] == {}


def test_a_row_is_a_copy() -> None:
    both = stack([A, B])
    first = row(both, 0)
    both["a"].zero_()
    assert torch.equal(first["a"], A["a"])


def test_where_selects_and_passes_the_same_tensor_through() -> None:
    shared = torch.tensor(7.0)
    yes, no = {"a": torch.tensor(1.0), "s": shared}, {"a": torch.tensor(2.0), "s": shared}
    assert float(where(torch.tensor(True), yes, no)["a"]) == 1
    assert float(where(torch.tensor(False), yes, no)["a"]) == 2
    assert where(torch.tensor(False), yes, no)["s"] is shared


def test_where_keeps_the_old_value_when_the_new_one_is_not_a_number() -> None:
    moved, kept = {"a": torch.tensor(float("nan"))}, {"a": torch.tensor(2.0)}
    assert float(where(torch.tensor(False), moved, kept)["a"]) == 2


def test_tree_to_does_not_convert_integers() -> None:
    got = tree_to({"x": torch.ones(2), "n": torch.ones(2, dtype=torch.int64)}, torch.float64)
    assert got["x"].dtype == torch.float64
    assert got["n"].dtype == torch.int64


NAMES = st.text("abc.", min_size=1, max_size=3)
TREES = st.recursive(
    st.integers(-5, 5).map(lambda n: torch.tensor(float(n))),
    lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3))
def test_unflatten_undoes_flatten(tree: dict[str, Any]) -> None:
    flat = flatten(tree)
    assert all(isinstance(v, Tensor) for v in flat.values())
    assert unflatten(flat) == tree


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite_finds_a_number_that_is_not(bad: float) -> None:
    good = {"a": torch.ones(3), "n": {"k": torch.zeros(1, dtype=torch.int64)}}
    assert bool(finite(good))
    assert not bool(finite({**good, "b": {"c": torch.tensor([1.0, bad])}}))


def test_tree_foreach_pairs_leaves_by_name() -> None:
    left = {"a": torch.ones(2), "n": {"b": torch.zeros(3), "c": torch.ones(1)}, "none": {}}
    right = {"none": {}, "n": {"c": torch.full((1,), 5.0), "b": torch.ones(3)}, "a": torch.ones(2)}
    found = tree_foreach(torch._foreach_add, left, right)
    assert list(found) == ["a", "n", "none"]
    assert found["a"].tolist() == [2, 2]
    assert found["n"]["b"].tolist() == [1, 1, 1]
    assert found["n"]["c"].tolist() == [6]
    assert tree_foreach(torch._foreach_neg, {"none": {}}) == {"none": {}}


def test_a_dot_product_does_not_depend_on_the_memory_layout() -> None:
    permuted = torch.randn(4, 2, 2, 3, dtype=torch.float64).movedim(-1, 1)
    assert in_memory_order(permuted).is_contiguous()
    assert in_memory_order(permuted.contiguous()).shape == permuted.shape
    assert torch.allclose(dot({"w": permuted}, {"w": permuted}), permuted.square().sum())


def test_finite_does_not_take_large_numbers_for_infinite() -> None:
    assert bool(finite({"a": torch.full((1000,), 3e38)}))
