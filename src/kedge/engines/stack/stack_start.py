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
        """The rows with an order without tensors: enough to draw batches, and no model stays in memory."""
        return self._replace(order=self.order._replace(shared={}, buffers={}, broadcast={}))


class Prepared(NamedTuple):
    """The part of a stack's start that does not depend on the previous round."""

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
    stage: Stage,
    memories: Memories,
    order: Order,
    clients: Sequence[int],
    contiguous: bool,
    with_shared: bool,
) -> Carry:
    """The carry of a stack before its first step: common tensors are expanded, clients' own are stacked.

    `contiguous`: expanded tensors are copied, one row per client. `with_shared`: with the shared leaves.
    """
    states = [memories.of(c, order.shared, order.buffers) for c in clients]

    def expand(v: Tensor) -> Tensor:
        expanded = v.expand(len(clients), *v.shape)
        return expanded.contiguous() if contiguous else expanded

    of_first_client = initial_carry(stage.local, states[0]["params"], order.buffers, {})
    params = of_first_client["params"] if with_shared else {}
    carry = tree_map(expand, {**of_first_client, "params": params})
    carry["params"] |= stack([{k: state["params"][k] for k in memories.local} for state in states])
    if memories.model.statistics == "local":
        carry["buffers"] = stack([state["buffers"] for state in states])
    carry["state"] = stack([state["slots"] for state in states])
    return carry
