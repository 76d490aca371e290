"""The evaluation matrix of a round: every model worth looking at, on the common and on the local tests.

Metrics are named {distributed, average, all, personal, a view}.{global, local}.{accuracy, loss}. `personal`
is the newest shared part with what a client keeps, answering as a client does; `.tuned` after fine-tuning a
copy; `.seen` and `.unseen` tell clients that took part from those that never did, while there are such. All
models but the personal ones are tested with the server's batch-norm statistics.
"""

import math

from kedge.core.algorithm import Algorithm, Stage, Tune, logits
from kedge.core.server import Server, opened
from kedge.core.tree import Leaves
from kedge.engines.engine import Engine, Order
from kedge.measure.evaluate import Local, of_clients, on_local_tests, on_test, together
from kedge.running.task import Progress, Task

Metrics = dict[str, float]
ByClient = dict[str, list[float | None]]
KINDS = ("accuracy", "loss")


def measured(task: Task, engine: Engine, stage: Stage, progress: Progress) -> tuple[Metrics, ByClient]:
    """Every metric of the round just done, and the accuracies by client."""
    server, data = progress.server, task.federation
    algorithm = stage.algorithm
    metrics: Metrics = {}
    by_client: ByClient = {}
    known: dict[int, tuple[Metrics, dict[int, Local]]] = {}  # equal models are looked at once
    for name, leaves in views(algorithm, server).items():
        if id(leaves) not in known:
            whole = {**server.own, **leaves}
            common = on_test(task.model, logits, whole, server.buffers, data, engine.repeated)
            own = on_local_tests(task.model, logits, whole, server.buffers, data)
            known[id(leaves)] = common | prefixed("local", together(own.values())), own
        values, own = known[id(leaves)]
        metrics |= prefixed(name, values)
        by_client |= each(f"{name}.local.accuracy", own, len(data.clients))
    if not any(len(own) for own in data.local_tests):
        return metrics, by_client
    clients = [client for client, own in enumerate(data.local_tests) if len(own)]
    if server.own or algorithm.predict is not logits or task.model.statistics == "local":
        models = ((c, *engine.personal(c, server.shared, server.buffers)) for c in clients)
        own = of_clients(task.model, algorithm.predict, models, data, engine.at_once)
    else:
        own = known[id(server.shared)][1]
    metrics |= personal(task, progress, own, "")
    by_client |= each("personal.local.accuracy", own, len(data.clients))
    tune = tune_of(task, algorithm)
    due = progress.round == task.rounds or (task.tune_every and progress.round % task.tune_every == 0)
    if tune and due:
        order = Order(
            progress.round - 1, progress.stage_round - 1, task.seed, server.shared, server.buffers, {}
        )
        tuned = engine.tuned(order, clients, tune)
        own = of_clients(task.model, algorithm.predict, tuned, data, engine.at_once)
        metrics |= personal(task, progress, own, ".tuned")
        by_client |= each("personal.local.accuracy.tuned", own, len(data.clients))
    return metrics, by_client


def measurable(task: Task, stage: Stage) -> list[str]:
    """The losses and accuracies that a stage's history will have before the run's last round."""
    algorithm, data = stage.algorithm, task.federation
    models = views(algorithm, opened(algorithm, task.model, *task.model.init(task.seed)))
    names = [f"{model}.global.{kind}" for model in models for kind in KINDS if data.test]
    if any(len(own) for own in data.local_tests):
        names += [f"{model}.local.{kind}" for model in models for kind in KINDS]
        tuned = ("", ".tuned") if task.tune_every and tune_of(task, algorithm) else ("",)
        ends = [how + who for how in tuned for who in ("", ".seen", ".unseen")]
        names += [f"personal.local.{kind}{end}" for kind in KINDS for end in ends]
    return [*names, "train.loss"]


def tune_of(task: Task, algorithm: Algorithm) -> Tune | None:
    """How clients fine-tune: as asked for, or the method's own way."""
    tune = algorithm.tune if task.tune == "method" else task.tune
    return tune if isinstance(tune, Tune) else None


def views(algorithm: Algorithm, server: Server) -> dict[str, Leaves]:
    """The models that are one for everybody."""
    found = {"distributed": server.shared, "average": server.average}
    for c in algorithm.corrections:
        found |= c.views(server.shared, server.slots[c.name])
    return found


def personal(task: Task, progress: Progress, own: dict[int, Local], suffix: str) -> Metrics:
    """Means over the clients; those that never took part also apart."""
    seen = [one for client, one in own.items() if client in progress.seen]
    unseen = [one for client, one in own.items() if client not in progress.seen]
    headline = seen if task.headline == "seen" else own.values()
    parts = {"": headline, **({".seen": seen, ".unseen": unseen} if unseen else {})}
    return {
        f"personal.local.{k}{suffix}{part}": v
        for part, members in parts.items()
        for k, v in together(members).items()
    }


def each(name: str, own: dict[int, Local], clients: int) -> ByClient:
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
