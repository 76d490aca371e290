"""Metrics of a federation's clients on their own validation sets, under the names of a simulation.

The clients of the next round evaluate the model that its order brings. The metrics of a round then arrive
one round later, and its line of the history waits for them. An exchange of its own with all clients
evaluates the last round of a run or stage, every evaluation of a stage that ends by a rule, and rounds with
fine-tuning, because these lines cannot wait.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from kedge.config.metrics import global_models
from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.server import Server
from kedge.core.tree import Leaves
from kedge.engines.engine import Engine, Order
from kedge.engines.flower.score_request import ClientScores, ScoreRequest
from kedge.measure.evaluation import ClientScore, pooled_metrics
from kedge.running.progress import Progress, is_last_round, stage_is_over
from kedge.running.recording.client_scores import has_own_models, order_after
from kedge.running.recording.evaluation import (
    ByClient,
    Metrics,
    PendingResults,
    accuracies,
    personal_metrics,
    prefixed,
    tuning_due,
)
from kedge.running.recording.site_rules import check_answered, check_sharing


class Sites(Protocol):
    """Evaluates models on the clients' own machines."""

    @property
    def sharing(self) -> frozenset[int]:
        """The clients that share their metrics."""
        ...

    def start(self, request: ScoreRequest) -> None:
        """Let the clients of the next round evaluate the model that its order brings."""
        ...

    def take(self, round: int) -> dict[int, ClientScores]:
        """The scores of the model after `round` rounds, by client."""
        ...

    def score_now(self, order: Order, request: ScoreRequest) -> dict[int, ClientScores]:
        """The scores of the model in `order` on all clients, at once."""
        ...


class Evaluated(NamedTuple):
    """The evaluated models of a round; can be stored as JSON, so that a line can wait in a checkpoint."""

    round: int
    models: Sequence[str]  # the names of the distributed model; of its average, too, if they are equal
    seen: Sequence[int]  # clients that have taken part
    own: bool  # whether clients have models of their own
    metrics: Metrics  # of the server's own evaluation


def sites_of(engine: Engine) -> Sites | None:
    """The clients' machines, if the engine is a federation's."""
    return cast(Sites | None, getattr(engine, "sites", None))


def with_site_metrics(
    task: Task, engine: Engine, progress: Progress, evaluated: PendingResults
) -> tuple[PendingResults, Evaluated | None]:
    """The results of a round's evaluation, with the clients' metrics if the engine is a federation's.

    The second value is not None if these arrive with the replies of the next round.
    """
    sites, stage = sites_of(engine), task.stages[progress.stage]
    if sites is None or task.privacy.active:  # a reply would show which clients take part
        return evaluated, None
    server, tuned = progress.server, tuning_due(task, stage.algorithm, progress.round)
    own = has_own_models(stage.algorithm, server, task.model)
    metrics, _ = evaluated()
    of_sites = Evaluated(progress.round, same_models(stage, server), sorted(progress.seen), own, metrics)
    if tuned or stage.until or stage_is_over(task, progress) or is_last_round(task, progress):
        check_sharing(stage, sites.sharing)
        scores = sites.score_now(order_after(task, progress), ScoreRequest(progress.round, own, tuned))
        check_answered(stage, progress.round, scores)
        return lambda: site_metrics(task, of_sites, scores), None
    sites.start(ScoreRequest(progress.round, own))
    if not sites.sharing:
        return lambda: site_metrics(task, of_sites, {}), None
    return late_results(task, sites, of_sites), of_sites


def late_results(task: Task, sites: Sites, evaluated: Evaluated) -> PendingResults:
    """A function that returns the metrics, also of the clients' scores that have arrived by then."""
    return lambda: site_metrics(task, evaluated, sites.take(evaluated.round))


def requested_again(task: Task, engine: Engine, evaluated: Evaluated) -> PendingResults:
    """The results of a line that waited when the run was saved: the next order brings the request again."""
    sites = sites_of(engine)
    assert sites is not None, "only the lines of a federation wait"
    sites.start(ScoreRequest(evaluated.round, evaluated.own))
    return late_results(task, sites, evaluated)


def same_models(stage: Stage, server: Server) -> list[str]:
    """The names of the server's models that equal the distributed one; clients do not receive the others."""
    models = global_models(stage.algorithm, server)
    return [name for name, leaves in models.items() if equal_leaves(leaves, server.shared)]


def equal_leaves(left: Leaves, right: Leaves) -> bool:
    """Whether all leaves have equal values."""
    return left is right or all(v.equal(right[k]) for k, v in left.items())


def site_metrics(
    task: Task, evaluated: Evaluated, scores: dict[int, ClientScores]
) -> tuple[Metrics, ByClient]:
    """The server's metrics with those over all clients with scores, and the accuracies by client."""
    population = len(task.federation.clients)
    by_model: dict[str, dict[int, ClientScore]] = {}
    for client, models in sorted(scores.items()):
        for model, score in models.items():
            by_model.setdefault(model, {})[client] = ClientScore(*score)
    distributed = by_model.get("distributed", {})
    personal = by_model.get("personal", {}) if evaluated.own else distributed
    metrics, by_client = dict(evaluated.metrics), ByClient()
    for name in evaluated.models if distributed else ():
        metrics |= prefixed(f"{name}.local", pooled_metrics(distributed.values()))
        by_client |= accuracies(f"{name}.local.accuracy", distributed, population)
    for suffix, found in (("", personal), (".tuned", by_model.get("tuned", {}))):
        metrics |= personal_metrics(task, frozenset(evaluated.seen), found, suffix)
        by_client |= accuracies(f"personal.local.accuracy{suffix}", found, population)
    return metrics, by_client
