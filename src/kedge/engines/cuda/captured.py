"""Captured: a stack's programs are compiled once, captured as CUDA graphs, and replayed.

The host needs longer to launch the operators of a small network's step than the GPU to run them. Replaying a
graph is one launch: the tensors that it reads and writes have fixed addresses (lanes.py), and the batches of
the whole round are one table on the device, from which each step reads the next row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.client import Carry
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.data.batch_table import read_step
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.cuda.graphs import Replayed
from kedge.engines.cuda.lanes import Lanes
from kedge.engines.cuda.side_stream import SideStream
from kedge.engines.leaves import trainable
from kedge.engines.stack.planner import Participants
from kedge.engines.stack.programs import (
    EndInputs,
    EndProgram,
    StackEnd,
    StepInputs,
    StepProgram,
    stacked_end,
    stacked_step,
)
from kedge.engines.stack.stack_start import StackStart
from kedge.engines.stack.stacked import Stacked
from kedge.engines.transfer import pinned
from kedge.torch_private import tree_leaves, tree_map_only

COMMON = ("anchor", "broadcast", "lr", "round")  # inputs that are the same for all rows of one run


def captured_stack(
    model: Model,
    federation: Federation,
    chunk: int = 0,
    participants: Participants | None = None,
    streams: int = 1,
) -> Stacked:
    """A stacked engine on a CUDA device that replays graphs."""
    return Stacked(model, federation, chunk, Captured(federation, streams), participants)


class Captured:
    """A backend that replays the programs of a stack from CUDA graphs.

    The next round overwrites the results of `run_steps` and `run_end`.
    """

    pads_rows = True
    contiguous_rows = False  # lanes copy the rows to their own addresses

    def __init__(self, federation: Federation, streams: int = 1) -> None:
        """`streams`: rows are split into this many stacks that train side by side, if they divide."""
        check_device(federation)
        self.device, self.streams = federation.pool.x.device, streams
        self.overlap = SideStream()
        self.tables: WeakKeyDictionary[Plan, Tensor] = WeakKeyDictionary()
        self.lanes: dict[Any, Lanes] = {}
        self.ends: dict[Any, Replayed] = {}
        self.graph_pool: Any = None

    def forget(self) -> None:
        """Release all graphs and their memory."""
        torch.cuda.synchronize()
        self.lanes, self.ends = {}, {}
        # Graphs that run at the same time must not share their memory.
        self.graph_pool = torch.cuda.graph_pool_handle()
        self.overlap.forget()
        torch.cuda.empty_cache()

    def pin_plan(self, plan: Plan) -> None:
        """Copy the batch table of a plan to pinned memory, once."""
        if plan not in self.tables:
            self.tables[plan] = pinned(plan.table, self.device)

    def run_steps(
        self, stage: Stage, model: Model, federation: Federation, start: StackStart, tuning: bool
    ) -> Carry:
        """Run all steps of a round, and return the carry after the last.

        The first round with a mask compiles and captures its step.
        """
        state = {"carry": start.carry, **start.inputs()._asdict()}
        self.pin_plan(start.plan)
        table, masks = self.tables[start.plan], start.plan.masks
        key = tuning, start.per_row, table.shape[1:]
        if key not in self.lanes:
            common = () if start.per_row else COMMON
            self.lanes[key] = Lanes(state, common, table, federation, self.graph_pool, self.streams)
        lanes = self.lanes[key]
        lanes.load_table(table)
        for mask in dict.fromkeys(masks):
            leaves, per_row = trainable(model, mask), start.per_row
            program = StepProgram(stage.algorithm, model, stage.local, federation, leaves, True, per_row)
            lanes.prepare(mask, partial(step_from_table, program))
        lanes.load_state(state)
        lanes.replay(masks)
        return lanes.carry()

    def run_end(
        self, program: EndProgram, carry: Carry, inputs: EndInputs, real_rows: Tensor, keep_totals: bool
    ) -> StackEnd:
        """Run the end of the round; `keep_totals`: copy the totals, which the next call overwrites."""
        arguments = carry, inputs, real_rows
        shapes = tuple(v.shape for v in tree_leaves(arguments) if isinstance(v, Tensor))
        if shapes not in self.ends:
            addresses = [v for lanes in self.lanes.values() for v in lanes.tensors()]
            self.ends[shapes] = Replayed(partial(stacked_end, program), self.graph_pool, static=addresses)
        end: StackEnd = self.ends[shapes](*arguments)
        return end._replace(totals=tree_map_only(Tensor, torch.clone, end.totals)) if keep_totals else end

    def run_once(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`, which is not captured."""
        return function(*arguments)


def check_device(federation: Federation) -> None:
    """Raise if the samples are not on a CUDA device."""
    if federation.pool.x.device.type != "cuda":
        raise RequestError("engine.name: 'captured' needs a CUDA device; use stacked or auto.")


def step_from_table(
    program: StepProgram,
    carry: Carry,
    inputs: dict[str, Any],
    table_row: Tensor,
    pool_x: Tensor,
    pool_y: Tensor,
) -> Carry:
    """One step of every row; `table_row` has the batches of all rows (batch_table.py)."""
    batch = read_step(table_row, program.federation.augment, inputs["lr"].dtype)
    return stacked_step(program, carry, batch, (pool_x, pool_y), StepInputs(**inputs))
