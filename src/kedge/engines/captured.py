"""CUDA: a stack whose steps are compiled once, captured as graphs and replayed.

A step of a small network is over before the host has launched its operators one by one. A replayed graph needs
no launches: the tensors it reads and moves lie in fixed places (a `Lane`), the batches of the whole round in one
table on the device, of which each replay takes the next row.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kedge.core.algorithm import Stage
from kedge.core.client import Carry
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves, tree_map
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.engine import Order, trainable
from kedge.engines.programs import stacked_step
from kedge.engines.stacked import Stacked
from kedge.engines.tracing import traced

UNROLLED = 8  # steps of the longer graph that is captured beside the one of a single step


class Captured(Stacked):
    """The stack of a round on a CUDA device, from captured graphs."""

    def __init__(self, model: Model, federation: Federation, chunk: int = 0) -> None:
        if federation.pool.x.device.type != "cuda":
            raise RequestError("engine.name: 'captured' needs a CUDA device; use stacked or auto.")
        super().__init__(model, federation, chunk, compiled=True)
        self.lanes: dict[Any, Lane] = {}

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        super().begin(stage, params, kept)
        self.lanes = {}

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients from the order; where memory does not suffice, fewer at once."""
        while True:
            try:
                return super().round(order, clients)
            except torch.cuda.OutOfMemoryError:
                at_once = min(self.chunk or len(clients), len(clients))
                if at_once == 1:
                    raise
                self.chunk, self.lanes = -(-at_once // 2), {}
                torch.cuda.empty_cache()

    def program(self, key: Any, function: Callable[..., Any], compile: bool) -> Callable[..., Any]:
        """What runs once a round is not compiled."""
        return function

    def advanced(
        self,
        stage: Stage,
        model: Model,
        order: Order,
        own: Plan,
        carry: Carry,
        facts: Leaves,
        lr: Tensor,
        compiled: bool,
        tuning: bool,
    ) -> Carry:
        """The carry after all steps of the plan: the lane's own tensors, until its next round."""
        state = {
            "carry": carry,
            "facts": facts,
            "statistics": carry["buffers"],
            "anchor": order.shared,
            "cast": {} if tuning else order.cast,
            "lr": lr,
        }
        rows = packed(own)
        key = tuning, rows.shape[1:]
        if key not in self.lanes:
            self.lanes[key] = Lane(state, rows, self.federation)
        lane = self.lanes[key]
        lane.take(rows)
        for mask in dict.fromkeys(own.masks):
            lane.prepare(mask, partial(step, stage, model, self.federation, trainable(model, mask)))
        lane.load(state)
        lane.run(own.masks)
        after: Carry = lane.state["carry"]
        return after


class Lane:
    """Fixed memory of one stack: what a step reads and moves, and the graphs that do it."""

    def __init__(self, state: dict[str, Any], rows: NDArray[np.int64], data: Federation) -> None:
        self.state = tree_map(lambda v: v.clone(memory_format=torch.contiguous_format), state)
        self.device = state["lr"].device
        self.pool = data.pool.x, data.pool.y
        self.table = torch.zeros(0, *rows.shape[1:], dtype=torch.int64, device=self.device)
        self.now = torch.zeros(1, *rows.shape[1:], dtype=torch.int64, device=self.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.programs: dict[Any, Callable[[], None]] = {}
        self.graphs: dict[Any, torch.cuda.CUDAGraph] = {}
        self.memory = torch.cuda.graph_pool_handle()

    def take(self, rows: NDArray[np.int64]) -> None:
        """Put the batches of a round on the device."""
        if len(rows) > len(self.table):  # graphs read the table where it lay when they were captured
            self.graphs = {}
            room = 1 << (len(rows) - 1).bit_length()
            self.table = torch.zeros(room, *rows.shape[1:], dtype=torch.int64, device=self.device)
        self.table[: len(rows)].copy_(torch.from_numpy(rows))

    def load(self, state: dict[str, Any]) -> None:
        """Put what a round begins with in its place."""
        torch._foreach_copy_(tree_leaves(self.state), tree_leaves(state))
        self.at.zero_()

    def prepare(self, mask: Any, function: Callable[..., Any]) -> None:
        """Make and capture what a step under this mask runs. Before `load`: a trial run moves the rows."""
        if mask not in self.programs:
            state = self.state
            rest = {k: v for k, v in state.items() if k != "carry"}
            self.programs[mask] = traced(function, state["carry"], rest, self.now[0], *self.pool)
        for steps in (1, UNROLLED):
            if (mask, steps) not in self.graphs:
                self.graphs[mask, steps] = self.captured(self.programs[mask], steps)

    def captured(self, program: Callable[[], None], steps: int) -> torch.cuda.CUDAGraph:
        """The next so many steps as a graph."""

        def next_step() -> None:
            torch.index_select(self.table, 0, self.at, out=self.now)
            self.at.add_(1)
            program()

        self.at.zero_()
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            next_step()  # compiles what compiles at first use
        torch.cuda.current_stream(self.device).wait_stream(aside)
        self.at.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.memory):
            for _ in range(steps):
                next_step()
        return graph

    def run(self, masks: Sequence[Any]) -> None:
        """All steps of the round."""
        at = 0
        while at < len(masks):
            same = next((n for n in range(at, len(masks)) if masks[n] != masks[at]), len(masks)) - at
            for steps in (UNROLLED, 1):
                for _ in range(same // steps):
                    self.graphs[masks[at], steps].replay()
                at, same = at + same // steps * steps, same % steps
                if not same:
                    break


def step(
    stage: Stage,
    model: Model,
    data: Federation,
    leaves: tuple[str, ...],
    carry: Carry,
    state: dict[str, Any],
    now: Tensor,
    pool_x: Tensor,
    pool_y: Tensor,
) -> Carry:
    """One step of every row, its batch read from a row of the table."""
    dtype = state["lr"].dtype
    count = (now.shape[1] - 3) // 5
    index, real, alive, key, moves = now.split([count, count, 1, 2, 3 * count], 1)
    return stacked_step(
        stage.algorithm, model, stage.local, data, leaves, True, carry, pool_x, pool_y,
        index, real.to(dtype), key, moves.unflatten(1, (count, 3)), alive[:, 0] > 0,
        state["facts"], state["statistics"], state["anchor"], state["cast"], state["lr"],
    )  # fmt: skip


def packed(own: Plan) -> NDArray[np.int64]:
    """The plan as one table [steps, clients, columns]: samples, weights, alive, key, moves."""
    steps, clients, count = own.index.shape
    moves = own.moves if own.moves.shape[-1] == 3 else np.zeros((steps, clients, count, 3), np.int64)
    parts = (own.index, own.weight, own.alive[..., None], own.key, moves.reshape(steps, clients, -1))
    return np.concatenate([part.astype(np.int64) for part in parts], axis=-1)
