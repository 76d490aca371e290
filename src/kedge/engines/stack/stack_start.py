"""The start of a round for stacked clients: their state, their batches, and parts that are prepared ahead."""

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
from kedge.engines.stack.programs import StepInputs


class StackRows(NamedTuple):
    """The rows of a stack in one round; rows from `real` on are padding and do not train."""

    order: Order
    clients: Sequence[int]  # the client of each row
    real: int
    width: int  # samples of a batch

    def without_tensors(self) -> "StackRows":
        """The rows with an order that has only its numbers: enough to draw batches, and frees its model."""
        return self._replace(order=self.order._replace(shared={}, buffers={}, broadcast={}))


class Prepared(NamedTuple):
    """The part of a round's start that does not depend on the round before."""

    plan: Plan
    facts: Leaves  # [rows, ...]
    lr: Tensor
    round: Tensor


@dataclass(frozen=True, eq=False)
class StackStart:
    """Stacked clients before their first step."""

    members: Sequence[Ints]  # the samples of each row's client
    prepared: Prepared
    carry: Carry
    anchor: Leaves  # the shared leaves as the server sent them
    broadcast: Tree
    per_row: bool = False  # whether anchor, broadcast, lr and round have one row per client

    @property
    def plan(self) -> Plan:
        """The batches of all rows."""
        return self.prepared.plan

    def inputs(self) -> StepInputs:
        """The inputs of every step of the round."""
        _, facts, lr, round = self.prepared
        return StepInputs(facts, self.carry["buffers"], self.anchor, self.broadcast, lr, round)


def first_carry(
    stage: Stage, memories: Memories, order: Order, clients: Sequence[int], contiguous: bool, bare: bool
) -> Carry:
    """The carry of a stack before its first step: common tensors are expanded, clients' own are stacked.

    `contiguous`: expanded tensors are copied, one row per client. `bare`: without the shared leaves.
    """
    own = [memories.of(c, order.shared, order.buffers) for c in clients]

    def expand(v: Tensor) -> Tensor:
        wide = v.expand(len(clients), *v.shape)
        return wide.contiguous() if contiguous else wide

    first = initial_carry(stage.local, own[0]["params"], order.buffers, {})
    carry = tree_map(expand, {**first, "params": {} if bare else first["params"]})
    carry["params"] |= stack([{k: m["params"][k] for k in memories.local} for m in own])
    if memories.model.statistics == "local":
        carry["buffers"] = stack([m["buffers"] for m in own])
    carry["state"] = stack([m["slots"] for m in own])
    return carry
