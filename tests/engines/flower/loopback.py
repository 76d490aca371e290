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
from kedge.engines.flower.population import Population
from kedge.engines.flower.roster import Joined, Roster
from kedge.engines.flower.server_engine import ServerEngine
from kedge.running.federation.private_uploads import private_rules
from kedge.running.federation.site import simulated_client
from kedge.running.federation.uploads import upload_templates
from kedge.running.federation.validation import Validation, obey


def task_of(method: str, rounds: int = 4, **settings: Any) -> Task:
    """Five clients of different sizes in float64; three take part in each round."""
    return assemble(resolve(document_of(method, rounds, **settings)))


def document_of(method: str, rounds: int = 4, **settings: Any) -> dict[str, Any]:
    """The experiment of `task_of`."""
    return {
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


Tamper = Callable[[Content], Content | str]


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
        own, task = simulated_client(self.task.federation, client), self.task
        return ClientEngine(task.model, task.stages, own, task.seed, memory, task.privacy.active)

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


class Tampering(Loopback):
    """An exchange in which client 0 sends the changed reply that `tamper` returns."""

    tamper: Tamper

    def __call__(
        self, clients: Sequence[int], request: Callable[[int, bool], Request]
    ) -> Mapping[int, Content | str]:
        replies = dict(super().__call__(clients, request))
        reply = replies[0]
        assert isinstance(reply, Content)
        return {**replies, 0: self.tamper(reply)}


def received(request: Request) -> Content:
    """A message as it arrives."""
    return from_record(to_record(request.kind, request.facts, request.tensors))


def server_engine(task: Task, exchange: Loopback, say: Callable[[str], None] = print) -> ServerEngine:
    clients, rules = len(task.federation.clients), private_rules(task)
    population = Population(clients, roster_of_all(task), upload_templates(task), private=rules)
    return ServerEngine(task.model, task.stages, population, exchange, say)


def roster_of_all(task: Task) -> Roster:
    """A roster of clients that have all joined before the first round."""
    sizes = map(len, task.federation.clients)
    return Roster({client: Joined(size, 1) for client, size in enumerate(sizes)})
