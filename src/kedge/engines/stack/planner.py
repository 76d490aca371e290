"""Planner: draws the batches of a round, in a thread one round ahead if the next clients are known."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.model import Model
from kedge.core.tree import Leaves
from kedge.data.batches import Plan, plan
from kedge.data.federation import Federation
from kedge.engines.order_values import numbers_of, plan_settings, round_number
from kedge.engines.stack.stack_start import Prepared, StackRows
from kedge.engines.transfer import to_device

Participants = Callable[[int], Sequence[int]]  # number of a round -> the clients that take part


class Planner:
    """Prepares the rows of a stack.

    `draw_ahead` draws the batches of a later round in a second thread while the device trains; `prepare`
    returns them in that round. The thread that trains calls both. The second thread calls `pin_plan` with
    each plan that it has drawn.
    """

    def __init__(
        self,
        federation: Federation,
        pin_plan: Callable[[Plan], object],
        participants: Participants | None = None,
    ) -> None:
        """Without `participants` nothing is drawn ahead."""
        self.federation, self.facts = federation, federation.facts()
        self.pin_plan, self.participants_of = pin_plan, participants
        self.thread = ThreadPoolExecutor(1, "kedge-batches") if participants else None
        self.drawn: dict[Any, tuple[Future[Plan], tuple[Leaves, Tensor, Tensor]]] = {}

    def forget(self) -> None:
        """Drop the batches that were drawn ahead."""
        self.drawn = {}

    def participants(self, round: int) -> Sequence[int]:
        """The clients that take part in a later round; empty if they are not known."""
        return self.participants_of(round) if self.participants_of else ()

    def prepare(self, stage: Stage, model: Model, rows: StackRows, tuning: bool = False) -> Prepared:
        """The batches, facts, learning rate and round number of `rows`."""
        if not tuning and key_of(rows) in self.drawn:
            future, constants = self.drawn.pop(key_of(rows))
            return Prepared(future.result(), *constants)
        return Prepared(self.draw(stage, model, rows, tuning), *self.constants(stage, rows))

    def draw_ahead(self, stage: Stage, model: Model, rows: StackRows) -> None:
        """Draw the batches of `rows` of the next round in the second thread."""
        current_round = rows.order.round - 1  # its later chunks may still need their batches
        self.drawn = {key: drawn for key, drawn in self.drawn.items() if key[0] >= current_round}
        if self.thread is None or key_of(rows) in self.drawn:
            return

        without_tensors = rows.without_tensors()  # the thread may reference them after the round

        def draw() -> Plan:
            drawn = self.draw(stage, model, without_tensors)
            self.pin_plan(drawn)
            return drawn

        self.drawn[key_of(rows)] = self.thread.submit(draw), self.constants(stage, rows)

    def draw(self, stage: Stage, model: Model, rows: StackRows, tuning: bool = False) -> Plan:
        """The batches of `rows`; padding rows have no step."""
        data, order = self.federation, rows.order
        settings = plan_settings(stage, model, data, tuning)
        members = [data.clients[c] for c in rows.clients]
        drawn = plan(members, rows.clients, settings, numbers_of(order), rows.width)
        drawn.alive[:, rows.real :] = False
        return drawn

    def constants(self, stage: Stage, rows: StackRows) -> tuple[Leaves, Tensor, Tensor]:
        """The facts of each row's client, the learning rate and the number of the round."""
        order = rows.order
        like = next(iter(order.shared.values()))
        lr = torch.full((), stage.local.optimizer.rate(order.round), dtype=like.dtype, device=like.device)
        return self.facts_of(rows.clients), lr, round_number(order)

    def facts_of(self, clients: Sequence[int]) -> Leaves:
        """The facts of each client, one row each."""
        ids = to_device(np.array(clients), self.federation.pool.x.device)
        return {k: v[ids] for k, v in self.facts.items()}


def key_of(rows: StackRows) -> tuple[Any, ...]:
    """The values that determine the batches of `rows`; all are known one round ahead."""
    order = rows.order
    return order.round, order.stage_round, order.seed, tuple(rows.clients), rows.real, rows.width
