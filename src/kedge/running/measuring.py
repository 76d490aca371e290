"""The evaluation matrix of a round: every model worth looking at, on the common and on the local tests."""

import math

from kedge.core.algorithm import Stage
from kedge.core.server import Server
from kedge.core.tree import Leaves
from kedge.engines.engine import Engine
from kedge.measure.evaluate import on_local_tests, on_test
from kedge.running.task import Task


def measured(
    task: Task, engine: Engine, stage: Stage, server: Server, start: Leaves
) -> tuple[dict[str, float], dict[str, list[float | None]]]:
    """The evaluation matrix: every model worth looking at, on the common and on the local tests."""
    algorithm, data, model = stage.algorithm, task.federation, task.model
    local = {k: v for k, v in start.items() if k not in server.shared}
    views = {"distributed": server.shared, "average": server.average}
    for c in algorithm.corrections:
        views |= c.views(server.shared, server.slots[c.name])
    metrics: dict[str, float] = {}
    by_client: dict[str, list[float | None]] = {}
    measured: dict[int, str] = {}
    for name, leaves in views.items():
        same = measured.get(id(leaves))
        if same:
            metrics |= {k.replace(same, name, 1): v for k, v in metrics.items() if k.startswith(same + ".")}
            by_client |= {
                k.replace(same, name, 1): v for k, v in by_client.items() if k.startswith(same + ".")
            }
            continue
        measured[id(leaves)] = name
        whole = {**local, **leaves}
        values = on_test(model, algorithm.predict, whole, server.buffers, data)
        own, each = on_local_tests(model, algorithm.predict, (whole, server.buffers), data)
        metrics |= {f"{name}.{k}": v for k, v in {**values, **own}.items()}
        by_client |= {f"{name}.local.accuracy": each} if each else {}
    if local:
        own, each = on_local_tests(
            model, algorithm.predict, lambda c: engine.personal(c, server.shared, server.buffers), data
        )
        metrics |= {f"personal.{k}": v for k, v in own.items()}
        by_client |= {"personal.local.accuracy": each} if each else {}
    return metrics, by_client


def number(value: float) -> float | None:
    """A value JSON can hold."""
    return value if math.isfinite(value) else None
