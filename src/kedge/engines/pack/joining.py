"""Rows of several runs as one stack: their samples, their plans, their state, and the sums of each run."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.client import Carry
from kedge.core.tree import Leaves, Tree, stack, tree_map
from kedge.data.batches import Ints, Plan, lockstep
from kedge.data.dataset import Dataset
from kedge.engines.engine import Order, Totals
from kedge.engines.round_start import Begun, Known


def merged(pools: Sequence[Dataset]) -> tuple[Dataset, list[int]]:
    """One pool of all samples, those of equal pools once, and where each pool begins in it."""
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


def known_together(known: Sequence[Known], counts: Sequence[int], offsets: Sequence[int]) -> Known:
    """What is known of the rows of several runs, so many of each, as one stack."""
    rates = spread([{"lr": own.lr} for own in known], counts)
    plan = side_by_side([own.plan for own in known], offsets)
    return Known(plan, one([own.facts for own in known]), rates["lr"])


def joined(
    orders: Sequence[Order],
    carries: Sequence[Carry],
    members: Sequence[Sequence[Ints]],
    offsets: Sequence[int],
    known: Known,
    shared: Leaves | None = None,
) -> Begun:
    """The rows of several runs as one stack, whose pool has each run's samples from an offset on.

    Their carries are bare (stacked.py). `shared` are what the orders share as rows, where they are there.
    """
    counts = [len(own) for own in members]
    shared, carry = shared or spread([order.shared for order in orders], counts), one(carries)
    return Begun(
        members=[own + at if at else own for some, at in zip(members, offsets, strict=True) for own in some],
        plan=known.plan,
        carry={**carry, "params": {**shared, **carry["params"]}},  # every client begins with what is shared
        facts=known.facts,
        shared=shared,
        broadcast=spread([order.broadcast for order in orders], counts),
        lr=known.lr,
        apart=True,
    )


def spread(trees: Sequence[Tree], counts: Sequence[int]) -> dict[str, Any]:
    """So many rows of each tree, one tree after another."""
    if max(counts) == 1:
        return stack(trees)
    return one(
        [
            tree_map(lambda v, count=count: v.expand(count, *v.shape), tree)
            for tree, count in zip(trees, counts, strict=True)
        ]
    )


def one(trees: Sequence[Tree]) -> dict[str, Any]:
    """The rows of all trees."""
    return tree_map(lambda *v: torch.cat(v), trees[0], *trees[1:])


def side_by_side(plans: Sequence[Plan], offsets: Sequence[int]) -> Plan:
    """Plans in lockstep by phase of the schedule; a run that must wait is dead for that row."""
    masks, own = lockstep([plan.masks for plan in plans])
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
    """Which rows are clients of which run: [runs, rows]."""
    inside = [[first <= row < end for row in range(rows)] for first, end in zip(firsts, ends, strict=True)]
    return torch.tensor(inside, device=device)


def of_run(totals: Totals, number: int) -> Totals:
    """One run's share of the sums of all."""
    return {k: (tree_map(lambda v: v[number], total), mass[number]) for k, (total, mass) in totals.items()}
