"""The client's side of a federation: trains one client on its own data by the sequential engine.

Random numbers and batches are keyed by the client's number, so a client draws here what it would draw in a
simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from kedge.core.algorithm import Stage, Tune, model_for
from kedge.core.model import Model
from kedge.core.server import broadcast, initial_server, next_stage_server
from kedge.core.tree import Leaves, Tree, tree_to
from kedge.data.federation import Federation, Ints
from kedge.engines.engine import Order
from kedge.engines.flower.client_memory import ClientMemory, StoredMemory
from kedge.engines.flower.messages import Content, Facts, MessageError, Request
from kedge.engines.flower.selection import completed, mismatch, without_leaves
from kedge.engines.sequential import Sequential
from kedge.engines.sums import Sums


class ReceivedOrder(NamedTuple):
    """An order as the client has received it, with the client's memory restored."""

    order: Order
    client: int
    stage: int
    memory: int  # number of rounds after which the memory was stored
    lost: bool  # whether this memory is lost


class EvaluatedModels(NamedTuple):
    """Parameters and statistics of the distributed model, and of the client's own."""

    distributed: tuple[Leaves, Leaves]
    own: tuple[Leaves, Leaves]


class ClientEngine:
    """Trains one client; keeps the server's values that it has received, and its memory."""

    def __init__(
        self,
        model: Model,
        stages: Sequence[Stage],
        data: Federation,
        seed: int,
        memory: ClientMemory,
        private: bool = False,
    ) -> None:
        """`data` is a federation of this client only; a `private` client sends its clipped delta alone."""
        self.private = private
        self.model, self.stages, self.data, self.memory = model, stages, data, memory
        initial, buffers = (tree_to(v, data.dtype, data.pool.x.device) for v in model.init(seed))
        self.initial, self.initial_buffers = initial, buffers
        self.forget()
        self.kept = kept_slots(stages, model, initial, buffers)
        self.broadcasts = broadcast_templates(stages, model, initial, buffers)
        self.engine: Sequential | None = None
        self.number = -1  # of the stage
        self.version = -1  # of the memory that the engine has

    def forget(self) -> None:
        """Forget the server's values: a new connection begins with the initial model."""
        self.known, self.buffers = dict(self.initial), dict(self.initial_buffers)

    def receive(self, content: Content) -> ReceivedOrder:
        """Take the values of a message, and restore the memory that it names."""
        stage, memory, client = (content.integer(name) for name in ("stage", "memory", "client"))
        if stage >= len(self.stages):
            raise MessageError(f"the order is of stage {stage + 1}; this run has {len(self.stages)}")
        engine = self.engine_of(client, content)
        order = self.order(content, stage)
        lost = self.restore(engine, client, stage, memory)
        return ReceivedOrder(order, client, stage, memory, lost)

    def train(self, content: Content) -> Request:
        """Train as the server's message says; return the upload."""
        return self.train_on(self.receive(content), content.names("frozen"))

    def train_on(self, received: ReceivedOrder, frozen: frozenset[str]) -> Request:
        """Train from an order; return the upload, without the leaves in `frozen`."""
        order, client, stage, before, lost = received
        engine = self.engine
        assert engine is not None
        sums = engine.train(order, [client])
        stored = engine.memories.needed and bool(sums.size)
        if stored:
            tree = engine.memories.save().get(str(client), {})
            self.memory.save(order.round + 1, StoredMemory(tree, stage), before)
        self.version = order.round + 1 if stored else before
        rejected = sums.rejected[0].reason if sums.rejected else ""
        answer: Facts = {"lost": lost, "stored": stored, "round": order.round, "rejected": rejected}
        if rejected:
            return Request("upload", answer, {})
        if self.private:
            return Request("upload", answer, without_leaves(self.parts(sums), frozen))
        weights = {f"weight.{slot}": float(weight) for slot, (_, weight) in sums.totals.items()}
        answer |= {**weights, "loss": sums.loss, "trained": sorted(sums.trained)}
        return Request("upload", answer, without_leaves(self.parts(sums), frozen))

    def order(self, content: Content, stage: int) -> Order:
        """The order of a message, completed by the values that this client has received before."""
        received = {k: content_under(content, f"{k}/") for k in ("shared", "own", "broadcast", "buffers")}
        difference = unexpected({**received["own"], **received["shared"]}, self.known)
        difference = difference or unexpected(received["buffers"], self.buffers)
        if difference:
            raise MessageError(difference)
        self.known = {**self.known, **received["own"], **received["shared"]}
        self.buffers = {**self.buffers, **received["buffers"]}
        algorithm = self.stages[stage].algorithm
        names = algorithm.shared(model_for(algorithm, self.model))
        return Order(
            content.integer("round"),
            content.integer("stage_round"),
            content.integer("seed"),
            {k: v for k, v in self.known.items() if k in names},
            self.buffers,
            completed(received["broadcast"], self.broadcasts[stage]),
        )

    def models(self, received: ReceivedOrder, content: Content) -> EvaluatedModels:
        """The models that an evaluation measures before the client trains."""
        engine = self.engine
        assert engine is not None
        order = received.order
        buffers = {**self.buffers, **content_under(content, "evaluated/")}
        own = engine.personal(received.client, order.shared, buffers)
        return EvaluatedModels((self.known, buffers), own)

    def tuned_model(self, received: ReceivedOrder, content: Content, tune: Tune) -> tuple[Leaves, Leaves]:
        """A fine-tuned copy of the client's own model."""
        assert self.engine is not None
        order = received.order
        order = order._replace(buffers={**order.buffers, **content_under(content, "evaluated/")})
        [(_, params, buffers)] = self.engine.tune(order, [received.client], tune)
        return params, buffers

    def parts(self, sums: Sums) -> Tree:
        """The weighted uploads of this client, as a tree to send."""
        model, slots = sums.totals[""][0], {k: tree for k, (tree, _) in sums.totals.items() if k}
        sends_statistics = self.model.statistics != "frozen" and not self.private
        buffers = model["buffers"] if sends_statistics else {}
        return {"delta": model["delta"], "slots": slots, "buffers": buffers}

    def engine_of(self, client: int, content: Content) -> Sequential:
        """The engine, with the facts that depend on the sizes of all clients that have joined.

        In a private run these sizes are secret: all clients count as equally large.
        """
        clients, examples = content.integer("clients"), len(self.data.clients[0])
        joined, samples = (
            (1, examples) if self.private else (content.integer(name) for name in ("joined", "samples"))
        )
        if self.engine is None:
            self.engine = Sequential(self.model, federation_of_one(self.data, client, clients))
        facts = self.engine.facts
        relative = torch.from_numpy(np.full(clients, np.float64(examples) * joined / np.float64(samples)))
        self.engine.facts = {**facts, "relative_size": relative.to(facts["examples"])}
        return self.engine

    def restore(self, engine: Sequential, client: int, stage: int, version: int) -> bool:
        """Load the memory after `version` rounds, and start the stage; return whether the memory is lost."""
        lost, start = False, self.number
        if version != self.version or stage < self.number or self.number < 0:
            stored = self.memory.load(version) if version else None
            lost = version > 0 and stored is None
            engine.load({str(client): stored.tree} if stored else {})
            start = stored.stage if stored else stage
            engine.begin(self.stages[start], self.known, all_slots(self.stages[start]))
        for number in range(start + 1, stage + 1):
            engine.begin(self.stages[number], self.known, self.kept[number])
        if start == stage:
            engine.memories.begin(
                self.stages[stage].algorithm, engine.model, self.known, all_slots(engine.stage)
            )
        self.number, self.version = stage, version
        return lost


