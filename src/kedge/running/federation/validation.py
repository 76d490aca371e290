"""Validation: evaluates the server's models on a site's own validation set, and writes the site's log.

The metrics have the names of a simulation. They are written to metrics.jsonl in the folder of the client's
memory, one line for each evaluation; a round that is repeated after a failure has a second line. Only a site
that shares its metrics sends them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kedge.config.metrics import tune_of
from kedge.config.task import Task
from kedge.core.algorithm import logits
from kedge.core.tree import Leaves
from kedge.engines.flower.client_engine import ClientEngine, ReceivedOrder
from kedge.engines.flower.messages import Content, Facts, Request
from kedge.engines.flower.score_request import ClientScores, ScoreRequest, SiteScore, name_of
from kedge.engines.flower.site_scores import score_facts, score_request
from kedge.measure.evaluation import (
    ClientScore,
    EvaluationSets,
    Predict,
    Samples,
    Scorer,
    pooled_metrics,
    split_by_client,
)
from kedge.running.recording.evaluation import finite_or_none

LOG = "metrics.jsonl"
MEANINGS = {
    "distributed": "the server's model",
    "personal": "your own model",
    "tuned": "your own model after fine-tuning",
}


@dataclass(frozen=True, eq=False)
class Validation:
    """Evaluates models on the validation set of one client."""

    task: Task  # its federation has the client's samples only
    file: Path  # the log
    shares: bool  # whether metrics are sent to the server

    @property
    def samples(self) -> int:
        """The number of samples of the validation set."""
        return len(self.task.federation.local_tests[0])

    def evaluate(
        self, engine: ClientEngine, content: Content, received: ReceivedOrder, say: Callable[[str], None]
    ) -> Facts:
        """Evaluate as the message requests; return the facts for the server: empty unless shared.

        The sites of a private run do not evaluate, also if a server requests it.
        """
        if self.task.privacy.active:
            return {}
        request = score_request(content)
        if not (request.round and self.samples):
            return {}
        scores = self.scores(engine, content, received, request)
        self.write(request.round, scores)
        say(f"round {request.round} on your {self.samples} validation samples: {scores_text(scores)}")
        return score_facts(scores) if self.shares else {}

    def scores(
        self, engine: ClientEngine, content: Content, received: ReceivedOrder, request: ScoreRequest
    ) -> ClientScores:
        """The scores of the requested models."""
        stage, models = self.task.stages[received.stage], engine.models(received, content)
        tests = EvaluationSets(self.task.federation)
        samples = tests.local()
        assert samples is not None
        found = {"distributed": self.score(models.distributed, logits, samples)}
        if request.own:
            found["personal"] = self.score(models.own, stage.algorithm.predict, samples)
        tune = tune_of(self.task, stage.algorithm)
        if request.tuned and tune:
            tuned = engine.tuned_model(received, content, tune)
            found["tuned"] = self.score(tuned, stage.algorithm.predict, samples)
        return {name: SiteScore(*score) for name, score in found.items()}

    def score(self, model: tuple[Leaves, Leaves], predict: Predict, samples: Samples) -> ClientScore:
        """The score of one model."""
        scorer = Scorer(self.task.model, predict, self.task.federation.prepare)
        return split_by_client(scorer.model_scores(*model, samples), {0: self.samples})[0]

    def write(self, round: int, scores: ClientScores) -> None:
        """Append a line to the log."""
        line: dict[str, float | None] = {"round": round, "samples": self.samples}
        for model, score in scores.items():
            metrics = pooled_metrics([ClientScore(*score)])
            line |= {name_of(model, k): finite_or_none(v) for k, v in metrics.items()}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def scores_text(scores: ClientScores) -> str:
    """Scores in words."""
    parts = []
    for model, score in scores.items():
        metrics = pooled_metrics([ClientScore(*score)])
        percent, loss = 100 * metrics["accuracy"], metrics["loss"]
        parts.append(f"{MEANINGS[model]} has accuracy {percent:.1f} %, loss {loss:.4f}")
    return "; ".join(parts)


def obey(
    engine: ClientEngine, validation: Validation, content: Content, say: Callable[[str], None]
) -> Request:
    """Evaluate and train, or only evaluate, as the server's message says; return the reply."""
    received = engine.receive(content)
    facts = validation.evaluate(engine, content, received, say)
    if content.kind == "evaluate":
        return Request("scores", {"lost": received.lost, **facts}, {})
    reply = engine.train_on(received, content.names("frozen"))
    return reply._replace(facts={**reply.facts, **facts})
