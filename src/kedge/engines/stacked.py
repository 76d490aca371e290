"""C clients at once by vmap: one row of every tensor is one client.

Clients of a chunk run in lockstep (data/batches.py). A dead row computes on a batch of weight 1 and its
result is selected away; padding has weight 0. Compiled, the number of rows is padded to a few sizes, so
that a varying number of participants does not make new programs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage
from kedge.core.client import Carry, started
from kedge.core.model import Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree, row, stack, tree_map
from kedge.data.batches import plan, step_counts
from kedge.data.federation import Federation
from kedge.engines.engine import Mean, Order, lr_times, trainable
from kedge.engines.memory import Memories
from kedge.engines.programs import bucket, compiled, stacked_end, stacked_step


class Stacked:
    """vmap over the clients of a round, in chunks."""

    def __init__(self, model: Model, federation: Federation, chunk: int = 0, compiled: bool = False) -> None:
        self.model, self.federation = model, federation
        self.facts = federation.facts()
        self.memories = Memories()
        self.chunk, self.compiled = chunk, compiled
        self.programs: dict[Any, Callable[..., Carry]] = {}

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        self.stage = stage
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
        algorithm, local, data = self.stage.algorithm, self.stage.local, self.federation
        real = len(clients)
        rows = list(clients) + [clients[0]] * (bucket(real) - real if self.compiled else 0)
        own = plan(
            [data.clients[c] for c in rows], rows, local, algorithm.schedule, len(self.model.units),
            order.seed, order.round, order.stage_round, width=self.width, random=self.model.random,
        )  # fmt: skip
        own.alive[:, real:] = False
        like = next(iter(order.shared.values()))
        device, dtype = like.device, like.dtype
        lr = torch.tensor(local.optimizer.rate(order.round), dtype=dtype, device=device)
        ids = torch.tensor(rows, device=device)
        facts = {k: v[ids] for k, v in self.facts.items()}
        memories = [self.memories.of(c, order.shared, order.buffers) for c in rows]
        carry = self.start(memories, order, len(rows))
        index = torch.from_numpy(own.index).to(device)
        weight = torch.from_numpy(own.weight).to(device, dtype)
        alive = torch.from_numpy(own.alive).to(device)
        key = torch.from_numpy(own.key).to(device)
        for number, mask in enumerate(own.masks):
            leaves = trainable(self.model, mask)
            trained |= set(leaves)
            masked = self.compiled or not own.alive[number].all()
            advance = self.program(
                (leaves, masked), partial(stacked_step, algorithm, self.model, local, data, leaves, masked)
            )
            carry = advance(
                carry, data.pool.x, data.pool.y, index[number], weight[number], key[number], alive[number],
                facts, order.shared, order.cast, lr,
            )  # fmt: skip
        steps, times = lr_times(self.model, own, lr, local.optimizer.momentum)
        end = self.program("end", partial(stacked_end, algorithm))
        living = torch.arange(len(rows), device=device) < real
        slots, uploads, admitted, totals = end(
            carry, facts, order.shared, order.cast, lr, steps, times, living
        )
        if len(rows) > real:
            slots, uploads = (tree_map(lambda v: v[:real], tree) for tree in (slots, uploads))
            facts, admitted = {k: v[:real] for k, v in facts.items()}, admitted[:real]
        mean.add(uploads, facts, admitted, clients, totals)
        if not self.memories.needed:
            return []
        kept = {
            "params": {k: carry["params"][k] for k in self.memories.local},
            "buffers": carry["buffers"] if self.model.statistics == "local" else {},
            "slots": slots,
        }
        good = admitted.tolist()
        mine = {c: row(kept, number) for number, c in enumerate(clients) if good[number]}
        return [(c, own["params"], own["buffers"], own["slots"]) for c, own in mine.items()]

    def start(self, memories: list[dict[str, Any]], order: Order, count: int) -> Carry:
        """The stacked carry: what is the same for all is expanded, what clients keep is stacked."""

        def spread(v: Tensor) -> Tensor:
            wide = v.expand(count, *v.shape)
            return wide.contiguous() if self.compiled else wide  # one layout, one program

        one = memories[0]
        carry = tree_map(spread, started(self.stage.local, one["params"], order.buffers, {}))
        carry["params"] |= stack([{k: m["params"][k] for k in self.memories.local} for m in memories])
        if self.model.statistics == "local":
            carry["buffers"] = stack([m["buffers"] for m in memories])
        carry["state"] = stack([m["slots"] for m in memories])
        return carry

    def program(self, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled if this engine compiles; made once for each key."""
        if key not in self.programs:
            self.programs[key] = compiled(function) if self.compiled else function
        return self.programs[key]

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model: the shared leaves with those it keeps."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Take saved memories up."""
        self.memories.load(saved)
