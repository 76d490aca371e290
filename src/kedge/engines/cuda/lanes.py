"""Lanes: the rows of a round in stacks of equal size, each on a CUDA stream, and the graphs of their steps.

One small kernel of a deep network does not fill a GPU, but kernels of several streams at the same time do.
Within a graph of several steps, no lane waits for another.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from kedge.core.client import Carry
from kedge.core.tree import tree_map
from kedge.data.federation import Federation
from kedge.engines.choice.compiling import explain_capture_errors
from kedge.engines.cuda.graphs import capture, copy_into, static_copies
from kedge.engines.cuda.rounding import read_copies, rounded_inputs
from kedge.engines.cuda.tracing import compile_operators, trace_operators
from kedge.torch_private import foreach_copy_, tree_leaves

ALL_ROWS = slice(None)
UNROLLED = 8  # steps of the long graph; a second graph has one step
State = dict[str, Any]  # the carry, and the fields of StepInputs


class Lane:
    """A stack with fixed addresses: the tensors that its steps read and write, and its batch table."""

    def __init__(self, state: State, table: Tensor, device: torch.device) -> None:
        self.state = state
        self.table = torch.zeros(0, *table.shape[1:], dtype=torch.int64, device=device)
        self.batch = torch.zeros(1, *table.shape[1:], dtype=torch.int64, device=device)  # of the current step
        self.step_number = torch.zeros(1, dtype=torch.int64, device=device)
        self.copies: list[Tensor] = []  # bfloat16 copies of weights

    def load_table(self, table: Tensor) -> bool:
        """Copy the batch table of a round to the device; return whether the table has a new address."""
        reallocate = len(table) > len(self.table)
        if reallocate:
            size = 1 << (len(table) - 1).bit_length()
            self.table = torch.zeros(size, *table.shape[1:], dtype=torch.int64, device=self.table.device)
        self.table[: len(table)].copy_(table, non_blocking=True)
        return reallocate

    def arguments(self) -> tuple[Carry, State, Tensor]:
        """The first arguments of a step: the carry, its other inputs, and the row of the batch table."""
        return self.state["carry"], {k: v for k, v in self.state.items() if k != "carry"}, self.batch[0]

    def step(self, program: Callable[..., None], pool: Sequence[Tensor]) -> None:
        """Launch the next step."""
        torch.index_select(self.table, 0, self.step_number, out=self.batch)
        self.step_number.add_(1)
        program(*self.arguments(), *pool, *self.copies)


class Lanes:
    """All lanes of a round, and the graphs of their steps, by mask and number of steps."""

    def __init__(
        self,
        state: State,
        common: Collection[str],
        table: Tensor,
        data: Federation,
        graph_pool: Any,
        streams: int,
    ) -> None:
        """`common` names the entries of `state` that all rows share; graphs allocate from `graph_pool`."""
        rows = table.shape[1]
        count = max(n for n in range(1, min(streams, rows) + 1) if rows % n == 0)
        shares = [slice(n * rows // count, (n + 1) * rows // count) for n in range(count)]
        self.parts = shares if count > 1 else [ALL_ROWS]
        self.common = static_copies({k: state[k] for k in common})
        self.lanes = []
        for part in self.parts:
            own_state = static_copies(state_of_rows(state, part, common))
            self.lanes.append(Lane({**own_state, **self.common}, table[:, part], data.pool.x.device))
        self.streams = [torch.cuda.Stream() for _ in self.parts]  # type: ignore[no-untyped-call]
        self.pool = data.pool.x, data.pool.y
        self.programs: dict[Any, Callable[..., None]] = {}
        self.graphs: dict[Any, torch.cuda.CUDAGraph] = {}
        self.rounded: list[int] | None = None  # positions of a lane's tensors that have a bfloat16 copy
        self.graph_pool = graph_pool

    def load_table(self, table: Tensor) -> None:
        """Copy the batch table of a round to the lanes."""
        new_addresses = [
            lane.load_table(table[:, part]) for lane, part in zip(self.lanes, self.parts, strict=True)
        ]
        if any(new_addresses):  # the captured graphs would read the old addresses
            self.graphs = {}

    def load_state(self, state: State) -> None:
        """Copy the state at the start of a round to the lanes."""
        copy_into(self.common, {k: state[k] for k in self.common})
        for lane, part in zip(self.lanes, self.parts, strict=True):
            own_state = {k: v for k, v in lane.state.items() if k not in self.common}
            copy_into(own_state, state_of_rows(state, part, self.common))
            lane.step_number.zero_()
            if self.rounded:
                foreach_copy_(lane.copies, self.copy_sources(lane))

    def prepare(self, mask: Any, function: Callable[..., Any]) -> None:
        """Compile and capture the steps under `mask`; call it before `load_state`, because it runs a step."""
        with explain_capture_errors():
            if mask not in self.programs:
                self.programs[mask] = self.compile_step(function)
            for steps in (1, UNROLLED):
                if (mask, steps) not in self.graphs:
                    for lane in self.lanes:
                        lane.step_number.zero_()
                    work = partial(self.launch_steps, self.programs[mask])
                    graph, _ = capture(partial(work, steps), self.graph_pool, partial(work, 1))
                    self.graphs[mask, steps] = graph

    def compile_step(self, function: Callable[..., Any]) -> Callable[..., None]:
        """Compile a step; the program's arguments are a lane's arguments, the pool, and bfloat16 copies."""
        first = self.lanes[0]
        graph = trace_operators(function, *first.arguments(), *self.pool)
        if self.rounded is None:
            self.rounded = rounded_inputs(graph, len(tree_leaves(first.arguments())))
            for lane in self.lanes:
                lane.copies = [torch.empty_like(v, dtype=torch.bfloat16) for v in self.copy_sources(lane)]
        return compile_operators(
            read_copies(graph, self.rounded), *first.arguments(), *self.pool, *first.copies
        )

    def copy_sources(self, lane: Lane) -> list[Tensor]:
        """The tensors of a lane that have a bfloat16 copy."""
        values = tree_leaves(lane.arguments())
        return [values[number] for number in self.rounded or ()]

    def launch_steps(self, program: Callable[..., None], count: int) -> None:
        """Launch `count` steps of every lane, each on its stream."""
        current = torch.cuda.current_stream()
        streams = self.streams if len(self.lanes) > 1 else [current]
        for lane, stream in zip(self.lanes, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(count):
                    lane.step(program, self.pool)
        for stream in streams:
            current.wait_stream(stream)

    def replay(self, masks: Sequence[Any]) -> None:
        """Replay all steps of the round; single steps first, because a short graph starts sooner."""
        for mask, group in groupby(masks):
            count = len(list(group))
            for _ in range(count % UNROLLED):
                self.graphs[mask, 1].replay()
            for _ in range(count // UNROLLED):
                self.graphs[mask, UNROLLED].replay()

    def tensors(self) -> list[Tensor]:
        """The tensors of the lanes' carries."""
        return [v for lane in self.lanes for v in tree_leaves(lane.state["carry"])]

    def carry(self) -> Carry:
        """The carry of all rows; a single lane returns its own tensors, which the next round overwrites."""
        parts = [lane.state["carry"] for lane in self.lanes]
        return parts[0] if len(parts) == 1 else tree_map(lambda *v: torch.cat(v), parts[0], *parts[1:])


def state_of_rows(state: State, part: slice, common: Collection[str]) -> State:
    """The rows `part` of the state, without its common entries."""
    by_row = {k: v for k, v in state.items() if k not in common}
    return by_row if part == ALL_ROWS else tree_map(lambda v: v[part], by_row)
