"""Stacked: trains clients at once by vmap; one row of every tensor is one client.

The clients of a chunk run in lockstep (data/alignment.py). A row whose client has no step still computes one,
on samples of weight 1, and its result is dropped. Samples that only fill a batch have weight 0. A backend
runs the programs: direct.py, or CUDA graphs (cuda/captured.py).
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
    """The memory of a client after its round."""

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
        """`chunk` is the maximum number of clients in a stack (0: no limit).

        With `participants`, the clients of a later round, batches are drawn one round ahead.
        """
        self.network, self.model, self.federation = model, model, federation
        self.chunk = chunk
        self.memories = Memories()
        self.backend = backend or Direct()
        self.overlap: Overlap = self.backend.overlap
        self.planner = Planner(federation, self.backend.pin_plan, participants)
        self.facts = self.planner.facts

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; clients keep their memories of the slots in `kept`."""
        self.stage, self.model = stage, model_for(stage.algorithm, self.network)
        self.memories.begin(stage.algorithm, self.model, params, kept)
        sizes = np.array([len(samples) for samples in self.federation.clients])
        self.width = int(step_counts(sizes, stage.local)[0].max())
        self.forget()

    def forget(self) -> None:
        """Release programs, their memory, and batches drawn ahead; the next round creates them again."""
        self.planner.forget()
        self.backend.forget()

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train `clients` from `order`; on an out-of-memory error, train them again in smaller chunks."""
        while True:
            try:
                return self.train_chunks(order, clients)
            except Exception as error:
                if not self.halve_chunk(error, len(clients)):
                    raise
            self.forget()

    def train_chunks(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train `clients` chunk by chunk; their memories are stored after the last chunk has trained."""
        sums, memories = Sums(), list[ClientMemory]()
        for chunk in self.chunks(clients):
            chunk_sums, chunk_memories = self.train_chunk(order, chunk)
            sums += chunk_sums
            memories += chunk_memories
        for memory in memories:
            self.memories.keep(*memory)
        return sums

    def train_chunk(self, order: Order, clients: Sequence[int]) -> tuple[Sums, list[ClientMemory]]:
        """Train the clients of one chunk; return the sums of their uploads, and their new memories.

        The host waits for the device in `read_back`, and does all work that it can before.
        """
        start = self.start(self.stage, self.model, self.rows(order, clients))
        event = self.overlap.record_event()
        carry = self.run_steps(start)
        self.draw_ahead(order)
        row_numbers = torch.arange(len(start.members), device=start.prepared.lr.device)
        end = self.end(start, carry, row_numbers < len(clients))
        trained, weights = self.trained_leaves(start.plan), upload_weights(self.stage.algorithm)
        self.overlap.report_busy(event)
        flags, losses = read_back(end.uploads, end.admitted)
        uploads = Uploads(end.uploads, start.prepared.facts, end.admitted, flags, losses)
        sums = sum_uploads(uploads, 0, clients, weights, trained, end.totals)
        return sums, self.changed_memories(clients, 0, carry, end.slots, flags)

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Fine-tune a copy of each client's model on its data; yield client, parameters and statistics."""
        done = 0
        while done < len(clients):
            try:
                for tuned in self.tune_chunks(order, clients[done:], tune):
                    yield tuned
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
        """Fine-tune `clients` chunk by chunk; an out-of-memory error is raised."""
        algorithm = tuning_algorithm(self.stage.algorithm, tune)
        stage = replace(self.stage, algorithm=algorithm, local=replace(self.stage.local, epochs=tune.epochs))
        for chunk in self.chunks(clients):
            model = model_for(algorithm, self.model)
            rows = StackRows(order, chunk, len(chunk), self.width)
            start = self.start(stage, model, rows, tuning=True)
            carry = self.backend.run_steps(stage, model, self.federation, start, True)
            for number, client in enumerate(chunk):
                yield client, row(carry["params"], number), row(carry["buffers"], number)

    def chunks(self, clients: Sequence[int]) -> Iterator[Sequence[int]]:
        """`clients` in parts of at most `self.chunk` clients."""
        size = self.chunk or len(clients) or 1
        for first in range(0, len(clients), size):
            yield clients[first : first + size]

    def halve_chunk(self, error: Exception, clients: int) -> bool:
        """Halve `self.chunk` if `error` means out of memory; return whether to try again."""
        at_once = min(self.chunk or clients, clients)
        if at_once == 1 or not ran_out_of_memory(error):
            return False
        self.chunk = -(-at_once // 2)
        return True

    def rows(self, order: Order, clients: Sequence[int]) -> StackRows:
        """The rows of a stack of `clients`, padded if each number of rows needs a program."""
        padding = bucket(len(clients)) - len(clients) if self.backend.pads_rows else 0
        return StackRows(order, [*clients, *[clients[0]] * padding], len(clients), self.width)

    def draw_ahead(self, order: Order) -> None:
        """Start to draw the batches of the next round, if its clients are known."""
        following = next_order(order)
        for chunk in self.chunks(list(self.planner.participants(following.round))):
            self.planner.draw_ahead(self.stage, self.model, self.rows(following, chunk))

    def start(self, stage: Stage, model: Model, rows: StackRows, tuning: bool = False) -> StackStart:
        """The clients of `rows` before their first step; `tuning`: without state and broadcasts."""
        prepared = self.planner.prepare(stage, model, rows, tuning)
        contiguous = self.backend.contiguous_rows and not tuning
        carry = first_carry(stage, self.memories, rows.order, rows.clients, contiguous, with_shared=True)
        if tuning:
            carry["state"] = {}
        members = [self.federation.clients[c] for c in rows.clients]
        return StackStart(members, prepared, carry, rows.order.shared, {} if tuning else rows.order.broadcast)

    def run_steps(self, start: StackStart) -> Carry:
        """Run all steps of a round, and return the carry after the last."""
        return self.backend.run_steps(self.stage, self.model, self.federation, start, False)

    def end(self, start: StackStart, carry: Carry, real_rows: Tensor) -> StackEnd:
        """Run the end of a round: memories and uploads of every row, and weighted sums.

        `real_rows` is true for a client and false for padding: [rows], or [runs, rows] for one sum per run.
        """
        algorithm, inputs = self.stage.algorithm, start.inputs()
        sums = self.survey(start, carry) if algorithm.needs_class_means else None
        steps, trained = step_numbers(start.plan, inputs.lr)
        program = EndProgram(algorithm, self.model, self.stage.local.optimizer.momentum, start.per_row)
        end_inputs = EndInputs(inputs.facts, inputs.anchor, inputs.broadcast, inputs.lr, steps, trained, sums)
        return self.backend.run_end(program, carry, end_inputs, real_rows, keep_totals=bool(self.chunk))

    @torch.no_grad()
    def survey(self, start: StackStart, carry: Carry) -> Leaves:
        """Sums by class of the features of each client's whole training set, one row per client."""
        data, lr = self.federation, start.prepared.lr
        index, weight = survey(start.members, start.plan.index.shape[-1])
        indices, weights = torch.from_numpy(index).to(lr.device), torch.from_numpy(weight).to(lr)
        function, pool = partial(stacked_survey, self.model, data), (data.pool.x, data.pool.y)
        models = {"params": carry["params"], "buffers": carry["buffers"]}
        sums: Leaves = {}
        for number in range(len(index)):
            batch_sums = self.backend.run_once(
                "survey", function, models, pool, indices[number], weights[number]
            )
            sums = {k: v + sums[k] if sums else v for k, v in batch_sums.items()}
        return sums

    def trained_leaves(self, plan: Plan) -> frozenset[str]:
        """The leaves that train in some step of a round."""
        return frozenset(k for mask in set(plan.masks) for k in trainable(self.model, mask))

    def changed_memories(
        self, clients: Sequence[int], first: int, carry: Carry, slots: Tree, flags: Sequence[bool]
    ) -> list[ClientMemory]:
        """The new memories of `clients`, which are the rows from `first` on.

        A client whose flag is false (its results are not finite) keeps its old memory.
        """
        if not self.memories.needed:
            return []
        stacked = {
            "params": {k: carry["params"][k] for k in self.memories.kept},
            "buffers": carry["buffers"] if self.model.statistics == "local" else {},
            "slots": slots,
        }
        by_client = {c: row(stacked, first + n) for n, c in enumerate(clients) if flags[first + n]}
        return [ClientMemory(c, v["params"], v["buffers"], v["slots"]) for c, v in by_client.items()]

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """Parameters and statistics of a client's own model: `shared`, and the client's memory."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Restore saved memories."""
        self.memories.load(saved)


def next_order(order: Order) -> Order:
    """The next order with the numbers of its round; its tensors are still those of `order`."""
    return order._replace(round=order.round + 1, stage_round=order.stage_round + 1)
