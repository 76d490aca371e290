"""Arithmetic on dicts of tensors.

All state of kedge is nested dicts of tensors (a Tree); parameters are flat ones (Leaves). Nothing here
modifies its arguments. (A Tree is a Mapping to type checkers, which let it hold narrower ones then.)
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Leaves = dict[str, Tensor]
Tree = Mapping[str, Any]
MANY = 8  # vectors: more are summed as one


def zeros(leaves: Leaves) -> Leaves:
    """Leaves of the same shapes, all zero."""
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
    """⟨left, right⟩ over the leaves of left, summed by name: a loaded tree may list them in another order.

    Many vectors, as networks with norms have, are summed as one: on a GPU a sum of each is a launch of each.
    """
    products = [left[k] * right[k] for k in sorted(left)]
    vectors = [v.reshape(-1) for v in products if v.dim() < 2]
    if len(vectors) > MANY:
        products = [*(v for v in products if v.dim() > 1), torch.cat(vectors)]
    return torch.stack([as_it_lies(v).sum() for v in products]).sum()


def as_it_lies(v: Tensor) -> Tensor:
    """The same numbers in the order of memory, in which a program reads them faster."""
    strides = v.stride()
    order = sorted(range(v.dim()), key=lambda axis: -strides[axis])
    return v if order == list(range(v.dim())) else v.permute(order)


def sqnorm(leaves: Leaves) -> Tensor:
    """‖leaves‖²."""
    return dot(leaves, leaves)


def only(leaves: Leaves, names: Iterable[str]) -> Leaves:
    """The leaves of these names that are there, in the order of `leaves`."""
    wanted = frozenset(names)
    return {k: v for k, v in leaves.items() if k in wanted}


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> dict[str, Any]:
    """The tree with function applied to every tensor (and to those at the same places of the others)."""
    return {
        k: tree_map(function, v, *(o[k] for o in others))
        if isinstance(v, dict)
        else function(v, *(o[k] for o in others))
        for k, v in tree.items()
    }


def tree_foreach(function: Callable[..., Sequence[Tensor]], tree: Tree, *others: Tree) -> dict[str, Any]:
    """The same with a function of lists: all tensors at once, which is one launch on a GPU."""
    if tree and not any(isinstance(v, dict) for v in tree.values()):
        return dict(zip(tree, function(*([one[k] for k in tree] for one in (tree, *others))), strict=True))
    lists: list[list[Tensor]] = [[] for _ in (tree, *others)]

    def listed(*own: Tensor) -> Tensor:
        for one, v in zip(lists, own, strict=True):
            one.append(v)
        return own[0]

    tree_map(listed, tree, *others)
    found = iter(function(*lists) if lists[0] else ())
    return tree_map(lambda _: next(found), tree)


def stack(trees: Sequence[Tree]) -> dict[str, Any]:
    """One tree whose tensors have a new first axis: one row a tree."""
    return tree_map(lambda *rows: torch.stack(rows), trees[0], *trees[1:])


def row(tree: Tree, index: int) -> dict[str, Any]:
    """Row `index` of a stacked tree, in memory of its own."""
    return tree_map(lambda v: v[index].clone(memory_format=torch.contiguous_format), tree)


def where(condition: Tensor, yes: Tree, no: Tree) -> dict[str, Any]:
    """yes where the 0-d condition holds, else no; a tensor that is the same in both is passed through."""
    return tree_map(lambda a, b: a if a is b else torch.where(condition, a, b), yes, no)


def tree_to(tree: Tree, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The tree on the device, floating tensors in this dtype."""
    return tree_map(lambda v: v.to(device, dtype if v.is_floating_point() else v.dtype), tree)


def flatten(tree: Tree, prefix: str = "") -> Leaves:
    """One flat dict whose names are paths joined by '/'."""
    flat: Leaves = {}
    for k, v in tree.items():
        if isinstance(v, Mapping):
            flat |= flatten(v, f"{prefix}{k}/")
        else:
            flat[prefix + k] = v
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """The nested dict whose flatten() is `flat`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return tree


def finite_rows(tree: Tree) -> Tensor:
    """One flag a row of a stacked tree: every number of the row is finite."""
    tensors = [v for v in flatten(tree).values() if v.is_floating_point()]
    return torch.stack([largest(v).double() for v in tensors]).isfinite().all(0)


def largest(rows: Tensor) -> Tensor:
    """Each row's largest absolute value, or NaN; on a GPU nothing is copied, however the rows lie."""
    if rows.is_cuda and rows.dim() > 1:  # on a CPU the slower way
        norms: Tensor = torch.linalg.vector_norm(rows, math.inf, tuple(range(1, rows.dim())))
        return norms
    return rows.reshape(rows.shape[0], -1).abs().amax(1)


def finite(tree: Tree) -> Tensor:
    """A 0-d flag: every number of the tree is finite."""
    tensors = [v for v in flatten(tree).values() if v.is_floating_point()]
    if tensors and tensors[0].is_cuda:  # in one launch, which on a CPU is the slower way
        return torch.stack(torch._foreach_norm(tensors, math.inf)).isfinite().all()
    return finite_rows(tree_map(lambda v: v.unsqueeze(0), tree))[0]
