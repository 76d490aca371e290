"""Checks of rules that end a stage by metrics of a federation's clients: some client must send these."""

from collections.abc import Collection

from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.core.errors import RequestError


def site_metric(stage: Stage) -> str:
    """The metric on the clients' own samples that ends a stage; empty if none does."""
    metric = str(getattr(stage.until, "metric", ""))
    return metric if ".local." in metric else ""


def check_rules(task: Task) -> None:
    """Raise if a rule reads a metric of a model that the clients do not receive."""
    for metric in map(site_metric, task.stages):
        if metric and not metric.startswith(("distributed.", "personal.")):
            raise RequestError(
                f"plateau(metric={metric!r}): in a federation clients evaluate the distributed model and "
                "their own, no others. Use distributed.local or personal.local, or simulate with kedge run."
            )


def check_sharing(stage: Stage, sharing: Collection[int]) -> None:
    """Raise if a rule reads metrics of clients, and no client shares them."""
    metric = site_metric(stage)
    if metric and not sharing:
        raise RequestError(
            f"plateau(metric={metric!r}): no site shares its metrics, so the rule has nothing to read. Start "
            "kedge join with --share-metrics at one site or more (with --data, also with --validation FILE), "
            "or choose a metric of the server's test set, such as distributed.global.accuracy."
        )


def check_answered(stage: Stage, round: int, answered: Collection[int]) -> None:
    """Raise if a rule reads metrics of clients, and none has sent them in this evaluation."""
    metric = site_metric(stage)
    if metric and not answered:
        raise RequestError(
            f"plateau(metric={metric!r}): no site that shares its metrics has answered the evaluation of "
            f"round {round}, so the rule has nothing to read. Resume when such a site is connected, or with "
            "a longer --deadline."
        )
