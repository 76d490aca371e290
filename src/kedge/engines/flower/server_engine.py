"""The server's engine of a federation: it sends orders to clients and adds up their replies.

Replies are added in the order of the clients, never of their arrival, and each is the `Sums` of one client,
as in the sequential engine: the result has the same bits. The clients' memories stay with the clients. The
engine knows the round after which each memory was stored, and names it in every order.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from kedge.core.algorithm import Stage, Tune, model_for
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.server import NOT_JOINED, Rejection
from kedge.core.tree import Leaves, Tree, flatten
from kedge.engines.engine import Order
from kedge.engines.flower.events import SILENT, Events
from kedge.engines.flower.exchange import Exchange
from kedge.engines.flower.messages import Content, Facts, MessageError, Request, tensor_bytes
from kedge.engines.flower.population import Population
from kedge.engines.flower.selection import all_leaves, leaf_name, trained_leaves
from kedge.engines.flower.sent import NEVER, Sent, Traffic
from kedge.engines.flower.site_evaluation import SiteEvaluation
from kedge.engines.flower.upload_check import Expected, checked_sums, without_outliers
from kedge.engines.sums import Sums


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
        self.sizes: dict[int, int] = {}  # the samples of each client that may train in this round
        self.private = population.private

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
        self.sizes = self.population.roster.begin_round(order.round)
        present = [client for client in clients if client in self.sizes]
        self.events("round", round=order.round + 1, clients=present, stage=self.number)
        trained = self.round_leaves(order, present)
        self.sent.changed |= dict.fromkeys(self.added, order.round - order.stage_round - 1)
        self.added = frozenset()
        if self.private:
            self.sent.note_changes(order.shared, order.round)

        def request(client: int, new: bool) -> Request:
            made = self.request(order, client, trained, new)
            self.traffic.down += tensor_bytes(made.tensors)
            return self.sites.with_request(client, made, order)

        replies = {**dict.fromkeys(clients, NOT_JOINED), **self.exchange(present, request)}
        self.sites.collect(replies)
        uploads = {c: self.sums_of(c, order, trained, replies.get(c, "no answer")) for c in clients}
        if not self.private:
            uploads = without_outliers(uploads, self.population.norm_limit)
        sums = Sums()
        for client, upload in uploads.items():
            sums += upload
            reply = replies.get(client)
            if isinstance(reply, Content) and upload.size and reply.flag("stored"):
                self.versions[client] = order.round + 1
        if sums.size and not self.private:
            self.sent.changed |= dict.fromkeys(self.shared & trained, order.round)
        self.report_round(order, sums)
        return sums

    def report_round(self, order: Order, sums: Sums) -> None:
        """Report the uploads that are left out, and the end of the round."""
        rejected = [rejection for rejection in sums.rejected if rejection.reason != NOT_JOINED]
        for client, reason in rejected:
            self.events("rejected", client=client, reason=reason)
            counts = "counts as zero" if self.private else "is left out"
            self.say(f"round {order.round + 1}: the update of client {client} {counts}: {reason}")
        self.events("round end", admitted=sums.size, rejected=len(rejected))

    def round_leaves(self, order: Order, clients: Sequence[int]) -> frozenset[str]:
        """The leaves that train on some client of this round."""
        if self.private:
            return self.private.opened(self.stage, order)
        return trained_leaves(self.stage, self.model, [self.sizes[c] for c in clients], order)

    def request(self, order: Order, client: int, trained: frozenset[str], new: bool) -> Request:
        """The message that makes a client train; `new`: it has kept nothing of earlier messages."""
        outdated = self.sent.outdated(client, new)
        first = client not in self.sent.received or new
        statistics = self.model.statistics if not self.private else "frozen"
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
        facts: Facts = {
            "client": client,
            "round": order.round,
            "stage": self.number,
            "stage_round": order.stage_round,
            "seed": order.seed,
            "memory": self.versions.get(client, 0),
            "clients": self.population.clients,
        }
        if not self.private:
            facts |= {"samples": sum(self.sizes.values()), "joined": len(self.sizes)}
        return facts

    def sums_of(self, client: int, order: Order, trained: frozenset[str], reply: Content | str) -> Sums:
        """The sums of one client's upload; empty, with the reason, if it is not used."""
        if isinstance(reply, str):
            return Sums(rejected=(Rejection(client, reply),))
        self.traffic.up += reply.nbytes
        self.sent.received[client] = order.round
        try:
            if reply.kind == "upload":
                self.report_lost(client, reply)
            admit = self.private.admit if self.private else checked_sums
            return admit(reply, self.expected(client, order, trained))
        except MessageError as error:
            return Sums(rejected=(Rejection(client, str(error)),))

    def report_lost(self, client: int, reply: Content) -> None:
        """Report a client that has lost its memory."""
        if reply.flag("lost"):
            before = self.versions.get(client, 0)
            self.say(f"client {client} has lost its memory of round {before}: it starts with a new one.")

    def expected(self, client: int, order: Order, trained: frozenset[str]) -> Expected:
        """The upload that a client should send."""
        size, sizes = self.sizes[client], self.sizes
        numbers = {"examples": size, "relative_size": size * len(sizes) / (sum(sizes.values()) or 1)}
        return Expected(
            order=order,
            algorithm=self.stage.algorithm,
            template=self.population.uploads[self.number],
            trained=trained,
            frozen=all_leaves(self.network) - trained,
            sends_statistics=self.model.statistics != "frozen" and not self.private,
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
