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


def merge_pools(pools: Sequence[Dataset]) -> tuple[Dataset, list[int]]:
    """One pool with the samples of all pools, equal pools once; and the offset of each pool in it."""
    different: list[Dataset] = []
    offsets: list[int] = []
    for pool in pools:
        offset = 0
        for other in different:
            if same_samples(pool, other):
                break
            offset += len(other)
        else:
            different.append(pool)
        offsets.append(offset)
    if len(different) == 1:
        return different[0], offsets
    x, y = torch.cat([pool.x for pool in different]), torch.cat([pool.y for pool in different])
    return Dataset(x, y), offsets


def same_samples(left: Dataset, right: Dataset) -> bool:
    """Whether two pools have the same samples in the same order."""
    if left.x.shape != right.x.shape:
        return False
    return torch.equal(left.x, right.x) and torch.equal(left.y, right.y)


def join_prepared(prepared: Sequence[Prepared], counts: Sequence[int], offsets: Sequence[int]) -> Prepared:
    """The prepared rows of several runs as one stack, in which run i has `counts[i]` rows.

    `offsets` are the positions of the runs' samples in the common pool.
    """
    plan = join_plans([run.plan for run in prepared], offsets)
    numbers = repeat_rows([{"lr": run.lr, "round": run.round} for run in prepared], counts)
    return Prepared(plan, concatenate([run.facts for run in prepared]), numbers["lr"], numbers["round"])


def join_starts(
    orders: Sequence[Order],
    carries: Sequence[Carry],
    members: Sequence[Sequence[Ints]],
    offsets: Sequence[int],
    prepared: Prepared,
    anchor: Leaves | None = None,
) -> StackStart:
    """The rows of several runs as one stack before its first step; one order, carry and offset per run.

    `members` are the samples of each run's clients, as indices into the run's pool; `offsets` are the
    positions of these pools in the common pool. The carries have no shared leaves. `anchor` are the shared
    leaves as rows, if computed already.
    """
    counts = [len(clients) for clients in members]
    anchor, carry = anchor or repeat_rows([order.shared for order in orders], counts), concatenate(carries)
    return StackStart(
        members=[
            samples + offset if offset else samples
            for clients, offset in zip(members, offsets, strict=True)
            for samples in clients
        ],
        prepared=prepared,
        carry={**carry, "params": {**anchor, **carry["params"]}},  # every client starts at the anchor
        anchor=anchor,
        broadcast=repeat_rows([order.broadcast for order in orders], counts),
        per_row=True,
    )


def repeat_rows(trees: Sequence[Tree], counts: Sequence[int]) -> dict[str, Any]:
    """One tree of rows: `counts[0]` rows equal to the first tree, `counts[1]` to the second, and so on."""
    if max(counts) == 1:
        return stack(trees)
    return concatenate(
        [
            tree_map(lambda v, count=count: v.expand(count, *v.shape), tree)
            for tree, count in zip(trees, counts, strict=True)
        ]
    )


def concatenate(trees: Sequence[Tree]) -> dict[str, Any]:
    """One tree with the rows of all trees."""
    return tree_map(lambda *v: torch.cat(v), trees[0], *trees[1:])


def join_plans(plans: Sequence[Plan], offsets: Sequence[int]) -> Plan:
    """The plans of several runs as one, in lockstep by phase of the schedule.

    While other runs take a step that a run does not have, the run's clients are not alive.
    """
    masks, step_of_run = align_steps([plan.masks for plan in plans])  # [steps, runs]; -1: no step
    steps = np.maximum(step_of_run, 0)

    def joined(values: Callable[[int], Any]) -> Any:
        return np.concatenate([values(run)[steps[:, run]] for run in range(len(plans))], axis=1)

    has_step = [(step_of_run[:, run] >= 0)[:, None] for run in range(len(plans))]
    alive = [plan.alive[steps[:, run]] & has_step[run] for run, plan in enumerate(plans)]
    return Plan(
        masks=masks,
        index=joined(lambda run: plans[run].index + offsets[run]),
        weight=joined(lambda run: plans[run].weight),
        alive=np.concatenate(alive, axis=1),
        key=joined(lambda run: plans[run].key),
        moves=joined(lambda run: plans[run].moves),
        steps=np.concatenate([plan.steps for plan in plans]),
        trained=np.concatenate([plan.trained for plan in plans]),
    )


@lru_cache(16)
def membership(firsts: tuple[int, ...], ends: tuple[int, ...], rows: int, device: torch.device) -> Tensor:
    """Whether a row is a client of a run, [runs, rows]: run i has the rows from `firsts[i]` to `ends[i]`."""
    inside = [[first <= row < end for row in range(rows)] for first, end in zip(firsts, ends, strict=True)]
    return torch.tensor(inside, device=device)


def totals_of_run(totals: Totals, number: int) -> Totals:
    """The sums of the run at position `number`."""
    return {k: (tree_map(lambda v: v[number], total), mass[number]) for k, (total, mass) in totals.items()}
