"""Arithmetic on nested dicts of tensors.

All state of kedge is a `Tree`, a nested dict of tensors; parameters are `Leaves`, a flat dict. No function
modifies its arguments. (`Tree` is a Mapping, so that type checkers accept dicts with narrower value types.)
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kedge.torch_private import foreach_norm

Leaves = dict[str, Tensor]
Tree = Mapping[str, Any]
SEPARATE_SUMS = 8  # `dot` concatenates its 1-d and 0-d leaves if it has more of them


def zeros(leaves: Leaves) -> Leaves:
    """Zeros of the same shapes."""
    return {k: torch.zeros_like(v) for k, v in leaves.items()}


def scale(factor: float | Tensor, leaves: Leaves) -> Leaves:
    """factor · leaves."""
    return {k: factor * v for k, v in leaves.items()}


def add(left: Leaves, right: Leaves) -> Leaves:
    """left + right, over the leaves of left."""
    return {k: v + right[k] for k, v in left.items()}


def sub(left: Leaves, right: Leaves) -> Leaves:
    """left − right, over the leaves of left."""
    return {k: v - right[k] for k, v in left.items()}


def axpy(factor: float | Tensor, x: Leaves, y: Leaves) -> Leaves:
    """y + factor · x, over the leaves of y."""
    return {k: v + factor * x[k] for k, v in y.items()}


def dot(left: Leaves, right: Leaves) -> Tensor:
    """⟨left, right⟩ over the leaves of left.

    Leaves are added in the order of their names, because a loaded tree may list them in another order. If
    many leaves are vectors, as in networks with norm layers, they are concatenated and summed in one launch.
    """
    products = [left[k] * right[k] for k in sorted(left)]
    vectors = [v.reshape(-1) for v in products if v.dim() < 2]
    if len(vectors) > SEPARATE_SUMS:
        products = [*(v for v in products if v.dim() > 1), torch.cat(vectors)]
    return torch.stack([in_memory_order(v).sum() for v in products]).sum()


def in_memory_order(v: Tensor) -> Tensor:
    """`v` with its dimensions permuted so that its strides descend, because a sum reads that faster."""
    strides = v.stride()
    order = sorted(range(v.dim()), key=lambda axis: -strides[axis])
    return v if order == list(range(v.dim())) else v.permute(order)


def sqnorm(leaves: Leaves) -> Tensor:
    """‖leaves‖²."""
    return dot(leaves, leaves)


def only(leaves: Leaves, names: Iterable[str]) -> Leaves:
    """The leaves whose names are in `names`, in the order of `leaves`."""
    wanted = frozenset(names)
    return {k: v for k, v in leaves.items() if k in wanted}


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> dict[str, Any]:
    """Apply `function` to each tensor of `tree` and the tensors at the same path in `others`."""
    return {
        k: tree_map(function, v, *(o[k] for o in others))
        if isinstance(v, dict)
        else function(v, *(o[k] for o in others))
        for k, v in tree.items()
    }


def tree_foreach(function: Callable[..., Sequence[Tensor]], tree: Tree, *others: Tree) -> dict[str, Any]:
    """`tree_map` with a function of lists of tensors, such as `foreach_add`: one launch on a GPU."""
    trees = (tree, *others)
    if tree and not any(isinstance(v, dict) for v in tree.values()):
        return dict(zip(tree, function(*([each[k] for k in tree] for each in trees)), strict=True))
    lists: list[list[Tensor]] = [[] for _ in trees]

    def append(*tensors: Tensor) -> Tensor:
        for values, v in zip(lists, tensors, strict=True):
            values.append(v)
        return tensors[0]

    tree_map(append, tree, *others)
    results = iter(function(*lists) if lists[0] else ())
    return tree_map(lambda _: next(results), tree)


def stack(trees: Sequence[Tree]) -> dict[str, Any]:
    """One tree whose tensors have a new first dimension, with one row per tree."""
    return tree_map(lambda *rows: torch.stack(rows), trees[0], *trees[1:])


def row(tree: Tree, index: int) -> dict[str, Any]:
    """A copy of row `index` of a stacked tree."""
    return tree_map(lambda v: v[index].clone(memory_format=torch.contiguous_format), tree)


def where(condition: Tensor, yes: Tree, no: Tree) -> dict[str, Any]:
    """`yes` if the 0-d `condition` is true, else `no`; the same tensor in both is returned as it is."""
    return tree_map(lambda a, b: a if a is b else torch.where(condition, a, b), yes, no)


def tree_to(tree: Tree, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The tree on `device`, with floating-point tensors converted to `dtype`."""
    return tree_map(lambda v: v.to(device, dtype if v.is_floating_point() else v.dtype), tree)


def flatten(tree: Tree, prefix: str = "") -> Leaves:
    """A flat dict whose names are paths joined by '/'."""
    flat: Leaves = {}
    for k, v in tree.items():
        if isinstance(v, Mapping):
            flat |= flatten(v, f"{prefix}{k}/")
        else:
            flat[prefix + k] = v
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """The nested dict that `flatten` turns into `flat`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return tree


def finite_rows(tree: Tree) -> Tensor:
    """A bool tensor [rows]: whether all numbers in each row of a stacked tree are finite."""
    tensors = [v for v in flatten(tree).values() if v.is_floating_point()]
    return torch.stack([largest_absolute(v).double() for v in tensors]).isfinite().all(0)


def largest_absolute(rows: Tensor) -> Tensor:
    """The largest absolute value of each row, NaN if the row has one. It makes no copy on a GPU."""
    if rows.is_cuda and rows.dim() > 1:  # slower on a CPU
        norms: Tensor = torch.linalg.vector_norm(rows, math.inf, tuple(range(1, rows.dim())))
        return norms
    return rows.reshape(rows.shape[0], -1).abs().amax(1)


def finite(tree: Tree) -> Tensor:
    """A 0-d bool tensor: whether all numbers in the tree are finite."""
    tensors = [v for v in flatten(tree).values() if v.is_floating_point()]
    if tensors and tensors[0].is_cuda:  # one launch; slower on a CPU
        return torch.stack(foreach_norm(tensors, math.inf)).isfinite().all()
    return finite_rows(tree_map(lambda v: v.unsqueeze(0), tree))[0]
