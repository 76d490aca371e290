"""Scores of clients' own models on their local tests, computed where the engine keeps their memories.

An engine whose clients are in other processes has a method `score_models`: models stay there, and scores are
returned. Any other engine hands out the models, and they are scored here, beside the next round's training
if the engine can overlap.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Tune, logits
from kedge.core.model import Model
from kedge.core.server import Server
from kedge.core.tree import Tree
from kedge.engines.engine import Engine, Order
from kedge.engines.overlap import overlap_of
from kedge.measure.evaluation import (
    ClientModel,
    EvaluationSets,
    Scorer,
    Scores,
    groups,
    score_client_models,
)
from kedge.running.progress import Progress


class RemoteModels(Protocol):
    """An engine whose clients' models are in other processes."""

    def score_models(
        self, score: Callable[..., Tree], order: Order, clients: Sequence[int], tune: Tune | None
    ) -> list[tuple[Sequence[int], Tree]]:
        """Apply `score` to groups of the models of `clients`; return the clients and result of each group.

        `score` receives the model, the federation, and a list of (client, parameters, statistics). With
        `tune`, it receives fine-tuned copies.
        """
        ...


class OwnScores(NamedTuple):
    """Groups of clients, and a function that returns the scores of each group."""

    clients: Sequence[Sequence[int]]
    scores: Callable[[], list[Scores]]


def remote_models(engine: Engine) -> RemoteModels | None:
    """The engine, if its clients' models are in other processes."""
    return cast(RemoteModels, engine) if hasattr(engine, "score_models") else None


def order_after(task: Task, progress: Progress) -> Order:
    """An order with the server's model after the latest round."""
    server = progress.server
    return Order(progress.round - 1, progress.stage_round - 1, task.seed, server.shared, server.buffers, {})


def has_own_models(algorithm: Algorithm, server: Server, model: Model) -> bool:
    """Whether a client's own model differs from the distributed one."""
    return bool(server.own or algorithm.predict is not logits or model.statistics == "local")


def own_scores(
    task: Task, engine: Engine, algorithm: Algorithm, progress: Progress, tests: EvaluationSets
) -> OwnScores:
    """Scores of the clients' own models; no groups if clients have no models of their own."""
    server, model, overlap = progress.server, task.model, overlap_of(engine)
    if not (tests.sizes and has_own_models(algorithm, server, model)):
        return OwnScores([], list)
    if remote := remote_models(engine):
        found = score_remotely(remote, algorithm, order_after(task, progress), tests, None)
        scores = [group_scores for _, group_scores in found]
        return OwnScores([group for group, _ in found], lambda: scores)
    personal = Scorer(model, algorithm.predict, tests.data.prepare)
    models = ((c, *engine.personal(c, server.shared, server.buffers)) for c in tests.sizes)
    by_group: list[list[ClientModel]] = list(groups(models, engine.at_once))
    return OwnScores(
        [[client for client, _, _ in group] for group in by_group],
        lambda: [personal.client_model_scores(group, tests, overlap.repeat) for group in by_group],
    )


def tuned_scores(
    task: Task, engine: Engine, algorithm: Algorithm, progress: Progress, tests: EvaluationSets, tune: Tune
) -> list[tuple[Sequence[int], Scores]]:
    """Scores of fine-tuned copies of the clients' models, by groups of clients."""
    order = order_after(task, progress)
    if remote := remote_models(engine):
        return score_remotely(remote, algorithm, order, tests, tune)
    overlap = overlap_of(engine)
    scorer = Scorer(task.model, algorithm.predict, tests.data.prepare)
    found: list[tuple[Sequence[int], Scores]] = []
    for group in groups(engine.tune(order, list(tests.sizes), tune), engine.at_once):
        # Launched, although the result is needed at once: `repeat` must always be called on the same stream.
        scores = overlap.launch(partial(scorer.client_model_scores, group, tests, overlap.repeat))
        found.append(([client for client, _, _ in group], scores()))
    return found


def score_remotely(
    remote: RemoteModels, algorithm: Algorithm, order: Order, tests: EvaluationSets, tune: Tune | None
) -> list[tuple[Sequence[int], Scores]]:
    """Scores by groups of clients, computed in the processes that have their models."""
    score = partial(score_client_models, algorithm.predict)
    found: list[tuple[Sequence[int], Scores]] = []
    for group, scores in remote.score_models(score, order, list(tests.sizes), tune):
        found.append((group, Scores(**dict(scores))))
    return found
