"""One client after another, batches unpadded: the reference, and the debugger's friend."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage, Tune, fitted, tuning
from kedge.core.client import (
    Carry,
    Fixed,
    class_means,
    class_sums,
    finish,
    gradient_by_autograd,
    initial_carry,
    local_step,
)
from kedge.core.correction import ClassMeans
from kedge.core.model import Batch, Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree, add, finite, tree_map
from kedge.data.batches import Plan, plan
from kedge.data.federation import Federation
from kedge.engines.engine import Mean, Order, T, counted, do_nothing, done_now, lr_times, trainable
from kedge.engines.memory import Memories


class Sequential:
    """The plain loop over clients and their batches."""

    at_once = 1
    beside = False

    def __init__(self, model: Model, federation: Federation) -> None:
        self.network, self.model, self.federation = model, model, federation
        self.facts = federation.facts()
        self.memories = Memories()
        self.on_busy: Callable[[], None] = do_nothing

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        self.stage, self.model = stage, fitted(stage.algorithm, self.network)
        self.memories.begin(stage.algorithm, self.model, params, kept)

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients from the order; the weighted mean of their uploads."""
        algorithm = self.stage.algorithm
        mean = Mean(algorithm)
        after = []
        trained: set[str] = set()
        for client in clients:
            carry, own, fixed = self.trained(self.stage, self.model, order, client)
            trained |= {k for mask in set(own.masks) for k in trainable(self.model, mask)}
            steps, opened = counted(own, fixed["lr"])
            momentum = self.stage.local.optimizer.momentum
            times = lr_times(self.model, steps, opened, fixed["lr"], momentum)
            means = self.surveyed(carry, client) if algorithm.needs_class_means else None
            slots, upload = finish(
                algorithm, carry, fixed, steps[0], {k: v[0] for k, v in times.items()}, means
            )
            own_leaves = {k: v for k, v in carry["params"].items() if k not in order.shared}
            admitted = finite({"upload": upload, "slots": slots, "local": own_leaves})
            row = tree_map(lambda v: v.unsqueeze(0), upload)
            facts = {k: v.unsqueeze(0) for k, v in fixed["facts"].items()}
            mean.add(row, facts, admitted.unsqueeze(0), [client])
            if admitted and self.memories.needed:
                after.append((client, carry["params"], carry["buffers"], slots))
        for kept in after:
            self.memories.keep(*kept)
        return mean.reply(frozenset(trained))

    def tuned(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Each client's model fine-tuned on its own data: client, parameters, statistics; nothing is kept."""
        algorithm = tuning(self.stage.algorithm, tune)
        stage = replace(self.stage, algorithm=algorithm, local=replace(self.stage.local, epochs=tune.epochs))
        for client in clients:
            carry, _, _ = self.trained(stage, fitted(algorithm, self.model), order, client, tuning=True)
            yield client, carry["params"], carry["buffers"]

    def trained(
        self, stage: Stage, model: Model, order: Order, client: int, tuning: bool = False
    ) -> tuple[Carry, Plan, Fixed]:
        """A client after its last step, its plan, and what stayed through the round."""
        algorithm, local = stage.algorithm, stage.local
        like = next(iter(order.shared.values()))
        own = plan(
            [self.federation.clients[client]], [client], local, algorithm.schedule, len(model.units),
            order.seed, order.round, order.stage_round, random=model.random, tuning=tuning,
            augment=self.federation.augment,
        )  # fmt: skip
        memory = self.memories.of(client, order.shared, order.buffers)
        fixed: Fixed = {
            "anchor": order.shared,
            "buffers": memory["buffers"],
            "broadcast": order.broadcast,
            "facts": {k: v[client] for k, v in self.facts.items()},
            "lr": torch.tensor(local.optimizer.rate(order.round), dtype=like.dtype, device=like.device),
        }
        carry = initial_carry(local, memory["params"], memory["buffers"], memory["slots"])
        for number, mask in enumerate(own.masks):
            leaves = trainable(model, mask)
            batch = self.batch(own, number)
            carry = local_step(algorithm, model, local, leaves, carry, batch, fixed, gradient_by_autograd)
        return carry, own, fixed

    @torch.no_grad()
    def surveyed(self, carry: Carry, client: int) -> ClassMeans:
        """Class means of the features over a client's whole training set."""
        data = self.federation
        sums: Leaves = {}
        own = data.clients[client]
        for some in np.array_split(own, -(-len(own) // self.stage.local.batch)):
            real = torch.from_numpy(some).to(data.pool.y.device)
            x = data.prepare(data.pool.x[real])
            batch = batch_of(x, data.pool.y[real], torch.zeros(2, dtype=torch.int64, device=x.device))
            part = class_sums(self.model, data.classes, carry["params"], carry["buffers"], batch)
            sums = add(part, sums) if sums else part
        return class_means(sums)

    def batch(self, own: Plan, number: int) -> Batch:
        """The samples of a client's step, without padding."""
        data, device = self.federation, self.federation.pool.y.device
        there = own.weight[number, 0] > 0
        real = torch.from_numpy(own.index[number, 0][there]).to(device)
        moved = torch.from_numpy(own.moves[number, 0][there]).to(device)
        x = data.inputs(data.pool.x[real], moved)
        return batch_of(x, data.pool.y[real], torch.from_numpy(own.key[number, 0]).to(device))

    def aside(self, work: Callable[[], T]) -> Callable[[], T]:
        """The work, done at once."""
        return done_now(work)

    def repeated(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is."""
        return function

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model: the shared leaves with those it keeps."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Take saved memories up."""
        self.memories.load(saved)


def batch_of(x: Tensor, y: Tensor, key: Tensor) -> Batch:
    """A batch in which every sample counts."""
    return Batch(x, y, torch.ones(len(y), dtype=x.dtype, device=x.device), key)
