"""The tensors that a round sends: none of a leaf that trains on no client and that has not changed.

The rule is that of `kedge cost` (measure/cost/traffic.py), so the arrays' bytes equal its count.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.core.tree import Leaves, Tree, flatten, unflatten
from kedge.data.batches import PlanSettings, mask_sequences, step_counts
from kedge.engines.engine import Order
from kedge.engines.leaves import trainable
from kedge.engines.order_values import numbers_of


def trained_leaves(stage: Stage, model: Model, sizes: Iterable[int], order: Order) -> frozenset[str]:
    """The leaves that train on some client of a round; `sizes` are the clients' numbers of samples."""
    _, per_epoch = step_counts(np.array(sorted(set(sizes)), dtype=np.int64), stage.local)
    settings = PlanSettings(stage.local, stage.algorithm.schedule, len(model.units))
    sequences = mask_sequences(stage.local.epochs * per_epoch, settings, numbers_of(order))
    masks = {mask for sequence in sequences.values() for mask in map(tuple, sequence)}
    return frozenset(k for mask in masks for k in trainable(model, mask))


def all_leaves(model: Model) -> frozenset[str]:
    """The names of a model's parameters that may train."""
    return frozenset({*(k for unit in model.units for k in unit), *model.extra})


def without_leaves(tree: Tree, left_out: frozenset[str]) -> Leaves:
    """The tensors of a tree by path, without those of the leaves in `left_out`."""
    return {path: v for path, v in flatten(tree).items() if leaf_name(path) not in left_out}


def leaf_name(path: str) -> str:
    """The leaf that a tensor belongs to: the last part of its path."""
    return path.rpartition("/")[2]


def completed(tensors: Mapping[str, Tensor], like: Tree) -> Tree:
    """A tree with the structure of `like`, from the tensors by path; tensors that are missing are 0."""
    return restored(
        unflatten({k: tensors.get(k, torch.zeros_like(v)) for k, v in flatten(like).items()}), like
    )


def restored(tree: Tree, like: Tree) -> Tree:
    """`tree` with the empty dicts of `like`, which have no path."""
    return {k: restored(tree.get(k, {}), v) if isinstance(v, Mapping) else tree[k] for k, v in like.items()}


def mismatch(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """A sentence on the first difference of names, shapes and dtypes; None if all are equal."""
    for path in expected.keys() - tensors.keys():
        return f"{path} is missing"
    for path, v in tensors.items():
        if path not in expected:
            return f"{path} is not expected"
        like = expected[path]
        if v.shape != like.shape or v.dtype != like.dtype:
            return f"{path} is {v.dtype} {list(v.shape)}, not {like.dtype} {list(like.shape)}"
    return None
