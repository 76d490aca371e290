"""RayEngine: trains the clients of a round on the workers of a Ray cluster, and adds up their sums.

The order of a round is stored once in the object store; every worker reads it there. Each shard
returns its sums, which are added in the order of shards. The worker of a client's shard has its memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kedge.core.algorithm import Algorithm, Stage, Tune, model_for
from kedge.core.lazy_tree import LazyTree
from kedge.core.model import Model
from kedge.core.tree import Leaves, Tree, tree_map
from kedge.data.federation import Federation
from kedge.engines.choice.choose import Choice, EngineOptions
from kedge.engines.engine import Order
from kedge.engines.memory import Memories
from kedge.engines.ray.arrays import FederationArrays, order_with, sums_to_tensors, to_arrays, to_tensors
from kedge.engines.ray.cluster import Cluster
from kedge.engines.ray.journal import ROUNDS, JournalRound, by_client
from kedge.engines.ray.shards import Shards
from kedge.engines.ray.worker import WorkerSettings
from kedge.engines.ray.workers import (
    CLIENTS_AT_ONCE,
    MEMORIES_AT_ONCE,
    Say,
    StageStart,
    WorkerArguments,
    Workers,
)
from kedge.engines.sums import Sums


def ignore(message: str) -> None:
    """Show no messages."""


class RayEngine:
    """Trains the clients of a round on the workers of a Ray cluster."""

    at_once = 1

    def __init__(
        self,
        cluster: Cluster,
        model: Model,
        federation: Federation,
        settings: WorkerSettings,
        say: Say = ignore,
    ) -> None:
        """Take workers of the cluster, one for each shard."""
        self.ray = cluster.ray
        self.network, self.federation = model, federation
        self.device = federation.pool.x.device
        self.shards = Shards(settings.workers, [len(samples) for samples in federation.clients])
        data = self.ray.put(FederationArrays.of(federation))
        arguments = WorkerArguments(self.ray.put(model), data, settings)
        self.workers = Workers(cluster, arguments, self.shards, say)
        self.journal = self.workers.journal
        self.memories = Memories()  # of one client, while `personal` makes its model

    def choose(self, stage: Stage, per_round: int, rounds: int, options: EngineOptions) -> Choice:
        """Choose the engine of the workers, by a trial on one of them with `per_round` clients."""
        first = self.workers.processes[0]
        choice: Choice
        choice, messages = self.workers.call(first, "choose", stage, per_round, rounds, options)
        for message in messages:
            self.workers.say(message)
        return choice

    def build(self, choice: Choice) -> None:
        """Build the engine of every worker."""
        self.workers.build(choice)

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; clients keep their memories of the slots in `kept`."""
        self.take_snapshot()
        start = stage.algorithm, model_for(stage.algorithm, self.network), params, kept
        self.memories.begin(*start)
        self.journal.take(self.memories_in_stage(start), only_changed=False)
        self.workers.begin(StageStart(stage, self.ray.put(to_arrays(params)), kept))

    def memories_in_stage(
        self, start: tuple[Algorithm, Model, Leaves, frozenset[str]]
    ) -> Iterator[tuple[int, Tree]]:
        """The memories at the start of a stage, one after another; `start`: the arguments of `begin`."""
        for client, memory in self.journal.memories(self.remembered):
            one = Memories()
            one.load({str(client): memory})
            one.begin(*start)
            yield from by_client(one.save())

    @property
    def remembered(self) -> list[int]:
        """The clients with a memory in the snapshot."""
        return sorted(self.journal.snapshot)

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        """Train `clients`; the sums of their shards are added in the order of shards."""
        self.workers.grow()
        remembers = self.memories.needed
        parts = self.shards.divide(clients, by_owner=remembers)
        sent = self.send(order)
        calls = {shard: (sent, part) for shard, part in enumerate(parts) if part}
        results = self.workers.gather("train", calls)
        if remembers:
            self.journal.add(JournalRound(sent, parts))
            if len(self.journal.rounds) >= ROUNDS:
                self.take_snapshot()
        sums = Sums()
        for shard in sorted(results):
            sums += sums_to_tensors(results[shard], self.device)
        return sums

    def send(self, order: Order) -> Any:
        """Store an order in the object store; return the reference."""
        return self.ray.put(order_with(order, to_arrays))

    def take_snapshot(self) -> None:
        """Write the memories that have changed since the last snapshot to the journal."""
        changed = self.journal.trained
        if changed:
            self.journal.take(self.fetch_memories(changed), only_changed=True)

    def fetch_memories(self, clients: Sequence[int]) -> Iterator[tuple[int, Tree]]:
        """The memories of `clients`, fetched from their workers a few at a time."""
        for first in range(0, len(clients), MEMORIES_AT_ONCE):
            parts = enumerate(self.shards.divide(clients[first : first + MEMORIES_AT_ONCE], by_owner=True))
            results = self.workers.gather("memories", {shard: (part,) for shard, part in parts if part})
            for found in results.values():
                yield from by_client(to_tensors(found))

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """Parameters and statistics of a client's own model: `shared`, and the client's memory."""
        found = self.workers.gather("memories", {self.shards.owner(client): ([client],)})
        memories = [to_tensors(memory, self.device) for memory in found.values()]
        self.memories.load(memories[0])
        model = self.memories.own_model(client, shared, buffers)
        self.memories.load({})
        return model

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Fine-tune a copy of each client's model on its data; yield client, parameters and statistics."""
        sent = self.send(order)
        for first in range(0, len(clients), CLIENTS_AT_ONCE):
            group = clients[first : first + CLIENTS_AT_ONCE]
            parts = enumerate(self.shards.divide(group, by_owner=True))
            calls = {shard: (sent, part, tune) for shard, part in parts if part}
            tuned = {
                found[0]: found for models in self.workers.gather("tune", calls).values() for found in models
            }
            for client in group:
                _, params, buffers = tuned[client]
                yield client, to_tensors(params, self.device), to_tensors(buffers, self.device)

    def score_models(
        self, score: Callable[..., Tree], order: Order, clients: Sequence[int], tune: Tune | None
    ) -> list[tuple[Sequence[int], Tree]]:
        """Apply `score` to groups of the models of `clients`, on the workers that have their memories."""
        sent = self.send(order)
        parts = enumerate(self.shards.divide(clients, by_owner=True))
        calls = {shard: (score, sent, part, tune) for shard, part in parts if part}
        results = self.workers.gather("score", calls)
        return [(group, to_tensors(scores)) for found in results.values() for group, scores in found]

    def save(self) -> Tree:
        """Every client's memory, read from the journal's file when it is used, before the next round."""
        self.take_snapshot()

        def read(client: str) -> Tree:
            return tree_map(lambda v: v.to(self.device), self.journal.memory(int(client)))

        return LazyTree(map(str, self.remembered), read)

    def load(self, saved: Tree) -> None:
        """Restore saved memories."""
        self.journal.take(by_client(saved), only_changed=False)
        clients = list(range(len(self.shards.work)))
        for first in range(0, len(clients), MEMORIES_AT_ONCE):
            parts = enumerate(self.shards.divide(clients[first : first + MEMORIES_AT_ONCE], by_owner=True))
            self.workers.gather(
                "replace", {shard: (part, self.journal.arrays(part)) for shard, part in parts if part}
            )

    def close(self) -> None:
        """Leave the workers to the next run."""
        self.workers.close()
