"""Stacked: clients train at once by vmap; one row of every tensor is one client.

The clients of a chunk run in lockstep (data/alignment.py). A row without a step computes on a batch of
weight 1, and its result is dropped; padding has weight 0. A backend runs the programs: direct.py, or CUDA
graphs (cuda/captured.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage, Tune, model_for, tuning_algorithm
from kedge.core.client import Carry
from kedge.core.model import Model
from kedge.core.server import upload_weights
from kedge.core.tree import Leaves, Tree, row
from kedge.data.batches import Plan, step_counts, survey
from kedge.data.federation import Federation
from kedge.engines.engine import Order
from kedge.engines.leaves import trainable
from kedge.engines.memory import Memories
from kedge.engines.out_of_memory import ran_out_of_memory
from kedge.engines.overlap import Overlap
from kedge.engines.stack.direct import Backend, Direct
from kedge.engines.stack.planner import Participants, Planner
from kedge.engines.stack.programs import EndInputs, EndProgram, StackEnd, bucket, stacked_survey
from kedge.engines.stack.stack_start import StackRows, StackStart, first_carry
from kedge.engines.sums import Sums, Uploads, read_back, sum_uploads
from kedge.engines.transfer import step_numbers


class ClientMemory(NamedTuple):
    """The state that a client keeps after its round."""

    client: int
    params: Leaves
    buffers: Leaves
    slots: Tree


class Stacked:
    """Trains the clients of a round side by side, in chunks."""

    at_once = 20

    def __init__(
        self,
        model: Model,
        federation: Federation,
        chunk: int = 0,
        backend: Backend | None = None,
        participants: Participants | None = None,
    ) -> None:
        """`chunk` is the most clients at once (0: all); with `participants`, batches are drawn ahead."""
        self.network, self.model, self.federation = model, model, federation
        self.chunk = chunk
        self.memories = Memories()
        self.backend = backend or Direct()
        self.overlap: Overlap = self.backend.overlap
        self.planner = Planner(federation, self.backend.stage_plan, participants)
        self.facts = self.planner.facts

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; clients keep their memories of the slots in `kept`."""
        self.stage, self.model = stage, model_for(stage.algorithm, self.network)
        self.bare_carries: dict[int, Carry] = {}  # by the number of rows
        self.memories.begin(stage.algorithm, self.model, params, kept)
        sizes = np.array([len(own) for own in self.federation.clients])
        self.width = int(step_counts(sizes, stage.local)[0].max())
        self.forget()

    def forget(self) -> None:
        """Release programs, their memory and batches drawn ahead; the next round makes them again."""
        self.planner.forget()
        self.backend.forget()

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train these clients from the order, in smaller chunks if memory runs out."""
        while True:
            try:
                return self.train_chunks(order, clients)
            except Exception as error:
                if not self.halve_chunk(error, len(clients)):
                    raise
            self.forget()

    def train_chunks(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train these clients, chunk by chunk; memories change after the last one."""
        sums, memories = Sums(), list[ClientMemory]()
        for some in self.chunks(clients):
            own, changed = self.train_chunk(order, some)
            sums += own
            memories += changed
        for memory in memories:
            self.memories.keep(*memory)
        return sums

    def train_chunk(self, order: Order, clients: Sequence[int]) -> tuple[Sums, list[ClientMemory]]:
        """Train the clients of one chunk: the sums of their uploads, and their new memories."""
        start = self.start(self.stage, self.model, self.rows(order, clients))
        event = self.overlap.mark()
        carry = self.run_steps(start)
        self.draw_ahead(order)
        numbers = torch.arange(len(start.members), device=start.prepared.lr.device)
        end = self.end(start, carry, numbers < len(clients))
        trained, own_weights = self.trained_leaves(start.plan), upload_weights(self.stage.algorithm)
        self.overlap.report_busy(event)
        uploads = Uploads(
            end.uploads, start.prepared.facts, end.admitted, *read_back(end.uploads, end.admitted)
        )
        sums = sum_uploads(uploads, 0, clients, own_weights, trained, end.totals)
        return sums, self.changed_memories(clients, 0, carry, end.slots, uploads.flags)

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Each client's model fine-tuned on its own data: client, parameters, statistics; nothing is kept."""
        done = 0
        while done < len(clients):
            try:
                for own in self.tune_chunks(order, clients[done:], tune):
                    yield own
                    done += 1
            except Exception as error:
                if not self.halve_chunk(error, len(clients) - done):
                    raise
            else:
                return
            self.forget()

    def tune_chunks(
        self, order: Order, clients: Sequence[int], tune: Tune
    ) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Fine-tune chunk by chunk; an out-of-memory error is raised."""
        algorithm = tuning_algorithm(self.stage.algorithm, tune)
        stage = replace(self.stage, algorithm=algorithm, local=replace(self.stage.local, epochs=tune.epochs))
        for some in self.chunks(clients):
            model = model_for(algorithm, self.model)
            rows = StackRows(order, some, len(some), self.width)
            start = self.start(stage, model, rows, tuning=True)
            carry = self.backend.run_steps(stage, model, self.federation, start, True)
            for number, client in enumerate(some):
                yield client, row(carry["params"], number), row(carry["buffers"], number)

    def chunks(self, clients: Sequence[int]) -> Iterator[Sequence[int]]:
        """The clients, at most `chunk` at a time."""
        size = self.chunk or len(clients) or 1
        for first in range(0, len(clients), size):
            yield clients[first : first + size]

    def halve_chunk(self, error: Exception, clients: int) -> bool:
        """Halve `chunk` if `error` means out of memory; return whether to try again."""
        at_once = min(self.chunk or clients, clients)
        if at_once == 1 or not ran_out_of_memory(error):
            return False
        self.chunk = -(-at_once // 2)
        return True

    def rows(self, order: Order, clients: Sequence[int]) -> StackRows:
        """The rows of a stack of these clients, padded if programs are made for one number of rows."""
        padding = bucket(len(clients)) - len(clients) if self.backend.pads_rows else 0
        return StackRows(order, [*clients, *[clients[0]] * padding], len(clients), self.width)

    def draw_ahead(self, order: Order) -> None:
        """Start to draw the batches of the next round, if its clients are known."""
        following = next_order(order)
        for some in self.chunks(list(self.planner.participants(following.round))):
            self.planner.draw_ahead(self.stage, self.model, self.rows(following, some))

    def start(self, stage: Stage, model: Model, rows: StackRows, tuning: bool = False) -> StackStart:
        """The start of a round of these rows."""
        prepared = self.planner.prepare(stage, model, rows, tuning)
        contiguous = self.backend.contiguous_rows and not tuning
        carry = first_carry(stage, self.memories, rows.order, rows.clients, contiguous, bare=False)
        if tuning:
            carry["state"] = {}
        members = [self.federation.clients[c] for c in rows.clients]
        return StackStart(members, prepared, carry, rows.order.shared, {} if tuning else rows.order.broadcast)

    def bare_carry(self, rows: StackRows) -> Carry:
        """The carry without the shared leaves; the same object every round if clients remember nothing."""
        count = len(rows.clients)
        if count in self.bare_carries:
            return self.bare_carries[count]
        carry = first_carry(self.stage, self.memories, rows.order, rows.clients, False, bare=True)
        if not (self.memories.needed or self.memories.local or rows.order.buffers):
            self.bare_carries[count] = carry
        return carry

    def run_steps(self, start: StackStart) -> Carry:
        """The carry after all steps."""
        return self.backend.run_steps(self.stage, self.model, self.federation, start, False)

    def end(self, start: StackStart, carry: Carry, living: Tensor) -> StackEnd:
        """Memories and uploads of every row, and weighted sums over the living rows.

        `living` is [rows]; if rows belong to several runs, [runs, rows], and there is a sum for each run.
        """
        algorithm, inputs = self.stage.algorithm, start.inputs()
        sums = self.survey(start, carry) if algorithm.needs_class_means else None
        counts = step_numbers(start.plan, inputs.lr)
        program = EndProgram(algorithm, self.model, self.stage.local.optimizer.momentum, start.per_row)
        given = EndInputs(inputs.facts, inputs.anchor, inputs.broadcast, inputs.lr, *counts, sums)
        return self.backend.run_end(program, carry, given, living, kept=bool(self.chunk))

    @torch.no_grad()
    def survey(self, start: StackStart, carry: Carry) -> Leaves:
        """Per row: the sums by class of its client's features over its whole training set."""
        data, like = self.federation, start.prepared.lr
        index, weight = survey(start.members, start.plan.index.shape[-1])
        where, real = torch.from_numpy(index).to(like.device), torch.from_numpy(weight).to(like)
        function, pool = partial(stacked_survey, self.model, data), (data.pool.x, data.pool.y)
        models = {"params": carry["params"], "buffers": carry["buffers"]}
        sums: Leaves = {}
        for number in range(len(index)):
            part = self.backend.run_once("survey", function, models, pool, where[number], real[number])
            sums = {k: v + sums[k] if sums else v for k, v in part.items()}
        return sums

    def trained_leaves(self, plan: Plan) -> frozenset[str]:
        """The leaves that train in some step of a round."""
        return frozenset(k for mask in set(plan.masks) for k in trainable(self.model, mask))

    def changed_memories(
        self, clients: Sequence[int], first: int, carry: Carry, slots: Tree, flags: Sequence[bool]
    ) -> list[ClientMemory]:
        """The new memories of these clients (rows from `first` on); none if a flag is false (not finite)."""
        if not self.memories.needed:
            return []
        kept = {
            "params": {k: carry["params"][k] for k in self.memories.kept},
            "buffers": carry["buffers"] if self.model.statistics == "local" else {},
            "slots": slots,
        }
        mine = {c: row(kept, first + n) for n, c in enumerate(clients) if flags[first + n]}
        return [ClientMemory(c, own["params"], own["buffers"], own["slots"]) for c, own in mine.items()]

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model: the shared leaves with those it keeps."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Restore saved memories."""
        self.memories.load(saved)


def next_order(order: Order) -> Order:
    """The order of the round after, as far as it is known: its numbers, not its model."""
    return order._replace(round=order.round + 1, stage_round=order.stage_round + 1)
