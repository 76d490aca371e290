"""What the rows of a round begin with, and what of it is known before the round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.client import Carry, initial_carry
from kedge.core.tree import Leaves, Tree, stack, tree_map
from kedge.data.batches import Ints, Plan
from kedge.engines.engine import Order
from kedge.engines.memory import Memories


@dataclass(frozen=True, eq=False)
class Begun:
    """Rows before their first step. Rows beyond the real clients are padding, and dead."""

    members: Sequence[Ints]  # the samples of each row's client
    plan: Plan
    carry: Carry
    facts: Leaves
    shared: Leaves  # what the server sent, and its learning rate: the same for all rows, or
    broadcast: Tree
    lr: Tensor
    apart: bool = False  # one row each


class Known(NamedTuple):
    """What is known of rows before a round begins: it does not depend on the round before."""

    plan: Plan
    facts: Leaves
    lr: Tensor


class Coming(NamedTuple):
    """Rows of a round to come: what is known of its order, the client of each, and how many are real."""

    order: Order
    rows: list[int]
    real: int


def first_carry(
    stage: Stage, memories: Memories, order: Order, rows: Sequence[int], compiled: bool, bare: bool
) -> Carry:
    """A stack before its first step: what is the same for all is expanded, what clients keep is stacked.

    `bare`: without what is shared.
    """
    own = [memories.of(c, order.shared, order.buffers) for c in rows]

    def spread(v: Tensor) -> Tensor:
        wide = v.expand(len(rows), *v.shape)
        return wide.contiguous() if compiled else wide  # one layout, one program

    first = initial_carry(stage.local, own[0]["params"], order.buffers, {})
    carry = tree_map(spread, {**first, "params": {} if bare else first["params"]})
    carry["params"] |= stack([{k: m["params"][k] for k in memories.local} for m in own])
    if memories.model.statistics == "local":
        carry["buffers"] = stack([m["buffers"] for m in own])
    carry["state"] = stack([m["slots"] for m in own])
    return carry
