"""The evaluation matrix of a round: models of the server and of clients, on common and on local test sets.

Metrics are named {distributed, average, all, personal, a view}.{global, local}.{accuracy, loss}. The
`personal` model of a client is the newest shared part with the leaves that the client keeps, and it predicts
as the client does. `.tuned` is measured after fine-tuning a copy. `.seen` and `.unseen` separate clients that
have taken part from clients that have not. All models except `personal` use the server's
batch-norm statistics.

No later round changes the tensors that an evaluation reads, so its results may be fetched after the next
round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kedge.config.metrics import global_models, tune_of
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, logits
from kedge.engines.engine import Engine
from kedge.engines.overlap import overlap_of
from kedge.measure.evaluation import (
    ClientScore,
    EvaluationSets,
    Scorer,
    Scores,
    common_metrics,
    pooled_metrics,
    rows_by_client,
    split_by_client,
)
from kedge.running.progress import Progress
from kedge.running.recording.client_scores import own_scores, tuned_scores

Metrics = dict[str, float]
ByClient = dict[str, list[float | None]]
# Waits for the results of a round's evaluation: every metric, and the accuracies by client.
PendingResults = Callable[[], tuple[Metrics, ByClient]]


class RoundScores(NamedTuple):
    """Scores of the models of a round, one value per sample."""

    common: list[Scores]  # of the server's models, on the common test set
    local: list[Scores]  # of the server's models, on the local test sets
    own: list[Scores]  # of the clients' models, one entry per group of clients


class Evaluation(NamedTuple):
    """An evaluation that the engine has started."""

    names: Mapping[str, int]  # view -> index of its model; equal models are evaluated once
    clients: Sequence[Sequence[int]]  # groups of clients; empty if no client has its own model
    seen: frozenset[int]
    scores: Callable[[], RoundScores]  # waits for the scores
    tuned: dict[int, ClientScore]


def start_evaluation(
    task: Task, engine: Engine, stage: Stage, progress: Progress, tests: EvaluationSets
) -> PendingResults:
    """Start to evaluate the models of the round that has just finished."""
    server, algorithm, model, overlap = progress.server, stage.algorithm, task.model, overlap_of(engine)
    views = global_models(algorithm, server)
    different = {id(leaves): leaves for leaves in views.values()}
    models = [{**server.own, **leaves} for leaves in different.values()]
    own = own_scores(task, engine, algorithm, progress, tests)

    def score() -> RoundScores:
        shared = Scorer(model, logits, tests.data.prepare)
        common, local = (
            [shared.model_scores(params, server.buffers, samples, overlap.repeat) for params in models]
            if samples
            else []
            for samples in (tests.common(), tests.local())
        )
        return RoundScores(common, local, own.scores())

    ids = list(different)
    evaluation = Evaluation(
        names={name: ids.index(id(leaves)) for name, leaves in views.items()},
        clients=own.clients,
        seen=frozenset(progress.seen),
        scores=overlap.launch(score),
        tuned=fine_tuned_scores(task, engine, stage, progress, tests),
    )
    return partial(finish_evaluation, task, tests, evaluation)


def fine_tuned_scores(
    task: Task, engine: Engine, stage: Stage, progress: Progress, tests: EvaluationSets
) -> dict[int, ClientScore]:
    """Scores of fine-tuned copies of clients' models on their own tests, if they are due in this round."""
    algorithm = stage.algorithm
    tune = tune_of(task, algorithm)
    if not (tune and tuning_due(task, algorithm, progress.round) and tests.sizes):
        return {}
    by_client: dict[int, ClientScore] = {}
    for group, scores in tuned_scores(task, engine, algorithm, progress, tests, tune):
        by_client |= rows_by_client(scores, group, tests.sizes)
    return by_client


def tuning_due(task: Task, algorithm: Algorithm, round: int) -> bool:
    """Whether clients' models are fine-tuned and measured after `round` rounds."""
    due = round == task.rounds or (task.tune_every and round % task.tune_every == 0)
    return bool(due and tune_of(task, algorithm))


def finish_evaluation(task: Task, tests: EvaluationSets, evaluation: Evaluation) -> tuple[Metrics, ByClient]:
    """Wait for the scores of an evaluation, and compute its metrics."""
    scores, population = evaluation.scores(), len(task.federation.clients)
    common = [common_metrics(model_scores) for model_scores in scores.common]
    local = [split_by_client(model_scores, tests.sizes) for model_scores in scores.local]
    metrics: Metrics = {}
    by_client: ByClient = {}
    for name, number in evaluation.names.items():
        if common:
            metrics |= prefixed(name, common[number])
        if local:
            metrics |= prefixed(f"{name}.local", pooled_metrics(local[number].values()))
            by_client |= accuracies(f"{name}.local.accuracy", local[number], population)
    if not local:
        return metrics, by_client
    personal = local[evaluation.names["distributed"]]
    if evaluation.clients:
        personal = {}
        for group_scores, group in zip(scores.own, evaluation.clients, strict=True):
            personal |= rows_by_client(group_scores, group, tests.sizes)
    metrics |= personal_metrics(task, evaluation.seen, personal, "")
    by_client |= accuracies("personal.local.accuracy", personal, population)
    if evaluation.tuned:
        metrics |= personal_metrics(task, evaluation.seen, evaluation.tuned, ".tuned")
        by_client |= accuracies("personal.local.accuracy.tuned", evaluation.tuned, population)
    return metrics, by_client


def personal_metrics(
    task: Task, seen: frozenset[int], by_client: dict[int, ClientScore], suffix: str
) -> Metrics:
    """Means over the clients, and over clients that have and have not taken part."""
    scores_seen = [score for client, score in by_client.items() if client in seen]
    scores_unseen = [score for client, score in by_client.items() if client not in seen]
    headline = scores_seen if task.headline == "seen" else by_client.values()
    parts = {"": headline, **({".seen": scores_seen, ".unseen": scores_unseen} if scores_unseen else {})}
    return {
        f"personal.local.{k}{suffix}{part}": v
        for part, scores in parts.items()
        for k, v in pooled_metrics(scores).items()
    }


def accuracies(name: str, by_client: dict[int, ClientScore], clients: int) -> ByClient:
    """The accuracy of every client, under `name`; None for a client without a test set."""
    if not by_client:
        return {}
    scores = (by_client.get(client) for client in range(clients))
    return {name: [score.correct / score.samples if score else None for score in scores]}


def prefixed(name: str, values: Metrics) -> Metrics:
    """The values with `name` before their names."""
    return {f"{name}.{k}": v for k, v in values.items()}


def finite_or_none(value: float | None) -> float | None:
    """The value, or None if JSON has no such number."""
    return value if value is not None and math.isfinite(value) else None


def evaluation_due(task: Task, round: int) -> bool:
    """Whether models are evaluated after `round` rounds."""
    return round % task.evaluate_every == 0 or round == task.rounds
