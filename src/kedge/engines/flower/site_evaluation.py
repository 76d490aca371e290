"""SiteEvaluation: the evaluation of the distributed model on the clients' own validation sets.

The model is sent in any case with the order of the next round, so its participants evaluate it before they
train, and return their scores with their uploads. An exchange of its own reaches all clients: after the last
round, at the end of a stage, and if scores are needed at once.
"""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from kedge.core.tree import flatten
from kedge.engines.engine import Order
from kedge.engines.flower.messages import Content, MessageError, Request, tensor_bytes
from kedge.engines.flower.score_request import NOTHING, ClientScores, ScoreRequest, name_of
from kedge.engines.flower.site_scores import request_facts, scores_of

if TYPE_CHECKING:
    from kedge.engines.flower.server_engine import ServerEngine


class SiteEvaluation:
    """The request that the next orders bring, and the scores in their replies; all for one engine."""

    def __init__(self, engine: "ServerEngine") -> None:
        self.engine = engine
        self.request = NOTHING
        self.scores: dict[int, ClientScores] = {}

    @property
    def sharing(self) -> frozenset[int]:
        """The clients that share their metrics."""
        return self.engine.exchange.sharing

    def start(self, request: ScoreRequest) -> None:
        """Add `request` to the next orders."""
        self.request, self.scores = request, {}

    def take(self, round: int) -> dict[int, ClientScores]:
        """The scores of the model after `round` rounds, by client; they are no longer requested."""
        scores = self.scores if self.request.round == round else {}
        self.start(NOTHING)
        return scores

    def score_now(self, order: Order, request: ScoreRequest) -> dict[int, ClientScores]:
        """The scores of the model in `order`, from an exchange of its own with all connected clients."""
        self.start(request)
        self.engine.sizes = self.engine.population.roster.sizes(request.round)  # with new clients
        replies = self.engine.exchange.reach_evaluating(
            lambda client, new: self.with_request(client, self.message(order, client, new), order)
        )
        for client, reply in replies.items():
            self.report_failure(client, reply)
        self.collect(replies)
        return self.take(request.round)

    def message(self, order: Order, client: int, new: bool) -> Request:
        """An order to evaluate only: the leaves that have changed since the client's last round."""
        engine = self.engine
        outdated = engine.sent.outdated(client, new)
        tensors = flatten(
            {
                "shared": {k: v for k, v in order.shared.items() if k in outdated},
                "own": {k: v for k, v in engine.own.items() if k in outdated},
                "buffers": order.buffers if engine.model.statistics == "shared" else {},
            }
        )
        engine.traffic.evaluation += tensor_bytes(tensors)
        return Request("evaluate", engine.facts(order, client), tensors)

    def with_request(self, client: int, made: Request, order: Order) -> Request:
        """A message with the request, and with the statistics that only an evaluation needs.

        The sites of a private run do not evaluate: their messages have no request.
        """
        if self.engine.private:
            return made
        tensors = made.tensors
        if client not in self.engine.exchange.evaluating:
            return Request(made.kind, {**made.facts, **request_facts(NOTHING)}, tensors)
        if self.request.round and self.engine.model.statistics == "local":
            extra = {f"evaluated/{k}": v for k, v in order.buffers.items()}
            self.engine.traffic.evaluation += tensor_bytes(extra)
            tensors = {**tensors, **extra}
        return Request(made.kind, {**made.facts, **request_facts(self.request)}, tensors)

    def report_failure(self, client: int, reply: Content | str) -> None:
        """Report a client that has not evaluated, or that has lost its memory."""
        say = self.engine.say
        try:
            if isinstance(reply, str) or reply.kind != "scores":
                reason = reply if isinstance(reply, str) else reply.text("reason")
                say(f"client {client} has not evaluated round {self.request.round}: {reason}")
            else:
                self.engine.report_lost(client, reply)
        except MessageError as error:
            say(f"client {client} has not evaluated round {self.request.round}: {error}")

    def collect(self, replies: Mapping[int, Content | str]) -> None:
        """Store the scores in the replies; a score that is not possible is reported and left out."""
        for client, reply in sorted(replies.items()):
            if isinstance(reply, str) or not self.request.round:
                continue
            try:
                scores = scores_of(reply)
            except MessageError as error:
                self.engine.say(f"client {client}: its metrics are left out: {error}")
                continue
            if scores:
                self.scores[client] = scores
                self.report(client, scores)

    def report(self, client: int, scores: ClientScores) -> None:
        """Report a client's metrics as an event, under the names of a history."""
        metrics = {
            name_of(model, kind): total / score.samples
            for model, score in scores.items()
            for kind, total in (("accuracy", score.correct), ("loss", score.loss))
            if isfinite(total)
        }
        self.engine.events("evaluation", client=client, evaluated=self.request.round, metrics=metrics)
