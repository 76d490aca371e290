"""CUDA: a stack whose steps are compiled once, captured as graphs and replayed.

A step of a small network is over before the host has launched its operators one by one. A replayed graph
needs no launches: the tensors it reads and moves lie in fixed places (lanes.py), the batches of the whole
round in one table on the device, of which each step takes the next row. While the device trains, the host
draws the next round's batches.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kedge.core.algorithm import Stage, Tune
from kedge.core.client import Carry
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves
from kedge.data.batches import Plan
from kedge.data.federation import Federation
from kedge.engines.cuda.graphs import Beside, Replayed
from kedge.engines.cuda.lanes import Lanes
from kedge.engines.engine import Order, ran_out, staged, trainable
from kedge.engines.programs import stacked_step
from kedge.engines.round_start import Begun, Coming, Known
from kedge.engines.stacked import Stacked
from kedge.torch_private import tree_leaves, tree_map_only

Result = TypeVar("Result")
Ahead = Callable[[int], Sequence[int]]  # number of a round -> who will take part


class Drawn(NamedTuple):
    """What is known of a round before it begins, its plan still on the way."""

    plan: Future[Plan]
    facts: Leaves
    lr: Tensor


class Captured(Stacked):
    """The stack of a round on a CUDA device, from captured graphs."""

    beside = True  # what is done `aside` does not keep the next round from training

    def __init__(
        self,
        model: Model,
        federation: Federation,
        chunk: int = 0,
        ahead: Ahead | None = None,
        streams: int = 1,
    ) -> None:
        """`streams`: into so many stacks, side by side, the rows are split where they divide."""
        check_device(federation)
        super().__init__(model, federation, chunk, compiled=True)
        self.streams = streams
        self.lanes: dict[Any, Lanes] = {}
        self.ends: dict[Any, Replayed] = {}
        self.looks: dict[Any, Replayed] = {}
        self.ahead = ahead
        self.foreseen: Callable[[], object] | None = None  # what the host does while the device trains
        self.drawn: dict[Any, Drawn] = {}
        self.drawing = ThreadPoolExecutor(1, "kedge-batches")
        self.tables: WeakKeyDictionary[Plan, Tensor] = WeakKeyDictionary()
        self.side = Beside()

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        super().begin(stage, params, kept)
        self.forget()

    def forget(self) -> None:
        """Give the graphs and their memory back."""
        torch.cuda.synchronize()
        self.lanes, self.ends, self.looks, self.drawn = {}, {}, {}, {}
        # Graphs that run at the same time must not share their memory.
        self.memory, self.memory_beside = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients from the order; where memory does not suffice, fewer at once."""
        self.foreseen = partial(self.draw_ahead, order)
        while True:
            try:
                return super().round(order, clients)
            except Exception as error:
                if not self.fewer(error, len(clients)):
                    raise
            self.forget()

    def tuned(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Each client's model fine-tuned; where memory does not suffice, fewer at once."""
        done = 0
        while done < len(clients):
            try:
                for own in super().tuned(order, clients[done:], tune):
                    yield own
                    done += 1
            except Exception as error:
                if not self.fewer(error, len(clients) - done):
                    raise
            else:
                return
            self.forget()

    def fewer(self, error: Exception, clients: int) -> bool:
        """Whether memory ran out and it may suffice for half of these at once, which is tried next."""
        at_once = min(self.chunk or clients, clients)
        if at_once == 1 or not ran_out(error):
            return False
        self.chunk = -(-at_once // 2)
        return True

    def beforehand(
        self, stage: Stage, model: Model, order: Order, rows: Sequence[int], real: int, tuning: bool
    ) -> Known:
        """What is known of these rows, drawn before if this was foreseen."""
        key = order.round, order.stage_round, order.seed, tuple(rows)
        if tuning or key not in self.drawn:
            return super().beforehand(stage, model, order, rows, real, tuning)
        plan, facts, lr = self.drawn.pop(key)
        return Known(plan.result(), facts, lr)

    def start(
        self, stage: Stage, order: Order, rows: Sequence[int], compiled: bool, bare: bool = False
    ) -> Carry:
        """The stacked carry; what is the same for all is one row: lanes are places of their own."""
        return super().start(stage, order, rows, False, bare)

    def clients_in(self, round: int) -> Sequence[int]:
        """The clients that will take part in a round; none if that is not known."""
        return self.ahead(round) if self.ahead else ()

    def draw_ahead(self, order: Order, padding: int | None = None) -> list[Coming]:
        """Begin to draw the next round's batches beside the device's work; of which rows, by chunks."""
        if self.ahead is None:
            return []
        self.drawn = {key: one for key, one in self.drawn.items() if key[0] >= order.round}
        after = order._replace(round=order.round + 1, stage_round=order.stage_round + 1)
        clients = list(self.ahead(after.round))
        size = self.chunk or len(clients)
        coming = []
        for start in range(0, len(clients), size):
            some = clients[start : start + size]
            rows = self.rows(some)[0] if padding is None else [*some, *[some[0]] * padding]
            key = after.round, after.stage_round, after.seed, tuple(rows)
            if key not in self.drawn:  # by an earlier chunk of this round
                draw = partial(self.drawn_now, self.stage, self.model, after, rows, len(some))
                facts, lr = self.facts_of(rows), self.rate(self.stage, after)
                self.drawn[key] = Drawn(self.drawing.submit(draw), facts, lr)
            coming.append(Coming(after, rows, len(some)))
        return coming

    def table(self, plan: Plan) -> Tensor:
        """The plan's table, ready to be sent."""
        if plan not in self.tables:
            self.tables[plan] = staged(plan.table, self.federation.pool.x.device)
        return self.tables[plan]

    def drawn_now(self, stage: Stage, model: Model, order: Order, rows: Sequence[int], real: int) -> Plan:
        """The plan, with its table."""
        own = self.plan(stage, model, order, rows, real, False)
        self.table(own)
        return own

    def program(self, key: Any, function: Callable[..., Any], compile: bool) -> Callable[..., Any]:
        """What runs once a round: the end as a graph, the rest as it is."""
        return partial(self.end, function) if key == "end" else function

    def repeated(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled, as a graph, at its first call."""
        return self.looks.setdefault(name, Replayed(function, self.memory_beside, compile=True))

    def aside(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Begin the work on a stream of its own; a function that waits for its result, on the CPU."""
        return self.side.launched(work)

    def mark(self) -> Any:
        """Where the main stream is now."""
        return torch.cuda.current_stream().record_event()

    @contextmanager
    def apart(self, since: Any) -> Iterator[None]:
        """What is launched here waits for the main stream as it was then, not for what it trains since."""
        self.side.stream.wait_event(since)
        with torch.cuda.stream(self.side.stream):
            yield

    def end(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Memories, uploads, flags and sums; those of a chunk are needed beyond the next chunk's end."""
        shape = tuple(v.shape for v in tree_leaves(arguments) if isinstance(v, Tensor))
        if shape not in self.ends:
            own = [v for lanes in self.lanes.values() for v in lanes.places()]
            self.ends[shape] = Replayed(function, self.memory, still=own)
        slots, uploads, admitted, totals = self.ends[shape](*arguments)
        kept = tree_map_only(Tensor, torch.clone, totals) if self.chunk else totals
        return slots, uploads, admitted, kept

    def advanced(
        self, stage: Stage, model: Model, begun: Begun, compiled: bool, tuning: bool = False
    ) -> Carry:
        """The carry after all steps of the plan: the lane's own tensors, until its next round."""
        state = {
            "carry": begun.carry,
            "facts": begun.facts,
            "statistics": begun.carry["buffers"],
            "anchor": begun.shared,
            "broadcast": begun.broadcast,
            "lr": begun.lr,
        }
        rows, masks = self.table(begun.plan), begun.plan.masks
        key = tuning, begun.apart, rows.shape[1:]
        if key not in self.lanes:
            common = () if begun.apart else ("anchor", "broadcast", "lr")
            self.lanes[key] = Lanes(state, common, rows, self.federation, self.memory, self.streams)
        lanes = self.lanes[key]
        lanes.take(rows)
        for mask in dict.fromkeys(masks):
            leaves = trainable(model, mask)
            lanes.prepare(mask, partial(step, stage, model, self.federation, leaves, begun.apart))
        lanes.load(state)
        lanes.run(masks)
        if self.foreseen is not None and not tuning:
            self.foreseen()
        return lanes.carry()


def check_device(federation: Federation) -> None:
    """Raise where there are no graphs."""
    if federation.pool.x.device.type != "cuda":
        raise RequestError("engine.name: 'captured' needs a CUDA device; use stacked or auto.")


def step(
    stage: Stage,
    model: Model,
    data: Federation,
    leaves: tuple[str, ...],
    apart: bool,
    carry: Carry,
    state: dict[str, Any],
    now: Tensor,
    pool_x: Tensor,
    pool_y: Tensor,
) -> Carry:
    """One step of every row, its batch read from a row of the table."""
    dtype = state["lr"].dtype
    moved = data.augment != "none"
    count = (now.shape[1] - 3) // (5 if moved else 2)
    widths = [count, count, 1, 2, 3 * count if moved else 0]
    widths.append(now.shape[1] - sum(widths))
    index, real, alive, key, moves, _ = torch.split_with_sizes(now, widths, 1)
    return stacked_step(
        stage.algorithm, model, stage.local, data, leaves, True, apart, carry, pool_x, pool_y,
        index, real.to(dtype), key, moves.reshape(len(now), count, 3 if moved else 0), alive[:, 0] > 0,
        state["facts"], state["statistics"], state["anchor"], state["broadcast"], state["lr"],
    )  # fmt: skip
