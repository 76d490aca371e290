"""The evaluation matrix of a round: every model worth looking at, on the common and on the local tests.

Metrics are named {distributed, average, all, personal, a view}.{global, local}.{accuracy, loss}. `personal`
is the newest shared part with what a client keeps, answering as a client does; `.tuned` after fine-tuning a
copy; `.seen` and `.unseen` tell clients that took part from those that never did.
"""

import math

from kedge.core.algorithm import Algorithm, Stage, Tune, logits
from kedge.core.server import Server
from kedge.core.tree import Leaves
from kedge.engines.engine import Engine, Order
from kedge.measure.evaluate import Local, of_clients, on_local_tests, on_test, together
from kedge.running.task import Progress, Task

Metrics = dict[str, float]
ByClient = dict[str, list[float | None]]


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
            common = on_test(task.model, logits, whole, server.buffers, data)
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
        own = of_clients(task.model, algorithm.predict, models, data)
    else:
        own = known[id(server.shared)][1]
    metrics |= personal(task, progress, own, "")
    by_client |= each("personal.local.accuracy", own, len(data.clients))
    tune = algorithm.tune if task.tune == "method" else task.tune
    due = progress.round == task.rounds or (task.tune_every and progress.round % task.tune_every == 0)
    if isinstance(tune, Tune) and due:
        order = Order(
            progress.round - 1, progress.stage_round - 1, task.seed, server.shared, server.buffers, {}
        )
        own = of_clients(task.model, algorithm.predict, engine.tuned(order, clients, tune), data)
        metrics |= personal(task, progress, own, ".tuned")
        by_client |= each("personal.local.accuracy.tuned", own, len(data.clients))
    return metrics, by_client


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


def number(value: float) -> float | None:
    """A value JSON can hold."""
    return value if math.isfinite(value) else None
