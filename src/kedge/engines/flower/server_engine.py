"""The server's engine of a federation: it sends orders to clients and adds up their replies.

Replies are added in the order of the clients, never of their arrival, and each is the `Sums` of one client,
as in the sequential engine: the result has the same bits. The clients' memories stay with the clients. The
engine knows the round after which each memory was stored, and names it in every order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from kedge.core.algorithm import Stage, Tune, model_for
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.server import Rejection
from kedge.core.tree import Leaves, Tree, flatten
from kedge.engines.engine import Order
from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.exchange import Exchange
from kedge.engines.flower.messages import Content, Facts, MessageError, Request, tensor_bytes
from kedge.engines.flower.selection import all_leaves, leaf_name, trained_leaves
from kedge.engines.flower.site_evaluation import SiteEvaluation
from kedge.engines.flower.upload_check import Expected, checked_sums, without_outliers
from kedge.engines.sums import Sums

NEVER = -1
NORM_LIMIT = 100.0


class Population(NamedTuple):
    """The clients of a federation, and the templates of their uploads."""

    sizes: Sequence[int]  # the number of training samples of each client
    uploads: Sequence[Tree]  # for each stage: a tree with the names, shapes and dtypes of an upload
    norm_limit: float = NORM_LIMIT  # an update with a norm above this multiple of the median is left out


@dataclass
class Traffic:
    """The bytes of the arrays in orders and uploads."""

    down: int = 0
    up: int = 0
    evaluation: int = 0  # down, for evaluations only; not in `down`


@dataclass
class Sent:
    """The rounds in which leaves changed, and in which clients received them."""

    changed: dict[str, int] = field(default_factory=dict)  # leaf -> the last round that changed it
    received: dict[int, int] = field(default_factory=dict)  # client -> its last round

    def outdated(self, client: int, new: bool) -> frozenset[str]:
        """The leaves that changed after the client's last round."""
        last = NEVER if new else self.received.get(client, NEVER)
        return frozenset(k for k, round in self.changed.items() if round >= last)


