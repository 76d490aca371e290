"""Sequential: trains clients one after another, without padding. The reference for other engines."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kedge.core.algorithm import Stage, Tune, model_for, tuning_algorithm
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
from kedge.core.server import upload_weights
from kedge.core.tree import Leaves, Tree, add, finite, tree_map
from kedge.data.batches import Plan, plan
from kedge.data.federation import Federation
from kedge.engines.engine import Order
from kedge.engines.leaves import lr_times, trainable
from kedge.engines.memory import Memories
from kedge.engines.order_values import numbers_of, plan_settings, round_number
from kedge.engines.sums import Sums, Uploads, read_back, sum_uploads
from kedge.engines.transfer import step_numbers


class Sequential:
    """The plain loop over clients and their batches."""

    at_once = 1

    def __init__(self, model: Model, federation: Federation) -> None:
        self.network, self.model, self.federation = model, model, federation
        self.facts = federation.facts()
        self.memories = Memories()

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; clients keep their memories of the slots in `kept`."""
        self.stage, self.model = stage, model_for(stage.algorithm, self.network)
        self.memories.begin(stage.algorithm, self.model, params, kept)

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train `clients` from `order`; their memories are stored after the last client has trained."""
        sums, memories = Sums(), []
        for client in clients:
            carry, batches, fixed = self.train_client(self.stage, self.model, order, client)
            upload, slots = self.end(carry, batches, fixed, client)
            unshared = {k: v for k, v in carry["params"].items() if k not in order.shared}
            admitted = finite({"upload": upload, "slots": slots, "local": unshared}).unsqueeze(0)
            tree, facts = (tree_map(lambda v: v.unsqueeze(0), part) for part in (upload, fixed["facts"]))
            uploads = Uploads(tree, facts, admitted, *read_back(tree, admitted))
            trained = frozenset(k for mask in set(batches.masks) for k in trainable(self.model, mask))
            sums += sum_uploads(uploads, 0, [client], upload_weights(self.stage.algorithm), trained)
            if uploads.flags[0] and self.memories.needed:
                memories.append((client, carry["params"], carry["buffers"], slots))
        for memory in memories:
            self.memories.keep(*memory)
        return sums

    def end(self, carry: Carry, batches: Plan, fixed: Fixed, client: int) -> tuple[Tree, Tree]:
        """The upload of a client after its last step, and the new slots of its corrections."""
        algorithm, momentum = self.stage.algorithm, self.stage.local.optimizer.momentum
        steps, trained = step_numbers(batches, fixed["lr"])
        times = {k: v[0] for k, v in lr_times(self.model, steps, trained, fixed["lr"], momentum).items()}
        means = self.survey(carry, client) if algorithm.needs_class_means else None
        slots, upload = finish(algorithm, carry, fixed, steps[0], times, means)
        return upload, slots

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Fine-tune a copy of each client's model on its data; yield client, parameters and statistics."""
        algorithm = tuning_algorithm(self.stage.algorithm, tune)
        stage = replace(self.stage, algorithm=algorithm, local=replace(self.stage.local, epochs=tune.epochs))
        for client in clients:
            carry, _, _ = self.train_client(
                stage, model_for(algorithm, self.model), order, client, tuning=True
            )
            yield client, carry["params"], carry["buffers"]

    def train_client(
        self, stage: Stage, model: Model, order: Order, client: int, tuning: bool = False
    ) -> tuple[Carry, Plan, Fixed]:
        """Train one client; return its carry, its plan, and the inputs that are the same in every step."""
        algorithm, local = stage.algorithm, stage.local
        like = next(iter(order.shared.values()))
        settings = plan_settings(stage, model, self.federation, tuning)
        batches = plan([self.federation.clients[client]], [client], settings, numbers_of(order))
        memory = self.memories.of(client, order.shared, order.buffers)
        fixed: Fixed = {
            "anchor": order.shared,
            "buffers": memory["buffers"],
            "broadcast": order.broadcast,
            "facts": {k: v[client] for k, v in self.facts.items()},
            "lr": torch.tensor(local.optimizer.rate(order.round), dtype=like.dtype, device=like.device),
            "round": round_number(order),
        }
        carry = initial_carry(local, memory["params"], memory["buffers"], memory["slots"])
        for number, mask in enumerate(batches.masks):
            leaves = trainable(model, mask)
            batch = self.batch(batches, number)
            carry = local_step(algorithm, model, local, leaves, carry, batch, fixed, gradient_by_autograd)
        return carry, batches, fixed

    @torch.no_grad()
    def survey(self, carry: Carry, client: int) -> ClassMeans:
        """Class means of the features over a client's whole training set."""
        data = self.federation
        sums: Leaves = {}
        samples = data.clients[client]
        for batch_samples in np.array_split(samples, -(-len(samples) // self.stage.local.batch)):
            indices = torch.from_numpy(batch_samples).to(data.pool.y.device)
            x = data.prepare(data.pool.x[indices])
            batch = batch_of(x, data.pool.y[indices], torch.zeros(2, dtype=torch.int64, device=x.device))
            batch_sums = class_sums(self.model, data.classes, carry["params"], carry["buffers"], batch)
            sums = add(batch_sums, sums) if sums else batch_sums
        return class_means(sums)

    def batch(self, batches: Plan, number: int) -> Batch:
        """The batch of a client's step `number`, without padding."""
        data, device = self.federation, self.federation.pool.y.device
        is_sample = batches.weight[number, 0] > 0
        indices = torch.from_numpy(batches.index[number, 0][is_sample]).to(device)
        moves = torch.from_numpy(batches.moves[number, 0][is_sample]).to(device)
        x = data.inputs(data.pool.x[indices], moves)
        return batch_of(x, data.pool.y[indices], torch.from_numpy(batches.key[number, 0]).to(device))

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """Parameters and statistics of a client's own model: `shared`, and the client's memory."""
        return self.memories.own_model(client, shared, buffers)

    def save(self) -> Tree:
        """Every client's memory."""
        return self.memories.save()

    def load(self, saved: Tree) -> None:
        """Restore saved memories."""
        self.memories.load(saved)


def batch_of(x: Tensor, y: Tensor, key: Tensor) -> Batch:
    """A batch in which every sample has weight 1."""
    return Batch(x, y, torch.ones(len(y), dtype=x.dtype, device=x.device), key)
