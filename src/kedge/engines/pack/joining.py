"""Rows of several runs as one stack: their samples, their plans, their state, and the sums of each run."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.client import Carry
from kedge.core.tree import Leaves, Tree, stack, tree_map
from kedge.data.alignment import align_steps
from kedge.data.batches import Ints, Plan
from kedge.data.dataset import Dataset
from kedge.engines.engine import Order
from kedge.engines.stack.stack_start import Prepared, StackStart
from kedge.engines.sums import Totals


def merged(pools: Sequence[Dataset]) -> tuple[Dataset, list[int]]:
    """One pool of all samples, equal pools once, and the offset of each pool in it."""
    kept: list[Dataset] = []
    offsets: list[int] = []
    for pool in pools:
        at = 0
        for other in kept:
            if same(pool, other):
                break
            at += len(other)
        else:
            kept.append(pool)
        offsets.append(at)
    if len(kept) == 1:
        return kept[0], offsets
    return Dataset(torch.cat([pool.x for pool in kept]), torch.cat([pool.y for pool in kept])), offsets


def same(left: Dataset, right: Dataset) -> bool:
    """Whether two pools hold the same samples in the same order."""
    if left.x.shape != right.x.shape:
        return False
    return torch.equal(left.x, right.x) and torch.equal(left.y, right.y)


def join_prepared(prepared: Sequence[Prepared], counts: Sequence[int], offsets: Sequence[int]) -> Prepared:
    """The prepared rows of several runs, `counts` rows each, as one stack."""
    plan = side_by_side([own.plan for own in prepared], offsets)
    numbers = repeat_rows([{"lr": own.lr, "round": own.round} for own in prepared], counts)
    return Prepared(plan, concatenate([own.facts for own in prepared]), numbers["lr"], numbers["round"])


def join_starts(
    orders: Sequence[Order],
    carries: Sequence[Carry],
    members: Sequence[Sequence[Ints]],
    offsets: Sequence[int],
    prepared: Prepared,
    anchor: Leaves | None = None,
) -> StackStart:
    """The rows of several runs as one stack, whose pool has the samples of each run from an offset on.

    The carries are without the shared leaves. `anchor` are the shared leaves as rows, if computed already.
    """
    counts = [len(own) for own in members]
    anchor, carry = anchor or repeat_rows([order.shared for order in orders], counts), concatenate(carries)
    return StackStart(
        members=[own + at if at else own for some, at in zip(members, offsets, strict=True) for own in some],
        prepared=prepared,
        carry={**carry, "params": {**anchor, **carry["params"]}},  # every client starts at the anchor
        anchor=anchor,
        broadcast=repeat_rows([order.broadcast for order in orders], counts),
        per_row=True,
    )


def repeat_rows(trees: Sequence[Tree], counts: Sequence[int]) -> dict[str, Any]:
    """Each tree as `counts` equal rows, one tree after another."""
    if max(counts) == 1:
        return stack(trees)
    return concatenate(
        [
            tree_map(lambda v, count=count: v.expand(count, *v.shape), tree)
            for tree, count in zip(trees, counts, strict=True)
        ]
    )


def concatenate(trees: Sequence[Tree]) -> dict[str, Any]:
    """The rows of all trees as one tree."""
    return tree_map(lambda *v: torch.cat(v), trees[0], *trees[1:])


def side_by_side(plans: Sequence[Plan], offsets: Sequence[int]) -> Plan:
    """One plan, in lockstep by phase of the schedule; where a run has no step, its rows are not alive."""
    masks, own = align_steps([plan.masks for plan in plans])
    at = np.maximum(own, 0)

    def rows(values: Callable[[int], Any]) -> Any:
        return np.concatenate([values(number)[at[:, number]] for number in range(len(plans))], axis=1)

    alive = [plans[n].alive[at[:, n]] & (own[:, n] >= 0)[:, None] for n in range(len(plans))]
    return Plan(
        masks=masks,
        index=rows(lambda n: plans[n].index + offsets[n]),
        weight=rows(lambda n: plans[n].weight),
        alive=np.concatenate(alive, axis=1),
        key=rows(lambda n: plans[n].key),
        moves=rows(lambda n: plans[n].moves),
        steps=np.concatenate([plan.steps for plan in plans]),
        trained=np.concatenate([plan.trained for plan in plans]),
    )


@lru_cache(16)
def membership(firsts: tuple[int, ...], ends: tuple[int, ...], rows: int, device: torch.device) -> Tensor:
    """Whether a row is a client of a run, [runs, rows]."""
    inside = [[first <= row < end for row in range(rows)] for first, end in zip(firsts, ends, strict=True)]
    return torch.tensor(inside, device=device)


def of_run(totals: Totals, number: int) -> Totals:
    """The sums of one run."""
    return {k: (tree_map(lambda v: v[number], total), mass[number]) for k, (total, mass) in totals.items()}
