"""A federation in one process: every message passes through Flower's records, none through the network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kedge.config.assemble import assemble
from kedge.config.experiment import resolve
from kedge.config.task import Task
from kedge.engines.flower.client_engine import ClientEngine
from kedge.engines.flower.client_memory import ClientMemory
from kedge.engines.flower.messages import Content, Request, from_record, to_record
from kedge.engines.flower.server_engine import Population, ServerEngine
from kedge.running.federation.site import simulated_client
from kedge.running.federation.uploads import upload_templates
from kedge.running.federation.validation import Validation, obey


def task_of(method: str, rounds: int = 4, **settings: Any) -> Task:
    """Five clients of different sizes in float64; three take part in each round."""
    document = {
        "name": "loopback",
        "rounds": rounds,
        "method": method,
        "data": {"name": "synthetic", "samples": 300, "features": 6},
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5},
        "model": {"name": "mlp"},
        "participation": {"per_round": 3},
        "training": {"epochs": 2, "batch": 16},
        "engine": {"name": "sequential", "precision": "fp64", "device": "cpu"},
        **settings,
    }
    return assemble(resolve(document))


class Loopback:
    """An exchange with clients in this process; `folder` has their memories."""

    def __init__(self, task: Task, folder: Path, shares: Sequence[int] = ()) -> None:
        """The clients in `shares` send their metrics."""
        self.task, self.folder, self.sharing = task, folder, frozenset(shares)
        self.clients: dict[int, ClientEngine] = {}
        self.down = self.up = 0  # bytes of the last round's arrays

    def start(self, client: int) -> ClientEngine:
        """A client that has just started, with the memory on its disk."""
        memory = ClientMemory(self.folder / str(client), "run", client)
        own = simulated_client(self.task.federation, client)
        return ClientEngine(self.task.model, self.task.stages, own, self.task.seed, memory)

    def validation(self, client: int) -> Validation:
        """The evaluation of a client on the local test of the experiment."""
        task = replace(self.task, federation=simulated_client(self.task.federation, client))
        file = self.folder / str(client) / "metrics.jsonl"
        return Validation(task, file, client in self.sharing)

    def reach_evaluating(self, request: Callable[[int, bool], Request]) -> Mapping[int, Content | str]:
        return self(sorted(self.evaluating), request) if self.evaluating else {}

    @property
    def evaluating(self) -> frozenset[int]:
        tests = self.task.federation.local_tests
        return frozenset(client for client, samples in enumerate(tests) if len(samples))

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        replies: dict[int, Content | str] = {}
        self.down = self.up = 0
        for client in reversed(clients):  # an order of arrival
            new = client not in self.clients
            engine = self.clients.setdefault(client, self.start(client))
            sent = received(request(client, new))
            reply = received(obey(engine, self.validation(client), sent, lambda line: None))
            self.down, self.up = self.down + sent.nbytes, self.up + reply.nbytes
            replies[client] = reply
        return replies


def received(request: Request) -> Content:
    """A message as it arrives."""
    return from_record(to_record(request.kind, request.facts, request.tensors))


def server_engine(task: Task, exchange: Loopback, say: Callable[[str], None] = print) -> ServerEngine:
    sizes = [len(samples) for samples in task.federation.clients]
    return ServerEngine(task.model, task.stages, Population(sizes, upload_templates(task)), exchange, say)