def content_under(content: Content, prefix: str) -> Leaves:
    """The tensors whose paths begin with `prefix`, by the rest of their paths."""
    return {k.removeprefix(prefix): v for k, v in content.tensors.items() if k.startswith(prefix)}


def unexpected(received: Leaves, known: Leaves) -> str | None:
    """A sentence on the first received tensor of unknown name, shape or dtype; None if all fit."""
    return mismatch(received, {k: known[k] for k in received if k in known})


def all_slots(stage: Stage) -> frozenset[str]:
    """The slots of a stage's corrections."""
    return frozenset(c.name for c in stage.algorithm.corrections)


def kept_slots(
    stages: Sequence[Stage], model: Model, params: Leaves, buffers: Leaves
) -> list[frozenset[str]]:
    """For each stage, the slots whose memories clients keep from the stage before."""
    server, kept = initial_server(stages[0].algorithm, model, params, buffers), [frozenset[str]()]
    for before, after in pairwise(stages):
        server, slots = next_stage_server(before.algorithm, after.algorithm, server, model)
        kept.append(slots)
    return kept


def broadcast_templates(
    stages: Sequence[Stage], model: Model, params: Leaves, buffers: Leaves
) -> list[Mapping[str, Any]]:
    """For each stage, a broadcast with the names and shapes of the server's."""
    servers = [(s.algorithm, initial_server(s.algorithm, model, params, buffers)) for s in stages]
    return [broadcast(algorithm, server) for algorithm, server in servers]


def federation_of_one(data: Federation, client: int, clients: int) -> Federation:
    """The federation in which `client` has the samples of `data`'s only client, and all others have none."""
    empty: Ints = np.empty(0, dtype=np.int64)
    samples, tests = data.clients[0], data.local_tests[0]
    return replace(
        data,
        clients=tuple(samples if number == client else empty for number in range(clients)),
        local_tests=tuple(tests if number == client else empty for number in range(clients)),
    )
