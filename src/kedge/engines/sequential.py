"""One client after another, batches unpadded: the reference, and the debugger's friend."""

from collections.abc import Sequence

import torch

from kedge.core.algorithm import Stage
from kedge.core.client import Fixed, by_autograd, finish, local_step, started
from kedge.core.model import Batch, Model
from kedge.core.server import Reply
from kedge.core.tree import Leaves, Tree, finite, tree_map
from kedge.data.batches import Plan, plan
from kedge.data.federation import Federation
from kedge.engines.engine import Mean, Order, lr_times, trainable
from kedge.engines.memory import Memories


class Sequential:
    """The plain loop over clients and their batches."""

    def __init__(self, model: Model, federation: Federation) -> None:
        self.model, self.federation = model, federation
        self.facts = federation.facts()
        self.memories = Memories()

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; memories of the slots in `kept` go on."""
        self.stage = stage
        self.memories.begin(stage.algorithm, self.model, params, kept)

    def round(self, order: Order, clients: Sequence[int]) -> Reply:
        """Train these clients from the order; the weighted mean of their uploads."""
        algorithm, local, data = self.stage.algorithm, self.stage.local, self.federation
        like = next(iter(order.shared.values()))
        lr = torch.tensor(local.optimizer.rate(order.round), dtype=like.dtype, device=like.device)
        mean = Mean(algorithm)
        after = []
        trained: set[str] = set()
        for client in clients:
            own = plan(
                [data.clients[client]], [client], local, algorithm.schedule, len(self.model.units),
                order.seed, order.round, order.stage_round, random=self.model.random,
            )  # fmt: skip
            memory = self.memories.of(client, order.shared, order.buffers)
            facts = {k: v[client] for k, v in self.facts.items()}
            fixed: Fixed = {"anchor": order.shared, "cast": order.cast, "facts": facts, "lr": lr}
            carry = started(local, memory["params"], memory["buffers"], memory["slots"])
            for number, mask in enumerate(own.masks):
                leaves = trainable(self.model, mask)
                trained |= set(leaves)
                batch = self.batch(own, number)
                carry = local_step(algorithm, self.model, local, leaves, carry, batch, fixed, by_autograd)
            steps, times = lr_times(self.model, own, lr, local.optimizer.momentum)
            slots, upload = finish(algorithm, carry, fixed, steps[0], {k: v[0] for k, v in times.items()})
            own_leaves = {k: v for k, v in carry["params"].items() if k not in order.shared}
            admitted = finite({"upload": upload, "slots": slots, "local": own_leaves})
            row = tree_map(lambda v: v.unsqueeze(0), upload)
            mean.add(row, {k: v.unsqueeze(0) for k, v in facts.items()}, admitted.unsqueeze(0), [client])
            if admitted and self.memories.needed:
                after.append((client, carry["params"], carry["buffers"], slots))
        for kept in after:
            self.memories.keep(*kept)
        return mean.reply(frozenset(trained))

    def batch(self, own: Plan, number: int) -> Batch:
        """The batch of a client's step, without padding."""
        data = self.federation
        real = torch.from_numpy(own.index[number, 0][own.weight[number, 0] > 0]).to(data.pool.y.device)
        x = data.prepare(data.pool.x[real])
        key = torch.from_numpy(own.key[number, 0]).to(x.device)
        return Batch(x, data.pool.y[real], torch.ones(len(real), dtype=x.dtype, device=x.device), key)

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """A client's own model: the shared leaves with those it keeps."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Take saved memories up."""
        self.memories.load(saved)
