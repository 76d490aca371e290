"""Lanes: stacks with fixed addresses that train side by side, and the graphs of their steps.

The rows of a round are one stack, or several of equal size, each on its own stream: the small kernels of a
deep network do not fill a GPU one by one, but several at once do. Within a graph of several steps no stack
waits for another.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kedge.core.client import Carry
from kedge.core.tree import tree_map
from kedge.data.federation import Federation
from kedge.engines.compiling import explain_capture_errors
from kedge.engines.cuda.graphs import captured, in_place, put
from kedge.engines.cuda.rounding import reading_copies, rounded
from kedge.engines.cuda.tracing import compiled, written_down
from kedge.torch_private import foreach_copy_, tree_leaves

ALL = slice(None)
UNROLLED = 8  # steps of the longer graph that is captured beside the one of a single step
State = dict[str, Any]


class Lane:
    """One stack: the tensors that its steps read and write, and the table of its batches."""

    def __init__(self, state: State, table: Tensor, device: torch.device) -> None:
        self.state = state
        self.table = torch.zeros(0, *table.shape[1:], dtype=torch.int64, device=device)
        self.now = torch.zeros(1, *table.shape[1:], dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.copies: list[Tensor] = []

    def take(self, table: Tensor) -> bool:
        """Copy the batches of a round to the device; return whether their address changed."""
        moved = len(table) > len(self.table)
        if moved:
            room = 1 << (len(table) - 1).bit_length()
            self.table = torch.zeros(room, *table.shape[1:], dtype=torch.int64, device=self.at.device)
        self.table[: len(table)].copy_(table, non_blocking=True)
        return moved

    def arguments(self) -> tuple[Carry, State, Tensor]:
        """The arguments of a step."""
        return self.state["carry"], {k: v for k, v in self.state.items() if k != "carry"}, self.now[0]

    def step(self, program: Callable[..., None], pool: Sequence[Tensor]) -> None:
        """Run the next step."""
        torch.index_select(self.table, 0, self.at, out=self.now)
        self.at.add_(1)
        program(*self.arguments(), *pool, *self.copies)


class Lanes:
    """All stacks of a round."""

    def __init__(
        self,
        state: State,
        common: Collection[str],
        table: Tensor,
        data: Federation,
        memory: Any,
        streams: int,
    ) -> None:
        """`common` parts of the state are the same for all rows."""
        rows = table.shape[1]
        count = max(n for n in range(1, min(streams, rows) + 1) if rows % n == 0)
        shares = [slice(n * rows // count, (n + 1) * rows // count) for n in range(count)]
        self.parts = shares if count > 1 else [ALL]
        self.common = in_place({k: state[k] for k in common})
        self.lanes = []
        for part in self.parts:
            own = in_place(of_rows(state, part, common))
            self.lanes.append(Lane({**own, **self.common}, table[:, part], data.pool.x.device))
        self.streams = [torch.cuda.Stream() for _ in self.parts]  # type: ignore[no-untyped-call]
        self.pool = data.pool.x, data.pool.y
        self.programs: dict[Any, Callable[..., None]] = {}
        self.graphs: dict[Any, torch.cuda.CUDAGraph] = {}
        self.rounded: list[int] | None = None  # of a lane's tensors, those with a copy in bfloat16
        self.memory = memory

    def take(self, table: Tensor) -> None:
        """Copy the batches of a round to the device."""
        moved = [lane.take(table[:, part]) for lane, part in zip(self.lanes, self.parts, strict=True)]
        if any(moved):  # graphs read the tables at the addresses of their capture
            self.graphs = {}

    def load(self, state: State) -> None:
        """Copy the start of a round to the lanes."""
        put(self.common, {k: state[k] for k in self.common})
        for lane, part in zip(self.lanes, self.parts, strict=True):
            own = {k: v for k, v in lane.state.items() if k not in self.common}
            put(own, of_rows(state, part, self.common))
            lane.at.zero_()
            if self.rounded:
                foreach_copy_(lane.copies, self.copied(lane))

    def prepare(self, mask: Any, function: Callable[..., Any]) -> None:
        """Compile and capture the steps under a mask. Call it before `load`: a trial changes the rows."""
        with explain_capture_errors():
            if mask not in self.programs:
                self.programs[mask] = self.program(function)
            for steps in (1, UNROLLED):
                if (mask, steps) not in self.graphs:
                    for lane in self.lanes:
                        lane.at.zero_()
                    work = partial(self.steps, self.programs[mask])
                    graph, _ = captured(partial(work, steps), self.memory, partial(work, 1))
                    self.graphs[mask, steps] = graph

    def program(self, function: Callable[..., Any]) -> Callable[..., None]:
        """Compile the function as a program of a lane's arguments, the pool and the lane's copies."""
        first = self.lanes[0]
        graph = written_down(function, *first.arguments(), *self.pool)
        if self.rounded is None:
            self.rounded = rounded(graph, len(tree_leaves(first.arguments())))
            for lane in self.lanes:
                lane.copies = [torch.empty_like(v, dtype=torch.bfloat16) for v in self.copied(lane)]
        return compiled(reading_copies(graph, self.rounded), *first.arguments(), *self.pool, *first.copies)

    def copied(self, lane: Lane) -> list[Tensor]:
        """The tensors of a lane that have a copy in bfloat16."""
        values = tree_leaves(lane.arguments())
        return [values[number] for number in self.rounded or ()]

    def steps(self, program: Callable[..., None], count: int) -> None:
        """Run `count` steps of every stack, each on its stream."""
        here = torch.cuda.current_stream()
        streams = self.streams if len(self.lanes) > 1 else [here]
        for lane, stream in zip(self.lanes, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                for _ in range(count):
                    lane.step(program, self.pool)
        for stream in streams:
            here.wait_stream(stream)

    def run(self, masks: Sequence[Any]) -> None:
        """Run all steps of the round; single steps first, because a short graph starts sooner."""
        at = 0
        while at < len(masks):
            same = next((n for n in range(at, len(masks)) if masks[n] != masks[at]), len(masks)) - at
            for _ in range(same % UNROLLED):
                self.graphs[masks[at], 1].replay()
            for _ in range(same // UNROLLED):
                self.graphs[masks[at], UNROLLED].replay()
            at += same

    def tensors(self) -> list[Tensor]:
        """The tensors of all carries."""
        return [v for lane in self.lanes for v in tree_leaves(lane.state["carry"])]

    def carry(self) -> Carry:
        """The carry of all rows; of a single stack its own tensors, which the next round overwrites."""
        parts = [lane.state["carry"] for lane in self.lanes]
        return parts[0] if len(parts) == 1 else tree_map(lambda *v: torch.cat(v), parts[0], *parts[1:])


def of_rows(state: State, part: slice, common: Collection[str]) -> State:
    """The state of some rows, without its common parts."""
    own = {k: v for k, v in state.items() if k not in common}
    return own if part == ALL else tree_map(lambda v: v[part], own)
