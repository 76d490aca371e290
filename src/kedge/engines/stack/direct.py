"""Backend: runs the programs of a stack on its device. Direct: a backend that calls them one by one."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.client import Carry
from kedge.core.model import Model
from kedge.core.tree import tree_map
from kedge.data.batch_table import StepBatch, step_batches
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.leaves import trainable
from kedge.engines.overlap import NoOverlap, Overlap
from kedge.engines.stack.programs import (
    EndInputs,
    EndProgram,
    StackEnd,
    StepProgram,
    compiled,
    stacked_end,
    stacked_step,
)
from kedge.engines.stack.stack_start import StackStart


class Backend(Protocol):
    """Runs the programs of a stack.

    `pads_rows`: whether stacks are padded to a few numbers of rows, because each number needs a program.
    `contiguous_rows`: whether the first carry has a copy in memory for every row, also of equal rows.
    `overlap`: runs other work while the device trains.
    """

    @property
    def pads_rows(self) -> bool: ...
    @property
    def contiguous_rows(self) -> bool: ...
    @property
    def overlap(self) -> Overlap: ...

    def forget(self) -> None:
        """Release programs and memory; called before each stage."""
        ...

    def pin_plan(self, plan: Plan) -> None:
        """Copy the batch table of a plan to pinned memory if a GPU reads it; another thread may call this."""
        ...

    def run_steps(
        self, stage: Stage, model: Model, federation: Federation, start: StackStart, tuning: bool
    ) -> Carry:
        """Run all steps of a round, and return the carry after the last."""
        ...

    def run_end(
        self, program: EndProgram, carry: Carry, inputs: EndInputs, real_rows: Tensor, keep_totals: bool
    ) -> StackEnd:
        """Run the end of the round; `keep_totals`: the totals must stay valid after the next `run_end`."""
        ...

    def run_once(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`, a further part of the end of a round; `name` is its key in caches."""
        ...


class Direct:
    """Calls the programs one by one, from Python or compiled by torch.compile."""

    def __init__(self, compile: bool = False, half: bool = False) -> None:
        """`half`: compiled programs compute in bfloat16."""
        self.pads_rows = self.contiguous_rows = self.compile = compile
        self.half = half
        self.overlap = NoOverlap()
        self.programs: dict[Any, Callable[..., Any]] = {}

    def forget(self) -> None:
        """Drop the programs."""
        self.programs = {}

    def pin_plan(self, plan: Plan) -> None:
        """Do nothing: batches are copied to the device when the steps start."""

    def run_steps(
        self, stage: Stage, model: Model, federation: Federation, start: StackStart, tuning: bool
    ) -> Carry:
        """Run all steps of a round, and return the carry after the last; fine-tuning is not compiled."""
        plan, carry, inputs = start.plan, start.carry, start.inputs()
        # Copies: if these inputs were the carry's own tensors, the second step would be compiled again.
        inputs = inputs._replace(statistics=tree_map(torch.clone, inputs.statistics))
        if start.per_row:
            inputs = inputs._replace(anchor=tree_map(torch.clone, inputs.anchor))
        batches = step_batches(plan, inputs.lr.device, inputs.lr.dtype)
        pool, compile = (federation.pool.x, federation.pool.y), self.compile and not tuning
        for number, mask in enumerate(plan.masks):
            leaves, per_row = trainable(model, mask), start.per_row
            masked = compile or not plan.alive[number].all()
            program = StepProgram(stage.algorithm, model, stage.local, federation, leaves, masked, per_row)
            key = tuning, leaves, masked, per_row
            step = self.program(key, partial(stacked_step, program), compile)
            carry = step(carry, StepBatch(*(v[number] for v in batches)), pool, inputs)
        return carry

    def run_end(
        self, program: EndProgram, carry: Carry, inputs: EndInputs, real_rows: Tensor, keep_totals: bool
    ) -> StackEnd:
        """Run the end of the round."""
        function = self.program("end", partial(stacked_end, program), self.compile)
        end: StackEnd = function(carry, inputs, real_rows)
        return end

    def run_once(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`, a further part of the end of a round, compiled if the steps are."""
        return self.program(name, function, self.compile)(*arguments)

    def program(self, key: Any, function: Callable[..., Any], compile: bool) -> Callable[..., Any]:
        """The first function that was passed with this `key`, compiled if `compile`."""
        if (key, compile) not in self.programs:
            self.programs[key, compile] = compiled(function, self.half) if compile else function
        return self.programs[key, compile]
