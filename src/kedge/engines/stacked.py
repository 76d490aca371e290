"""C clients at once by vmap: one row of every tensor is one client.

Clients of a chunk run in lockstep (data/batches.py). A dead row computes on a batch of weight 1 and its
result is selected away; padding has weight 0. Compiled, the number of rows is padded to a few sizes, so
that a varying number of participants does not make new programs.
"""

from __future__ import annotations  # dynamo does not evaluate the annotations of inner functions

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch._dynamo
from torch import Tensor
from torch.func import vmap

from kedge.core.algorithm import Algorithm, Local, Stage
from kedge.core.client import Carry, finish, local_step, started
from kedge.core.model import Batch, Model
from kedge.core.server import Reply, weights
from kedge.core.tree import Leaves, Tree, finite_rows, row, stack, tree_map, where
from kedge.data.batches import plan, step_counts
from kedge.data.federation import Federation
from kedge.engines.engine import Mean, Order, Totals, weighted_totals
from kedge.engines.memory import Memories
from kedge.engines.sequential import lr_times, trainable

BUCKETS = (1, 2, 4, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1024)


class Stacked:
    """vmap over the clients of a round, in chunks."""

    def __init__(self, model: Model, federation: Federation, chunk: int = 0, compiled: bool = False) -> None:
        self.model, self.federation = model, federation
        self.facts = federation.facts()
        self.memories = Memories()
        self.chunk, self.compiled = chunk, compiled
        if compiled:  # a hit of the limit would fall back to eager without a word
            torch._dynamo.config.recompile_limit = 1024
            torch._dynamo.config.fail_on_recompile_limit_hit = True
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


def stacked_step(
    algorithm: Algorithm,
    model: Model,
    local: Local,
    federation: Federation,
    leaves: tuple[str, ...],
    masked: bool,
    carry: Carry,
    pool_x: Tensor,
    pool_y: Tensor,
    index: Tensor,
    weight: Tensor,
    key: Tensor,
    alive: Tensor,
    facts: Leaves,
    anchor: Leaves,
    cast: Tree,
    lr: Tensor,
) -> Carry:
    """One step of every row."""
    batch = Batch(federation.prepare(pool_x[index]), pool_y[index], weight, key)

    def one(carry: Carry, batch: Batch, alive: Tensor, facts: Leaves) -> Carry:
        fixed = {"anchor": anchor, "cast": cast, "facts": facts, "lr": lr}
        moved = local_step(algorithm, model, local, leaves, carry, batch, fixed)
        return where(alive, moved, carry) if masked else moved

    after: Carry = vmap(one)(carry, batch, alive, facts)
    # One layout of inputs and outputs, hence one program for the first and for every later step.
    return tree_map(torch.Tensor.contiguous, after) if torch.compiler.is_compiling() else after


def stacked_end(
    algorithm: Algorithm,
    carry: Carry,
    facts: Leaves,
    anchor: Leaves,
    cast: Tree,
    lr: Tensor,
    steps: Tensor,
    times: Leaves,
    living: Tensor,
) -> tuple[dict[str, Any], dict[str, Any], Tensor, Totals]:
    """Memories and uploads of every row, whether they are finite, and the sums over the living rows."""

    def one(
        carry: Carry, facts: Leaves, steps: Tensor, times: Leaves
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        fixed = {"anchor": anchor, "cast": cast, "facts": facts, "lr": lr}
        return finish(algorithm, carry, fixed, steps, times)

    slots, uploads = vmap(one)(carry, facts, steps, times)
    own_leaves = {k: v for k, v in carry["params"].items() if k not in anchor}
    admitted = finite_rows({"slots": slots, "uploads": uploads, "local": own_leaves})
    return slots, uploads, admitted, weighted_totals(weights(algorithm), uploads, facts, living)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a program of its own.

    Dynamo keeps its programs, and checks their guards one after another, per code object: hence a copy of the
    code. The modules inside belong to the model alone and never change, so they need no guards.
    """

    def program(*args: Any) -> Any:
        return function(*args)

    own = FunctionType(program.__code__.replace(), program.__globals__, "program", None, program.__closure__)
    unguarded: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    return torch.compile(own, fullgraph=True, dynamic=False, options=unguarded)


def bucket(count: int) -> int:
    """The number of rows that `count` clients are padded to."""
    return next((size for size in BUCKETS if size >= count), count)
