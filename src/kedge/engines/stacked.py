"""C clients at once by vmap: one row of every tensor is one client.

Clients of a chunk run in lockstep (data/batches.py). A dead row computes on a batch of weight 1 and its
result is selected away; padding has weight 0. Compiled, the number of rows is padded to a few sizes, so
that a varying number of participants does not make new programs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage, Tune, fitted, tuning
from kedge.core.client import Carry, started
from kedge.core.model import Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree, row, stack, tree_map
from kedge.data.batches import Plan, plan, step_counts, survey
from kedge.data.federation import Federation
from kedge.engines.engine import Mean, Order, lr_times, trainable
from kedge.engines.memory import Memories
from kedge.engines.programs import bucket, compiled, stacked_end, stacked_step, stacked_survey


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows after their last step."""

    rows: Sequence[int]  # the client of each row; rows beyond the real clients are padding
    plan: Plan
    carry: Carry
    facts: Leaves
    lr: Tensor


class Stacked:
    """vmap over the clients of a round, in chunks."""

    def __init__(self, model: Model, federation: Federation, chunk: int = 0, compiled: bool = False) -> None:
        self.network, self.model, self.federation = model, model, federation
        self.facts = federation.facts()
        self.memories = Memories()
        self.chunk, self.compiled = chunk, compiled
        self.programs: dict[Any, Callable[..., Any]] = {}

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        self.stage, self.model = stage, fitted(stage.algorithm, self.network)
        self.programs = {}
        self.memories.begin(stage.algorithm, self.model, params, kept)
        sizes = np.array([len(own) for own in self.federation.clients])
        self.width = int(step_counts(sizes, stage.local)[0].max())

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients from the order; the weighted mean of their uploads."""
        mean = Mean(self.stage.algorithm)
        size = self.chunk or len(clients)
        after: list[tuple[int, Leaves, Leaves, Tree]] = []
        trained: set[str] = set()
        for start in range(0, len(clients), size):
            after += self.stacked_round(order, clients[start : start + size], mean, trained)
        for kept in after:
            self.memories.keep(*kept)
        return mean.reply(frozenset(trained))

    def stacked_round(
        self, order: Order, clients: Sequence[int], mean: Mean, trained: set[str]
    ) -> list[tuple[int, Leaves, Leaves, Tree]]:
        """One chunk: its uploads go into `mean`; what its clients will remember is returned."""
        algorithm, real = self.stage.algorithm, len(clients)
        rows, padding = self.rows(clients)
        done = self.trained(self.stage, self.model, order, rows, real, self.compiled)
        trained |= {k for mask in set(done.plan.masks) for k in trainable(self.model, mask)}
        steps, times = lr_times(self.model, done.plan, done.lr, self.stage.local.optimizer.momentum)
        end = self.program("end", partial(stacked_end, algorithm), self.compiled)
        living = torch.arange(len(done.rows), device=done.lr.device) < real
        sums = self.surveyed(done) if algorithm.needs_class_means else None
        slots, uploads, admitted, totals = end(
            done.carry, done.facts, order.shared, order.cast, done.lr, steps, times, living, sums
        )
        facts = done.facts
        if padding:
            slots, uploads = (tree_map(lambda v: v[:real], tree) for tree in (slots, uploads))
            facts, admitted = {k: v[:real] for k, v in facts.items()}, admitted[:real]
        mean.add(uploads, facts, admitted, clients, totals)
        if not self.memories.needed:
            return []
        kept = {
            "params": {k: done.carry["params"][k] for k in self.memories.kept},
            "buffers": done.carry["buffers"] if self.model.statistics == "local" else {},
            "slots": slots,
        }
        good = admitted.tolist()
        mine = {c: row(kept, number) for number, c in enumerate(clients) if good[number]}
        return [(c, own["params"], own["buffers"], own["slots"]) for c, own in mine.items()]

    def rows(self, clients: Sequence[int]) -> tuple[list[int], int]:
        """The client of each row of a stack of these, and how many rows at its end are padding."""
        padding = bucket(len(clients)) - len(clients) if self.compiled else 0
        return [*clients, *[clients[0]] * padding], padding

    def plan(self, stage: Stage, model: Model, order: Order, rows: Sequence[int], tuning: bool) -> Plan:
        """The batches of these rows."""
        data = self.federation
        return plan(
            [data.clients[c] for c in rows], rows, stage.local, stage.algorithm.schedule, len(model.units),
            order.seed, order.round, order.stage_round, width=self.width, random=model.random, tuning=tuning,
            augment=data.augment,
        )  # fmt: skip

    def tuned(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Each client's model fine-tuned on its own data: client, parameters, statistics; nothing is kept."""
        algorithm = tuning(self.stage.algorithm, tune)
        stage = replace(self.stage, algorithm=algorithm, local=replace(self.stage.local, epochs=tune.epochs))
        size = self.chunk or len(clients)
        for start in range(0, len(clients), size):
            some = clients[start : start + size]
            done = self.trained(
                stage, fitted(algorithm, self.model), order, some, len(some), False, tuning=True
            )
            for number, client in enumerate(some):
                own = row({k: done.carry[k] for k in ("params", "buffers")}, number)
                yield client, own["params"], own["buffers"]

    def trained(
        self,
        stage: Stage,
        model: Model,
        order: Order,
        rows: Sequence[int],
        real: int,
        compiled: bool,
        tuning: bool = False,
    ) -> Chunk:
        """These rows after their last step; those after the first `real` are dead."""
        own = self.plan(stage, model, order, rows, tuning)
        own.alive[:, real:] = False
        like = next(iter(order.shared.values()))
        device, dtype = like.device, like.dtype
        lr = torch.tensor(stage.local.optimizer.rate(order.round), dtype=dtype, device=device)
        ids = torch.tensor(rows, device=device)
        facts = {k: v[ids] for k, v in self.facts.items()}
        memories = [self.memories.of(c, order.shared, order.buffers) for c in rows]
        if tuning:
            memories = [{**memory, "slots": {}} for memory in memories]
        carry = self.start(stage, memories, order, len(rows), compiled)
        carry = self.advanced(stage, model, order, own, carry, facts, lr, compiled, tuning)
        return Chunk(rows, own, carry, facts, lr)

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
        """The carry after all steps of the plan."""
        data, device = self.federation, lr.device
        # As they were sent, or as the client left them. A copy: a program that saw the carry's own here
        # would be made anew for the second step, when they are no longer that.
        statistics = tree_map(torch.clone, carry["buffers"])
        index = torch.from_numpy(own.index).to(device)
        weight = torch.from_numpy(own.weight).to(device, lr.dtype)
        alive = torch.from_numpy(own.alive).to(device)
        key = torch.from_numpy(own.key).to(device)
        moves = torch.from_numpy(own.moves).to(device)
        for number, mask in enumerate(own.masks):
            leaves = trainable(model, mask)
            masked = compiled or not own.alive[number].all()
            advance = self.program(
                (tuning, leaves, masked),
                partial(stacked_step, stage.algorithm, model, stage.local, data, leaves, masked),
                compiled,
            )
            carry = advance(
                carry, data.pool.x, data.pool.y, index[number], weight[number], key[number], moves[number],
                alive[number], facts, statistics, order.shared, {} if tuning else order.cast, lr,
            )  # fmt: skip
        return carry

    @torch.no_grad()
    def surveyed(self, done: Chunk) -> Leaves:
        """Per row: the sums by class of its client's features over its whole training set."""
        data, like = self.federation, done.lr
        index, weight = survey([data.clients[c] for c in done.rows], self.width)
        where, real = torch.from_numpy(index).to(like.device), torch.from_numpy(weight).to(like)
        look = self.program("survey", partial(stacked_survey, self.model, data), self.compiled)
        sums: Leaves = {}
        for number in range(len(index)):
            part = look(
                done.carry["params"], done.carry["buffers"],
                data.pool.x, data.pool.y, where[number], real[number],
            )  # fmt: skip
            sums = {k: v + sums[k] if sums else v for k, v in part.items()}
        return sums

    def start(
        self, stage: Stage, memories: list[dict[str, Any]], order: Order, count: int, compiled: bool
    ) -> Carry:
        """The stacked carry: what is the same for all is expanded, what clients keep is stacked."""

        def spread(v: Tensor) -> Tensor:
            wide = v.expand(count, *v.shape)
            return wide.contiguous() if compiled else wide  # one layout, one program

        one = memories[0]
        carry = tree_map(spread, started(stage.local, one["params"], order.buffers, {}))
        carry["params"] |= stack([{k: m["params"][k] for k in self.memories.local} for m in memories])
        if self.model.statistics == "local":
            carry["buffers"] = stack([m["buffers"] for m in memories])
        carry["state"] = stack([m["slots"] for m in memories])
        return carry

    def program(self, key: Any, function: Callable[..., Any], compile: bool) -> Callable[..., Any]:
        """The function, compiled if asked for; made once for each key."""
        if (key, compile) not in self.programs:
            self.programs[key, compile] = compiled(function) if compile else function
        return self.programs[key, compile]

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model: the shared leaves with those it keeps."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Take saved memories up."""
        self.memories.load(saved)