class ServerEngine:
    """Trains the clients of a round on their own machines."""

    at_once = 1

    def __init__(
        self,
        model: Model,
        stages: Sequence[Stage],
        population: Population,
        exchange: Exchange,
        say: Callable[[str], None],
        events: Events = SILENT,
    ) -> None:
        self.network, self.model, self.stages = model, model, list(stages)
        self.population, self.exchange, self.say, self.events = population, exchange, say, events
        self.versions: dict[int, int] = {}  # client -> number of rounds after which its memory was stored
        self.sent = Sent()
        self.sites = SiteEvaluation(self)
        self.traffic = Traffic()  # since the start of this process
        self.number = NEVER
        self.added = frozenset[str]()  # heads that this stage adds, before its first round

    def begin(self, stage: Stage, params: Leaves, kept: frozenset[str] = frozenset()) -> None:
        """Start a stage; clients compute from the method which memories they keep."""
        before = self.stages[self.number] if self.number >= 0 else None
        self.number = next(i for i, known in enumerate(self.stages) if known is stage)
        self.stage, self.model = stage, model_for(stage.algorithm, self.network)
        self.shared = stage.algorithm.shared(self.model)
        self.own = {k: v for k, v in params.items() if k not in self.shared}
        if before is not None:
            self.added = frozenset(stage.algorithm.heads) - frozenset(before.algorithm.heads)

    def train(self, order: Order, clients: Sequence[int]) -> Sums:
        """Send `order` to the clients, wait for their replies, and add these up."""
        self.events("round", round=order.round + 1, clients=list(clients), stage=self.number)
        trained = self.round_leaves(order, clients)
        self.sent.changed |= dict.fromkeys(self.added, order.round - order.stage_round - 1)
        self.added = frozenset()

        def request(client: int, new: bool) -> Request:
            made = self.request(order, client, trained, new)
            self.traffic.down += tensor_bytes(made.tensors)
            return self.sites.with_request(client, made, order)

        replies = self.exchange(clients, request)
        self.sites.collect(replies)
        uploads = {c: self.sums_of(c, order, trained, replies.get(c, "no answer")) for c in clients}
        uploads = without_outliers(uploads, self.population.norm_limit)
        sums = Sums()
        for client, upload in uploads.items():
            sums += upload
            reply = replies.get(client)
            if isinstance(reply, Content) and upload.size and reply.flag("stored"):
                self.versions[client] = order.round + 1
        if sums.size:
            self.sent.changed |= dict.fromkeys(self.shared & trained, order.round)
        self.report_round(sums)
        return sums

    def report_round(self, sums: Sums) -> None:
        """Report the end of a round."""
        for rejection in sums.rejected:
            self.events("rejected", client=rejection.client, reason=rejection.reason)
            self.say(f"the update of client {rejection.client} is left out: {rejection.reason}")
        self.events("round end", admitted=sums.size, rejected=len(sums.rejected))

    def round_leaves(self, order: Order, clients: Sequence[int]) -> frozenset[str]:
        """The leaves that train on some client of this round."""
        return trained_leaves(self.stage, self.model, [self.population.sizes[c] for c in clients], order)

    def request(self, order: Order, client: int, trained: frozenset[str], new: bool) -> Request:
        """The message that makes a client train; `new`: it has kept nothing of earlier messages."""
        outdated = self.sent.outdated(client, new)
        first = client not in self.sent.received or new
        statistics = self.model.statistics
        buffers = statistics == "shared" or (statistics == "local" and first)
        tensors = {
            "shared": {k: v for k, v in order.shared.items() if k in trained or k in outdated},
            "own": {k: v for k, v in self.own.items() if k in outdated},
            "broadcast": order.broadcast,
            "buffers": order.buffers if buffers else {},
        }
        frozen = all_leaves(self.network) - trained
        sent = {
            path: v
            for path, v in flatten(tensors).items()
            if not path.startswith("broadcast/") or leaf_name(path) not in frozen
        }
        facts = {**self.facts(order, client), "frozen": sorted(frozen)}
        return Request("train", facts, sent)

    def facts(self, order: Order, client: int) -> Facts:
        """The facts of an order for one client."""
        return {
            "client": client,
            "round": order.round,
            "stage": self.number,
            "stage_round": order.stage_round,
            "seed": order.seed,
            "memory": self.versions.get(client, 0),
            "samples": int(sum(self.population.sizes)),
            "clients": len(self.population.sizes),
        }

    def sums_of(self, client: int, order: Order, trained: frozenset[str], reply: Content | str) -> Sums:
        """The sums of one client's upload; empty, with the reason, if it is not used."""
        if isinstance(reply, str):
            return Sums(rejected=(Rejection(client, reply),))
        self.traffic.up += reply.nbytes
        self.sent.received[client] = order.round
        try:
            if reply.kind == "upload":
                self.report_lost(client, reply)
            return checked_sums(reply, self.expected(client, order, trained))
        except MessageError as error:
            return Sums(rejected=(Rejection(client, str(error)),))

    def report_lost(self, client: int, reply: Content) -> None:
        """Report a client that has lost its memory."""
        if reply.flag("lost"):
            before = self.versions.get(client, 0)
            self.say(f"client {client} has lost its memory of round {before}: it starts with a new one.")

    def expected(self, client: int, order: Order, trained: frozenset[str]) -> Expected:
        """The upload that a client should send."""
        size, sizes = self.population.sizes[client], self.population.sizes
        numbers = {"examples": size, "relative_size": size * len(sizes) / sum(sizes)}
        return Expected(
            order=order,
            algorithm=self.stage.algorithm,
            template=self.population.uploads[self.number],
            trained=trained,
            frozen=all_leaves(self.network) - trained,
            sends_statistics=self.model.statistics != "frozen",
            facts={name: torch.tensor(float(n), dtype=torch.float64) for name, n in numbers.items()},
        )

    def tune(self, order: Order, clients: Sequence[int], tune: Tune) -> Iterator[tuple[int, Leaves, Leaves]]:
        """Not possible: a client's model does not leave the client."""
        raise RequestError(
            "a federation does not fine-tune personal models yet: set evaluation.tune = 'off'."
        )

    def personal(self, client: int, shared: Leaves, buffers: Leaves) -> tuple[Leaves, Leaves]:
        """Not possible: a client's model does not leave the client."""
        raise RequestError("in a federation a client's own model does not leave the client.")

    def save(self) -> Tree:
        """For each client, the number of rounds after which its memory was stored."""
        return {str(client): {"memory": torch.tensor(n)} for client, n in sorted(self.versions.items())}

    def load(self, saved: Tree) -> None:
        """Restore `save`; all leaves will be sent again."""
        self.versions = {int(client): int(entry["memory"]) for client, entry in saved.items()}
        self.sent = Sent(changed=dict.fromkeys(all_leaves(self.network), 0))
