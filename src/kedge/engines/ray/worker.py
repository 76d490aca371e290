"""Worker: a process of the cluster. It trains shards on an engine of its own and keeps their memories.

All arguments and results are arrays and plain values. Ray runs the methods of a worker one after another.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, NamedTuple

import torch

from kedge.core.algorithm import Stage, Tune
from kedge.core.frozen import place_frozen
from kedge.core.model import Model
from kedge.core.tree import Tree
from kedge.engines.choice.choose import Choice, EngineOptions, build, choose
from kedge.engines.choice.fallback import without_torch_warnings
from kedge.engines.choice.trial import Work
from kedge.engines.cuda.memory_limit import limit_gpu_memory
from kedge.engines.engine import Engine, Order
from kedge.engines.ray.arrays import (
    FederationArrays,
    order_with,
    sums_to_arrays,
    to_arrays,
    to_tensors,
)
from kedge.engines.ray.shares import Share
from kedge.nn.precision import Precision, computing_in


class WorkerSettings(NamedTuple):
    """The workers of a run: their number, and the settings that all of them share."""

    workers: int
    share: Share
    device: str
    precision: Precision
    threads: int  # of torch on a CPU


class Worker:
    """Trains clients on an engine of its own."""

    def setup(self, model: Model, data: FederationArrays, settings: WorkerSettings) -> None:
        """Prepare for a run: data, model, precision and threads."""
        self.settings = settings
        self.contexts = ExitStack()
        self.contexts.enter_context(computing_in(settings.precision))
        self.contexts.enter_context(without_torch_warnings())
        torch.set_num_threads(settings.threads)
        if settings.device == "cuda":
            limit_gpu_memory(settings.share.gpus)
        self.federation = data.federation(settings.device)
        self.model = place_frozen(model, self.federation.dtype, settings.device)

    def reset(self) -> None:
        """Free everything of the run."""
        self.contexts.close()
        self.__dict__.clear()

    def choose(
        self, stage: Stage, per_round: int, rounds: int, options: EngineOptions
    ) -> tuple[Choice, list[str]]:
        """Choose the engine of the workers by a trial here; return the choice and messages for the user."""
        messages: list[str] = []
        work = Work(self.model, self.federation, stage, per_round, rounds)
        return choose(work, options, messages.append), messages

    def build(self, choice: Choice) -> None:
        """Build the worker's engine."""
        self.engine: Engine = build(choice, self.model, self.federation)

    def begin(self, stage: Stage, params: Tree, kept: frozenset[str]) -> None:
        """Start a stage; clients keep their memories of the slots in `kept`."""
        self.engine.begin(stage, to_tensors(params, self.settings.device), kept)

    def train(self, order: Order, clients: Sequence[int]) -> dict[str, Any]:
        """Train `clients`, store their memories, and return the sums of their uploads."""
        return sums_to_arrays(self.engine.train(self.received(order), clients))

    def received(self, order: Order) -> Order:
        """The order with tensors on the worker's device."""
        return order_with(order, lambda tree: to_tensors(tree, self.settings.device))

    def memories(self, clients: Sequence[int]) -> dict[str, Any]:
        """The memories of these clients, by client; clients without a memory are left out."""
        saved = self.engine.save()
        return {name: to_arrays(saved[name]) for name in map(str, clients) if name in saved}

    def replace(self, clients: Sequence[int], memories: Tree) -> None:
        """Replace the memories of `clients` by `memories`; a client that is not in them loses its memory."""
        removed = set(map(str, clients))
        kept = {name: memory for name, memory in self.engine.save().items() if name not in removed}
        self.engine.load({**kept, **to_tensors(memories, self.settings.device)})

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> list[tuple[int, Any, Any]]:
        """Fine-tuned copies of the clients' models: client, parameters and statistics."""
        tuned = self.engine.tune(self.received(order), clients, tune)
        return [(client, to_arrays(params), to_arrays(buffers)) for client, params, buffers in tuned]

    def score(
        self, score: Callable[..., Tree], order: Order, clients: Sequence[int], tune: Tune | None
    ) -> list[tuple[list[int], dict[str, Any]]]:
        """Apply `score` to groups of the clients' own models, or of fine-tuned copies."""
        received = self.received(order)
        if tune:
            models = self.engine.tune(received, clients, tune)
        else:
            shared, buffers = received.shared, received.buffers
            models = ((c, *self.engine.personal(c, shared, buffers)) for c in clients)
        results = []
        while group := list(islice(models, self.engine.at_once)):
            scores = score(self.model, self.federation, group)
            results.append(([client for client, _, _ in group], to_arrays(scores)))
        return results
