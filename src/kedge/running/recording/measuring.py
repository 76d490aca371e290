"""The evaluation matrix of a round: every model worth looking at, on the common and on the local tests.

Metrics are named {distributed, average, all, personal, a view}.{global, local}.{accuracy, loss}. `personal`
is the newest shared part with what a client keeps, answering as a client does; `.tuned` after fine-tuning a
copy; `.seen` and `.unseen` tell clients that took part from those that never did, while there are such. All
models but the personal ones are tested with the server's batch-norm statistics.

A look at a round's models depends on nothing that a later round changes, so its numbers may be asked for
when the next round is done.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kedge.config.metrics import tune_of, views
from kedge.config.task import Task
from kedge.core.algorithm import Stage, logits
from kedge.engines.engine import Engine, Order
from kedge.measure.evaluation import (
    ClientModel,
    ClientScore,
    EvaluationSets,
    Scores,
    client_model_scores,
    common_metrics,
    groups,
    pooled_metrics,
    rows_by_client,
    shared_model_scores,
    split_by_client,
)
from kedge.running.progress import Progress

Metrics = dict[str, float]
ByClient = dict[str, list[float | None]]
Measured = Callable[[], tuple[Metrics, ByClient]]  # every metric of a round, and the accuracies by client


class Looks(NamedTuple):
    """What the models of a round answer, one value a sample."""

    common: list[Scores]  # of each model that is one for everybody
    local: list[Scores]
    own: list[Scores]  # of clients' models, some side by side


class Evaluation(NamedTuple):
    """An evaluation that has begun: the run goes on before its results are there."""

    names: Mapping[str, int]  # a view -> its number among the models; equal models are looked at once
    clients: Sequence[Sequence[int]]  # whose models were looked at side by side; none: the distributed one
    seen: frozenset[int]
    looks: Callable[[], Looks]
    tuned: dict[int, ClientScore]


def measured(task: Task, engine: Engine, stage: Stage, progress: Progress, tests: EvaluationSets) -> Measured:
    """Look at the models of the round just done, aside if the engine can; what gives the numbers."""
    server, algorithm, model = progress.server, stage.algorithm, task.model
    found = views(algorithm, server)
    different = {id(leaves): leaves for leaves in found.values()}
    models = [{**server.own, **leaves} for leaves in different.values()]
    own: list[list[ClientModel]] = []
    if tests.sizes and (server.own or algorithm.predict is not logits or model.statistics == "local"):
        clients = ((c, *engine.personal(c, server.shared, server.buffers)) for c in tests.sizes)
        own = list(groups(clients, engine.at_once))

    def look() -> Looks:
        everybody = partial(shared_model_scores, model, logits, models, server.buffers, tests.data)
        return Looks(
            everybody(tests.common(), engine.repeated),
            everybody(tests.local(), engine.repeated),
            [client_model_scores(model, algorithm.predict, some, tests, engine.repeated) for some in own],
        )

    places = list(different)
    begun = Evaluation(
        names={name: places.index(id(leaves)) for name, leaves in found.items()},
        clients=[[client for client, _, _ in some] for some in own],
        seen=frozenset(progress.seen),
        looks=engine.aside(look),
        tuned=tuned(task, engine, stage, progress, tests),
    )
    return partial(numbers, task, tests, begun)


def tuned(
    task: Task, engine: Engine, stage: Stage, progress: Progress, tests: EvaluationSets
) -> dict[int, ClientScore]:
    """Fine-tuned copies of clients' models on their own tests, if they are due; these are waited for."""
    server, algorithm = progress.server, stage.algorithm
    tune = tune_of(task, algorithm)
    due = progress.round == task.rounds or (task.tune_every and progress.round % task.tune_every == 0)
    if not (tune and due and tests.sizes):
        return {}
    order = Order(progress.round - 1, progress.stage_round - 1, task.seed, server.shared, server.buffers, {})
    found: dict[int, ClientScore] = {}
    for some in groups(engine.tuned(order, list(tests.sizes), tune), engine.at_once):
        # Aside, too, though waited for: what is called again and again is called from one place.
        look = engine.aside(
            partial(client_model_scores, task.model, algorithm.predict, some, tests, engine.repeated)
        )
        found |= rows_by_client(look(), [client for client, _, _ in some], tests.sizes)
    return found


def numbers(task: Task, tests: EvaluationSets, begun: Evaluation) -> tuple[Metrics, ByClient]:
    """The metrics of what was looked at; waits for it."""
    looks, population = begun.looks(), len(task.federation.clients)
    common = [common_metrics(one) for one in looks.common]
    local = [split_by_client(one, tests.sizes) for one in looks.local]
    metrics: Metrics = {}
    by_client: ByClient = {}
    for name, number in begun.names.items():
        if common:
            metrics |= prefixed(name, common[number])
        if local:
            metrics |= prefixed(f"{name}.local", pooled_metrics(local[number].values()))
            by_client |= each(f"{name}.local.accuracy", local[number], population)
    if not local:
        return metrics, by_client
    own = local[begun.names["distributed"]]
    if begun.clients:
        parts = zip(looks.own, begun.clients, strict=True)
        own = {
            client: one
            for found, some in parts
            for client, one in rows_by_client(found, some, tests.sizes).items()
        }
    metrics |= personal(task, begun.seen, own, "")
    by_client |= each("personal.local.accuracy", own, population)
    if begun.tuned:
        metrics |= personal(task, begun.seen, begun.tuned, ".tuned")
        by_client |= each("personal.local.accuracy.tuned", begun.tuned, population)
    return metrics, by_client


def personal(task: Task, took_part: frozenset[int], own: dict[int, ClientScore], suffix: str) -> Metrics:
    """Means over the clients; those that never took part also apart."""
    seen = [one for client, one in own.items() if client in took_part]
    unseen = [one for client, one in own.items() if client not in took_part]
    headline = seen if task.headline == "seen" else own.values()
    parts = {"": headline, **({".seen": seen, ".unseen": unseen} if unseen else {})}
    return {
        f"personal.local.{k}{suffix}{part}": v
        for part, members in parts.items()
        for k, v in pooled_metrics(members).items()
    }


def each(name: str, own: dict[int, ClientScore], clients: int) -> ByClient:
    """Every client's accuracy (None: no test)."""
    if not own:
        return {}
    return {name: [own[c].correct / own[c].samples if c in own else None for c in range(clients)]}


def prefixed(name: str, values: Metrics) -> Metrics:
    """The values under a name."""
    return {f"{name}.{k}": v for k, v in values.items()}


def number(value: float | None) -> float | None:
    """A value JSON can hold."""
    return value if value is not None and math.isfinite(value) else None


def evaluates(task: Task, round: int) -> bool:
    """Whether models are measured after this many rounds."""
    return round % task.evaluate_every == 0 or round == task.rounds
